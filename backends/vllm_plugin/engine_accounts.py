"""Engine accounts, in plain values: the requests' SLO envelopes, the step time, and the reports to send.

scheduler.py translates between these values and vLLM's objects. Times are seconds on the clock that is passed in.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import inf
from typing import Any, Final

from backends.vllm_plugin.collector import Collector
from backends.vllm_plugin.margin import Margin
from backends.vllm_plugin.options import Options
from backends.vllm_plugin.queue_order import TENANT_ORDERS, TenantOrder
from backends.vllm_plugin.request_envelope import RequestEnvelope, read_envelope
from backends.vllm_plugin.step_clock import StepClock, StepReport
from policies.batching.fair import Decode, Prefill, form_batch
from policies.batching.pab import DueDecode, prefill_admission_budget
from policies.step_time.learner import StepTimeLearner
from policies.step_time.model import StepTime, StepTimeModel
from policies.step_time.observation import Observation, StepGroups

REPORT_EVERY_S: Final = 0.01
REPORT_STEPS_MAX: Final = 64
TARGETS_KEPT: Final = 64  # of the last requests; the reported budget is for the tightest
GATEWAYS_MAX: Final = 64  # gateways, and processes of one, whose dispatches are counted separately
NO_MODEL: Final = StepTimeModel(1.0, 0.0)  # every step takes 1 s: used where no step has a time limit
LEAD_S_MAX: Final = 1.0  # most that steps in flight delay the next one, whatever the model predicts


@dataclass(slots=True)
class RequestAccount:
    """The account of one request inside the engine: its SLO envelope, and its output tokens so far. Mutable."""

    promise: RequestEnvelope
    output_tokens: int = 0
    first_token_at: float | None = None

    def slack_s(self, output_tokens: int, now: float) -> float:
        """Return the seconds until the token after `output_tokens`, of which some may be in flight, is late."""
        return self.promise.slack_s(output_tokens=output_tokens, first_token_at=self.first_token_at, now=now)


class EngineAccounts:
    """What the plugin knows of one engine: the accounts of its requests, its steps and its step-time model. Mutable."""

    def __init__(
        self, options: Options, clock: Callable[[], float], cached_tokens: Callable[[str], int] = lambda _: 0
    ) -> None:
        """`cached_tokens` returns the number of a waiting request's prompt tokens that are cached now."""
        self.options = options
        self.entries: dict[str, RequestAccount] = {}
        self.promised = 0
        """The number of requests with a target."""
        self.dispatches: dict[str, int] = {}  # highest number per gateway; the latest gateway is last
        self.tenants = TenantOrder(options.order, cached_tokens) if options.order in TENANT_ORDERS else None
        self.now = clock
        self._steps = StepClock()
        self._learner = StepTimeLearner()
        self._groups = StepGroups()
        self._step_time: StepTime | None = None
        self._divider: StepTimeModel | None = None  # the model that divides steps
        self._margin = Margin()
        self._in_flight_until = 0.0
        self._collector = Collector(clock) if options.collects else None
        self._has_begun = False
        self._targets: deque[tuple[float, float]] = deque(maxlen=TARGETS_KEPT)
        self._untold: list[StepReport] = []
        self._told_at = 0.0

    @property
    def step_time(self) -> StepTime | None:
        """The present estimate of the engine's step time; None while there is none."""
        return self._step_time

    def arrived(
        self, request_id: str, extra_args: Mapping[str, Any] | None, *, arrived_s_ago: float, prompt_tokens: int
    ) -> None:
        """Record a request in the engine's queue that reached the server `arrived_s_ago`."""
        arrived_at = self.now() - arrived_s_ago
        promise = read_envelope(
            extra_args, arrived_at=arrived_at, ttft_s=self.options.ttft_s, tpot_s=self.options.tpot_s
        )
        if promise.ttft_s < inf and promise.tpot_s < inf:
            self._targets.append((promise.ttft_s, promise.tpot_s))
        self.entries[request_id] = RequestAccount(promise)
        self.promised += promise.is_any
        if self.tenants is not None:
            self.tenants.arrived(request_id, promise.owner, prompt_tokens=prompt_tokens, arrived_at=arrived_at)
        if promise.dispatch is not None:
            gateway, number = promise.dispatch
            self.dispatches[gateway] = max(self.dispatches.pop(gateway, 0), number)
            if len(self.dispatches) > GATEWAYS_MAX:
                del self.dispatches[next(iter(self.dispatches))]

    def forget(self, request_id: str) -> None:
        """Drop a request that has ended."""
        known = self.entries.pop(request_id, None)
        if known is None:
            return
        self.promised -= known.promise.is_any
        if self.tenants is not None:
            self.tenants.forget(request_id)

    def begun(self, request_id: str, computed_tokens: int) -> None:
        """Record that this many tokens of a request's prompt, all that were not cached, will be computed."""
        if request_id in self.entries and self.tenants is not None:
            self.tenants.begun(request_id, computed_tokens)

    def produced(self, request_id: str, entry: RequestAccount, output_tokens: int, now: float) -> None:
        """Record the total number of output tokens of a request."""
        if output_tokens <= entry.output_tokens:
            return
        if entry.first_token_at is None:
            entry.first_token_at = now
        entry.output_tokens = output_tokens
        if self.tenants is not None and request_id in self.entries:
            self.tenants.produced(request_id, output_tokens)

    def begin_step(self) -> float:
        """Return the time at which the step that is formed now will start: after the steps in flight."""
        if not self._has_begun:
            self._has_begun = True
            if self._collector is not None:
                self._collector.begin()
        now = self.now()
        if not self._steps.in_flight:
            return now
        return min(max(now, self._in_flight_until), now + LEAD_S_MAX)

    def scheduled(self, key: int, starts_at: float, *, new_tokens: int, context_tokens: int, requests: int) -> None:
        """Record a step that was formed, under the key that its outcome will have."""
        now = self.now()
        self._steps.began(key, now, new_tokens=new_tokens, context_tokens=context_tokens, requests=requests)
        if self._step_time is not None:
            self._in_flight_until = starts_at + self._step_time.model.step_s(
                new_tokens=new_tokens, context_tokens=context_tokens, requests=requests
            )

    def ended(self, key: int) -> float:
        """Record the outcome of a step, and return the present time."""
        now = self.now()
        report = self._steps.ended(key, now)
        if report is not None:
            self._learn(report)
            if len(self._untold) < REPORT_STEPS_MAX:
                self._untold.append(report)
        return now

    def rest(self, *, is_idle: bool, prompts_wait: bool, slack_s: float) -> None:
        """Finish a step: collect garbage if the moment is good, and note an idle engine. `slack_s` is the least slack
        of the running requests.
        """
        if self._collector is not None:
            self._steps.paused(self._collector.collect_if_calm(slack_s=slack_s, prompts_wait=prompts_wait))
        if is_idle:
            self._steps.idle()

    def divide(
        self, decodes: Sequence[Decode[str]], prefills: Sequence[Prefill[str]], *, tokens_max: int
    ) -> dict[str, int]:
        """Return the tokens that each request may have in this step, which is to end when the most urgent token is due.

        The model is right only in the mean, so half of the most urgent tokens would be late. So the prediction is
        raised by the margin within which nine tenths of the last steps ended. Until the model is sure for the first
        time, every step includes all answers, as if they had no targets. The order of prompts by slack needs no model.
        """
        if self._divider is None:
            aimless = [each._replace(slack_s=inf, tpot_s=inf) for each in decodes]
            return form_batch(aimless, prefills, model=NO_MODEL, tokens_max=tokens_max)
        times = 1.0 + self._margin.ratio
        slower = StepTimeModel(*(each * times for each in astuple(self._divider)))
        return form_batch(decodes, prefills, model=slower, tokens_max=tokens_max)

    def budget(self, decodes: Iterable[DueDecode], *, owed_tokens: int) -> tuple[float, float, float] | None:
        """Return the prefill admission budget in tokens, and its TTFT and TPOT targets in seconds. None while the model
        is not sure or has no cost for prompts, or no request came with both targets.
        """
        known = self._step_time
        if known is None or not known.is_sure or not known.model.token_s or not self._targets:
            return None
        ttft_s, tpot_s = (min(each) for each in zip(*self._targets, strict=True))
        tokens = prefill_admission_budget(known.model, decodes, owed_tokens=owed_tokens, ttft_s=ttft_s, tpot_s=tpot_s)
        return tokens, ttft_s, tpot_s

    def untold(self, *, is_idle: bool) -> list[StepReport]:
        """Take the steps that are to be reported now. There are none if the last report is less than REPORT_EVERY_S
        old, unless the engine is idle.
        """
        now = self.now()
        if not self._untold or (now - self._told_at < REPORT_EVERY_S and not is_idle):
            return []
        steps, self._untold, self._told_at = self._untold, [], now
        return steps

    def _learn(self, report: StepReport) -> None:
        step = Observation(report.duration_s, 1, report.new_tokens, report.context_tokens, report.requests)
        if self._divider is not None and report.new_tokens > report.requests:
            self._margin.seen(report.duration_s, said_s=step.predicted_s(self._divider))
        # Single steps make the model sure sooner, but it then learns the median, without the long steps that raise the
        # mean.
        seen = self._groups.add(step) if self._divider is not None else step
        if seen is not None:
            self._learner.observe(seen)
            self._step_time = self._learner.step_time
            known = self._step_time
            # A model in doubt is still the best guess, unless it has forgotten the cost of prompts: after a change it
            # may have seen nothing that separates that from the cost of a step.
            is_guess = self._divider is not None and known is not None and known.model.token_s
            if known is not None and (known.is_sure or (is_guess and not self._learner.changes_total)):
                self._divider = known.model
