"""TTFT by backend: when a request would get its first token at each backend, if it is sent as soon as there is room.

It counts the requests in flight there, by the backend's step-time model, and the requests that are sent before this
one. The forecaster says which those are (policies/slo/ttft_forecast.py).
"""

from collections.abc import Collection
from typing import NamedTuple

from policies.capacity.backend import BackendCapacity
from policies.due_times import due_no_later
from policies.fleet.fleet import Fleet
from policies.types import Request


class TtftForecast(NamedTuple):
    """The forecast TTFT of a request at one backend, in seconds from now."""

    ttft_s: float
    backend_id: str


class WorkAhead(NamedTuple):
    """The work that will be sent to a backend before a waiting request. `sequences` is the number of sequences, and
    `tokens` counts their prompt and output tokens.
    """

    sequences: float
    tokens: float


class TtftByBackend:
    """A forecaster of a request's TTFT at each backend of a fleet. It reads the fleet, and has no state of its own."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def forecasts(
        self,
        request: Request,
        now: float,
        *,
        output_tokens: float,
        ahead: WorkAhead | None = None,
        among: Collection[str] | None = None,
    ) -> list[TtftForecast]:
        """The forecast TTFT of the request at each eligible backend that serves (or `among` these), in order of backend
        id.

        The request is sent as soon as it has a slot; `output_tokens` is its predicted output. Requests in flight count
        and, where there is no room now, the work `ahead` of the request. Backends without a sure step-time model are
        left out.
        """
        self._fleet.clock.now = now
        due_at, found = due_no_later(request), []
        for capacity in self._serving(request, now, among):
            slot_in_s = _slot_in_s(capacity, request, output_tokens, ahead)
            ttft_s = capacity.ttft_s(self._prefill_tokens(request, capacity.id), due_at=due_at)
            if ttft_s is not None:
                found.append(TtftForecast(max(slot_in_s, 0.0) + ttft_s, capacity.id))
        return sorted(found, key=lambda forecast: forecast.backend_id)

    def slot_s(
        self, request: Request, *, output_tokens: float, ahead: WorkAhead, among: Collection[str]
    ) -> float | None:
        """Seconds until the first of these backends has a slot for a request that has no room now. The work `ahead` of
        the request is counted. None where none of these backends is known any more.
        """
        known = [self._fleet.backends[each] for each in among if each in self._fleet.backends]
        return min((_slot_in_s(each, request, output_tokens, ahead) for each in known), default=None)

    def least_s(self, request: Request, now: float, among: Collection[str] | None = None) -> float | None:
        """Seconds until the first token at the best serving backend (or `among` these), without any other prompt ahead.
        None where one of them has no sure step-time model, or where none serves.
        """
        least: list[float] = []
        for capacity in self._serving(request, now, among):
            if capacity.work.model is None or not capacity.work.is_sure:
                return None
            least.append(capacity.work.prefill_s(self._prefill_tokens(request, capacity.id)))
        return min(least, default=None)

    def mean_output_tokens(self) -> float:
        """The mean predicted output of the running sequences; 0 when none runs."""
        running = [capacity.work for capacity in self._fleet.backends.values() if capacity.work.sequences]
        return sum(work.output_tokens for work in running) / max(1, sum(work.sequences for work in running))

    def serving_count(self, request: Request, now: float) -> int:
        """The number of eligible backends that serve."""
        return len(self._fleet.serving(request, now))

    def _serving(self, request: Request, now: float, among: Collection[str] | None) -> list[BackendCapacity]:
        fleet = self._fleet
        if among is None:
            return fleet.serving(request, now)
        return [fleet.backends[each] for each in among if fleet.serves(each, now)]

    def _prefill_tokens(self, request: Request, backend_id: str) -> int:
        """The tokens of the prompt that this backend would have to compute."""
        cached = self._fleet.cached_tokens
        return max(1, request.context_tokens - (cached(request, backend_id) if cached is not None else 0))


def _slot_in_s(capacity: BackendCapacity, request: Request, output_tokens: float, ahead: WorkAhead | None) -> float:
    """Seconds until there is room for the request and the work `ahead`, if requests end at their mean rate. With work
    ahead there is no room now, whatever the counts say. 0 without a step-time model.
    """
    if capacity.work.model is None or not capacity.sequences:
        return 0.0
    sequences = float(request.choices)
    tokens = request.prompt_tokens + output_tokens
    if ahead is not None:
        sequences, tokens = sequences + ahead.sequences, tokens + ahead.tokens
    slots_short = sequences if ahead is not None else capacity.sequences + sequences - capacity.sequences_max
    tokens_short = capacity.tokens_held_max + tokens - capacity.tokens_max
    ends = max(slots_short, tokens_short / max(1.0, capacity.tokens / capacity.sequences))
    # As many end in the time of one answer as run.
    return max(0.0, ends) * capacity.work.decode_s * capacity.work.mean_output_tokens / capacity.sequences
