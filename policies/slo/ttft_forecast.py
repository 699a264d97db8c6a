"""TTFT forecast: when a request that is admitted now would have its first token.

The request waits for the requests that are sent before it, in the scheduler's real order, and then for its own prompt.
First come the earlier requests of its own tenant. Meanwhile the other tenants get their shares, and where the tenant's
rank is ahead of the next in order, they catch up first. This work is estimated as a fluid, and is at most the work of
all waiting requests. The fleet forecasts when there is room for the request, by the step-time models of the backends
(fleet/ttft.py).

A queue that holds only arrivals since the last poll does not count: most of these may be sent at once.

All backends are scanned every SCAN_S for the most promising backends; between scans only these are asked. A decision
has to be quick, and forecasts are not exact enough to lose much in so short a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from policies.accounts.cost import Price
from policies.fleet.ttft import TtftByBackend, WorkAhead
from policies.queueing.fair_queues import PresentQueues
from policies.queues import PoolQueues
from policies.types import Request, Tenant

SCAN_S = 0.05  # between two scans: a few steps
PROMISING_MAX = 3
NEXT = WorkAhead(0.0, 0.0)


class BackendScan(NamedTuple):
    """The result of a scan of all serving backends, used until the time `until`. `backend_ids` are those with the
    earliest forecast TTFT (none, if any backend has no forecast). `serving` is the number of serving backends.
    `mean_output_tokens` is the mean predicted output of the running requests.
    """

    until: float
    backend_ids: tuple[str, ...] = ()
    serving: int = 1
    mean_output_tokens: float = 0.0


NOTHING_KNOWN = BackendScan(float("-inf"))


@dataclass(slots=True)
class Forecaster:
    """The forecaster of the TTFT of a request, from the waiting and running requests of its pool. `output_tokens`
    predicts a request's output.
    """

    queues: PoolQueues
    backends: TtftByBackend
    price: Price
    output_tokens: Callable[[Request], float]
    present: PresentQueues
    _stuck_tiers: frozenset[str] = frozenset()
    is_asked: bool = False
    """Whether a forecast was asked for, so that `polled` has to be told."""
    _scan: BackendScan = NOTHING_KNOWN

    def polled(self) -> None:
        """Note which tiers have waiting requests after a poll, because these requests found no room."""
        restricted = len(self.queues.restricted)  # these wait for certain backends, which says nothing of the others
        if len(self.queues) > restricted:
            self._stuck_tiers = frozenset().union(
                *(
                    [tier.id for tier in fair_queue.order.root.nodes.values() if tier.waiting]
                    for fair_queue in self.present.fair_queues.all()
                )
            )
        else:
            self._stuck_tiers = frozenset()

    def ttft_s(self, request: Request, tenant: Tenant, now: float) -> float | None:
        """Seconds from now until the first token of a request that arrives now. None where some backend has no sure
        step-time model.
        """
        self.is_asked = True
        output_tokens = self.output_tokens(request)
        scan = self._scanned(request, now, output_tokens)
        return self._forecast_s(request, now, output_tokens, scan, self._ahead(request, tenant, output_tokens, scan))

    def next_ttft_s(self, request: Request, now: float) -> float | None:
        """Seconds from now until the first token of the next request to be sent, which has no room now; None as in
        `ttft_s`.
        """
        output_tokens = self.output_tokens(request)
        return self._forecast_s(request, now, output_tokens, self._scanned(request, now, output_tokens), NEXT)

    def waiting_ttft_s(self, request: Request, tenant: Tenant, ahead: Sequence[Request], now: float) -> float | None:
        """Seconds from now until the first token of a request that waits behind the requests `ahead` of its tenant.
        None as in `ttft_s`.
        """
        output_tokens = self.output_tokens(request)
        scan = self._scanned(request, now, output_tokens)
        if not scan.backend_ids:
            return None
        own_tokens = sum(each.prompt_tokens for each in ahead) + len(ahead) * output_tokens
        work = self._work_ahead(request, tenant, own_tokens, output_tokens, scan)
        return self._forecast_s(request, now, output_tokens, scan, work)

    def survey(self, request: Request, now: float) -> BackendScan:
        """A scan for `start_s` of requests for the same backends. It is not cached, so views change no decision."""
        return self._scan_all(request, now, self.output_tokens(request))

    def start_s(self, request: Request, tenant: Tenant, before: tuple[int, int], scan: BackendScan) -> float | None:
        """Seconds from now until a queued request is sent; None where some backend has no sure step-time model.
        `before` gives the number of requests that its tenant has queued before it, and their prompt tokens.
        """
        if not scan.backend_ids:
            return None
        output_tokens = self.output_tokens(request)
        own_tokens = before[1] + before[0] * output_tokens
        ahead = self._work_ahead(request, tenant, own_tokens, output_tokens, scan)
        return self.backends.slot_s(request, output_tokens=output_tokens, ahead=ahead, among=scan.backend_ids)

    def is_hopeless(self, request: Request, due_at: float, now: float) -> bool:
        """Whether no backend could give the first token by `due_at`, even without any other prompt ahead."""
        left_s = due_at - now
        if left_s <= 0.0:
            return True
        if self._scan.backend_ids and request.backend_ids is None:
            promising_s = self.backends.least_s(request, now, self._scan.backend_ids)
            if promising_s is not None and promising_s <= left_s:
                return False
        return (self.backends.least_s(request, now) or 0.0) > left_s

    def _scanned(self, request: Request, now: float, output_tokens: float) -> BackendScan:
        """The scan of all backends that are eligible for the request: the cached one while it is valid."""
        if now < self._scan.until and request.backend_ids is None:
            return self._scan
        scan = self._scan_all(request, now, output_tokens)
        if request.backend_ids is None:
            self._scan = scan
        return scan

    def _scan_all(self, request: Request, now: float, output_tokens: float) -> BackendScan:
        serving = self.backends.serving_count(request, now)
        forecasts = self.backends.forecasts(request, now, output_tokens=output_tokens)
        best = sorted(forecasts)[:PROMISING_MAX] if len(forecasts) == serving else []
        backend_ids = tuple(forecast.backend_id for forecast in best)
        return BackendScan(now + SCAN_S, backend_ids, max(1, serving), self.backends.mean_output_tokens())

    def _forecast_s(
        self, request: Request, now: float, output_tokens: float, scan: BackendScan, ahead: WorkAhead | None
    ) -> float | None:
        if not scan.backend_ids:
            return None
        forecasts = self.backends.forecasts(
            request, now, output_tokens=output_tokens, ahead=ahead, among=scan.backend_ids
        )
        return min(forecasts).ttft_s if forecasts else None

    def _ahead(self, request: Request, tenant: Tenant, output_tokens: float, scan: BackendScan) -> WorkAhead | None:
        """The work that is sent to each backend before the request; None where its tier has no request stuck in the
        queue.
        """
        if tenant.tier_id not in self._stuck_tiers or not self.queues:
            return None
        queue = self.queues.of(tenant.id)
        own_tokens = queue.prompt_tokens + len(queue.requests) * output_tokens
        return self._work_ahead(request, tenant, own_tokens, output_tokens, scan)

    def _work_ahead(
        self, request: Request, tenant: Tenant, own_tokens: float, output_tokens: float, scan: BackendScan
    ) -> WorkAhead:
        """The work that is sent to each backend before a request that waits behind `own_tokens` of its tenant."""
        queues, waiting = self.queues, len(self.queues) - len(self.queues.held_for)
        leads = [
            (fair_queue.lead_service(tenant), number, fair_queue)
            for number, fair_queue in enumerate(self.present.fair_queues.all())
        ]
        lead_service, _, fair_queue = min(leads)
        price = self.price.service(request.prompt_tokens, 0, output_tokens)
        lead_tokens = lead_service * (request.prompt_tokens + output_tokens) / price if price else 0.0
        tokens = (own_tokens + lead_tokens) / fair_queue.share.ratio_if_active(tenant)
        all_tokens = queues.prompt_tokens + waiting * scan.mean_output_tokens
        ratio = min(1.0, tokens / max(1.0, all_tokens)) / scan.serving
        return WorkAhead(ratio * waiting, ratio * all_tokens)
