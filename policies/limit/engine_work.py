"""Engine work: the running requests of one backend, as sums that a step-time model turns into seconds.

Every sum or mark is updated by one event in constant time, whatever the number of requests: a decision walks backends,
never requests, and no event is needed for a token that came as predicted.

Prefill is a queue. Prompts are computed in the order in which they were sent; each step computes a chunk, less one
token per decode. So one clock of computed tokens gives the progress of all prompts. The clock follows the model, and
each first token corrects it: everything up to that prompt is then computed, and nothing after it.

A decode reads, in the mean over its life, its prompt and half of its output. An SLO envelope bounds sums of steps
(token j is due at arrival + TTFT + j * TPOT), so the mean step has to keep it. The targets that bind, and the slack of
each request, are kept in tpot_targets.py.
"""

from collections import Counter
from math import ceil, inf

from policies.limit.budget import ReportedBudget
from policies.limit.deadlines import PromptsByDeadline
from policies.limit.due_tokens import Stall
from policies.limit.knee import knee_s
from policies.limit.shared_steps import SharedSteps
from policies.limit.tpot_targets import ROUNDING_S, TpotTargets
from policies.reservation import Reservation
from policies.step_time.model import StepTime, StepTimeModel
from policies.types import ALONE, BackendLoad

# A model that was sure once is kept up to this error, and beyond it for as long as the learner takes at most to be
# right after a change (14 s, docs/results/load.md): without a model, a flood of requests is dispatched at once.
ERROR_RATIO_KEPT = 0.5
RELEARNT_S = 15.0
BUSY_STEPS = 1.0  # steps of owed prompts that keep an engine busy: more would wait there
STEP_TOKENS_UNKNOWN = 2048  # vLLM's default max_num_batched_tokens, where none is configured or reported
STEP_S_MIN = 1e-6  # no step is shorter, whatever the model says of an empty one
FIRST_TOKENS_MAX = 2  # per sequence with the first chunk of a stream; more: the answer is buffered or not streamed


class EngineWork:
    """The work of one backend now: sums over its running requests (sequences, context tokens, prompts to compute),
    which a step-time model turns into seconds. Limits and forecasts read it. Times are in seconds. Mutable; `now` never
    goes back.
    """

    # Read and written with every event: without slots, Python takes twice as long for more than thirty attributes.
    __slots__ = (
        "_at", "_budget", "_by_deadline", "_computed", "_dispatches_of", "_ends", "_fits_until", "_sent",
        "_steps", "_surely_computed", "batching", "busy_until", "chunk_s", "chunk_tokens", "context_tokens",
        "decode_s", "dispatches", "engines", "external_sequences", "external_tokens", "is_sure", "knee_s",
        "model", "output_tokens", "ready_at", "sequences", "share", "shared", "step_s_max", "step_tokens_max",
        "targets",
    )  # fmt: skip

    def __init__(self) -> None:
        self.model: StepTimeModel | None = None
        """The step-time model; None while too little is known to limit requests by it."""
        self.is_sure = False
        """Whether a forecast may rely on the model."""
        self._fits_until = -inf  # how long the model is kept although its error is large
        self.batching = "vllm"
        self.step_tokens_max = STEP_TOKENS_UNKNOWN
        self.engines = 1
        self.share = ALONE
        self.sequences = 0
        self.context_tokens = 0.0
        self.output_tokens = 0.0
        self.external_sequences = 0
        self.external_tokens = 0.0
        self.targets = TpotTargets()
        self._at = 0.0
        self._steps = 0.0
        self._computed = self._sent = 0.0  # prompt tokens, since the start
        self._surely_computed = 0.0
        self._ends: dict[Reservation, float] = {}  # of prompts without a first token: the value of `_sent` at their end
        self.shared: SharedSteps | None = None
        """The prompts that are not computed yet, where no prompt gets more than a part of a step."""
        self.decode_s = self.chunk_s = 0.0
        self.chunk_tokens = 1
        self.ready_at = -inf
        """The time at which all prompts that were sent will be computed."""
        self.busy_until = -inf
        """The time at which the rest of the prompts no longer keeps the engine busy. Both times are long past without a
        model.
        """
        self.step_s_max = inf
        """The tightest TPOT target of the running requests, or the knee if none has a target."""
        self.knee_s = inf
        self.dispatches = 0
        """How many requests were sent. To read."""
        self._dispatches_of: Counter[str] = Counter()  # by sender
        self._budget = ReportedBudget()
        self._by_deadline: PromptsByDeadline | None = None  # owed prompts, where the engine orders them by deadline

    # -- events ----------------------------------------------------------------------------------------------

    def take(self, reservation: Reservation, now: float) -> None:
        """Record the dispatch of a request."""
        if now > self._at:
            if self.model is None:  # `_advance`, inlined
                self._at, self._computed = now, self._sent
            else:
                self._advance(now)
        prefill_tokens = reservation.prompt_tokens - reservation.cached_tokens  # inlined
        self._sent += prefill_tokens if prefill_tokens > 1 else 1
        self._ends[reservation] = self._sent
        if self.shared is not None:
            self.shared.add(reservation)
        self.dispatches += 1
        reservation.number = self.dispatches
        self._dispatches_of[reservation.sender] += 1
        reservation.sender_number = self._dispatches_of[reservation.sender]
        if self._budget.tokens is not None:
            self._budget.sent(reservation)
        if self._by_deadline is not None:
            self._by_deadline.add(reservation)
        self.sequences += reservation.sequences
        self.context_tokens += reservation.prompt_tokens + reservation.output_tokens / 2  # `context_tokens`, inlined
        self.output_tokens += reservation.output_tokens
        if reservation.envelope is not None and (tpot_s := self.own_tpot_s(reservation)) < inf:
            self.targets.add(reservation, tpot_s)
        if self.model is not None:
            self._set_pace(self.model)
        if reservation.envelope is not None:
            self.targets.note_due(reservation, self._next_step, now)

    def started(self, reservation: Reservation, now: float) -> None:
        """Record the first token of a request."""
        if now > self._at:
            if self.model is None:  # `_advance`, inlined
                self._at, self._computed = now, self._sent
            else:
                self._advance(now)
        end = self._ends.pop(reservation, None)
        if end is not None:
            self._begun(reservation, end)
            if self.model is not None:
                self._set_pace(self.model)
        if reservation.envelope is not None:
            self.targets.note_due(reservation, self._next_step, now)

    def release(self, reservation: Reservation, now: float) -> None:
        """Record the end of a request, for any reason; if it has tokens but did not call `started`, record both."""
        if now > self._at:
            if self.model is None:  # `_advance`, inlined
                self._at, self._computed = now, self._sent
            else:
                self._advance(now)
        end = self._ends.pop(reservation, None)
        if end is not None and reservation.produced_tokens:
            self._begun(reservation, end)
            end = None
        elif end is not None and (self._budget.since or self.shared is not None or self._by_deadline is not None):
            self._prefilled(reservation)
        if self._by_deadline is not None:
            self._bound_owed(self._by_deadline)
        elif end is not None and end > self._computed:  # it will not be computed any more
            self._computed += min(reservation.prefill_tokens, end - self._computed)
        if reservation.envelope is not None:
            self.targets.remove(reservation)
        self.sequences -= reservation.sequences
        self.context_tokens -= reservation.prompt_tokens + reservation.output_tokens / 2  # `context_tokens`, inlined
        self.output_tokens -= reservation.output_tokens
        if not self.sequences:
            self.context_tokens = self.output_tokens = 0.0  # drop the rounding error
        if self.model is not None:
            self._set_pace(self.model)

    def measured(
        self, load: BackendLoad, *, external_sequences: int, external_tokens: float, now: float, is_new: bool = True
    ) -> None:
        """Apply a measurement of the backend and its external load, which includes other replicas' load. Without
        `is_new`, the measurement is repeated.
        """
        self._advance(now)
        known: StepTime | None = load.step_time
        self.is_sure = known is not None and known.is_sure
        if known is not None and (self.is_sure or known.error_ratio <= ERROR_RATIO_KEPT):
            self._fits_until = now + RELEARNT_S
        is_kept = self.model is not None and now <= self._fits_until
        if known is None or not (self.is_sure or is_kept):
            self.model = None
        elif self.model is None:
            self.model, self._computed = known.model, self._sent  # what was sent before counts as computed
        else:
            self.model = known.model
        self.batching, self.engines, self.share = load.batching, load.engines, load.share
        self._go_by_deadlines(is_on=load.batching == "fair")
        self.step_tokens_max = load.step_tokens_max or STEP_TOKENS_UNKNOWN
        self._share(load.prompt_step_tokens_max)
        self.external_sequences, self.external_tokens = external_sequences, external_tokens
        if is_new:
            self._budget.reported(load)
        if self.model is None:
            self.targets.pace_changed()
            self.ready_at = self.busy_until = -inf
        else:
            self.knee_s = knee_s(self.model)
            self._set_pace(self.model)

    def told(self, now: float) -> None:
        """Correct the due times of all running requests, after their produced tokens have become known."""
        self._advance(now)
        self.targets.settle(self._next_step, now)

    # -- queries ---------------------------------------------------------------------------------------------

    def owed_tokens(self, now: float) -> float:
        """The prompt tokens that were sent and are not computed yet."""
        self._advance(now)
        if self._by_deadline is not None:
            self._bound_owed(self._by_deadline)
        return self._sent - self._computed

    def owed_then(self, now: float) -> tuple[float, float]:
        """The owed prompt tokens and the seconds that they take, without a change of state. Requires a model."""
        owed, passed_s = self._sent - self._computed, max(0.0, now - self._at)
        prefill_s = self.prefill_s(owed)
        if passed_s >= prefill_s:
            return 0.0, 0.0
        return owed * (1 - passed_s / prefill_s), prefill_s - passed_s

    def computed_tokens(self, reservation: Reservation, now: float) -> float:
        """The number of the request's prefill tokens that are computed; all of them without a model. Prompts are
        computed in the order of dispatch. Takes time linear in the waiting prompts, and does not change the state.
        """
        if self.model is None or reservation not in self._ends:
            return reservation.prefill_tokens
        waiting = list(self._ends)
        before = sum(each.prefill_tokens for each in waiting[: waiting.index(reservation)])
        computed = sum(each.prefill_tokens for each in waiting) - self.owed_then(now)[0]
        return min(max(computed - before, 0.0), reservation.prefill_tokens)

    def owed_by(self, due_at: float, now: float) -> float:
        """The owed prompt tokens that are computed before a prompt whose first token is due at `due_at`."""
        owed = self.owed_tokens(now)
        return owed if self._by_deadline is None else min(owed, self._by_deadline.tokens_by(due_at))

    def decode_with_s(self, reservation: Reservation) -> float:
        """Seconds of a step in which all running requests and `reservation` decode. Requires a model."""
        model, each = self.model, 1 / self.engines  # one engine's part
        assert model is not None
        sequences = (self.sequences + self.external_sequences + reservation.sequences) * each
        context_tokens = (self.context_tokens + self.external_tokens + reservation.context_tokens) * each
        decodes_s = model.base_s + model.token_s * sequences  # inlined: asked of every backend of a pool
        return decodes_s + model.context_token_s * context_tokens + model.request_s * sequences

    def own_tpot_s(self, reservation: Reservation) -> float:
        """The request's TPOT target; infinite where it has none, or where the engine could not keep it even for this
        request alone.
        """
        envelope = reservation.envelope
        if envelope is None or envelope.tpot_s is None:
            return inf
        if self.model is None:
            return envelope.tpot_s
        sequences = reservation.sequences
        alone_s = self.model.step_s(new_tokens=sequences, requests=sequences, context_tokens=reservation.context_tokens)
        return envelope.tpot_s if alone_s <= envelope.tpot_s else inf

    def budget_tokens(self, due_at: float, now: float) -> float | None:
        """The prefill admission budget in tokens that the engine reported, less the prompts sent since. Only prompts
        due by `due_at` are subtracted: later ones are computed after it. None: the engine reports no budget.
        """
        prompts, budget = self._by_deadline, self._budget
        if budget.tokens is None:
            return None
        if prompts is None:
            return budget.left()
        # The report counts all prompts with a deadline.
        later = prompts.tokens_due() - prompts.tokens_by(due_at) - budget.sent_after(due_at)
        return budget.left(due_at) + max(0.0, min(later, self.owed_tokens(now)))

    @property
    def reported_budget(self) -> float | None:
        """The prefill admission budget in tokens that the engine reported, less all prompts sent since; None: no
        report.
        """
        return None if self._budget.tokens is None else self._budget.left()

    def tpot_target_s(self) -> float:
        """The tightest TPOT target of the running requests; infinite where none has one."""
        return self.step_s_max if self.targets.by_tpot else inf

    def makes_late(self, prefill_tokens: float, now: float) -> bool:
        """Whether a running request would miss a deadline because of `prefill_tokens` more prompt tokens. Requires a
        model.
        """
        targets = self.targets
        if targets.is_known_late(prefill_tokens, now):
            return True
        if targets.is_empty:
            return False
        owed = self.owed_tokens(now)
        is_late = targets.misses(self._stall(owed + prefill_tokens), lambda: self._stall(owed), self._at, self._steps)
        if is_late:
            targets.found_late(prefill_tokens, now, self.decode_s)
        return is_late

    def opens_at(self, now: float) -> float:
        """The time at which the engine may take a prompt that it would not take at `now`; infinite where time changes
        nothing.
        """
        if now < self.busy_until:
            return self.busy_until
        late_until = self.targets.late_until if now < self.targets.late_until else inf
        if self.shared is None or self.model is None:
            return late_until
        return min(late_until, now + (self.long_opens_in_s(self.shared, now) or inf))

    def long_opens_in_s(self, shared: SharedSteps, now: float) -> float:
        """Seconds until one more long prompt may be sent, where prompts share steps. Requires a model. Infinite where
        that needs more than time.
        """
        self._advance(now)
        return shared.opens_in_s(self.chunk_tokens, self.chunk_s)

    def prefill_s(self, tokens: float) -> float:
        """Seconds to compute this many prompt tokens, in full steps and one step with the rest. Requires a model."""
        assert self.model is not None
        full_steps, rest = divmod(tokens, self.chunk_tokens)
        rest_s = self.decode_s + self.model.token_s * rest / self.engines if rest else 0.0
        return full_steps * self.chunk_s + rest_s

    @property
    def mean_output_tokens(self) -> float:
        """The mean predicted output of a running sequence; 0 when nothing runs."""
        return self.output_tokens / self.sequences if self.sequences else 0.0

    # -- helpers ---------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        passed_s = now - self._at
        if passed_s <= 0.0:
            return
        self._at = now
        if self.model is None:
            self._computed = self._sent
            return
        if self.shared is not None:
            self.shared.passed(passed_s)
        owed = self._sent - self._computed
        if owed > 0.0:
            prefill_s = self.prefill_s(owed)
            if passed_s < prefill_s:
                self._computed += owed * passed_s / prefill_s
                self._steps += passed_s / self.chunk_s
                return
            self._computed = self._sent
            self._steps += prefill_s / self.chunk_s
            passed_s -= prefill_s
        self._steps += passed_s / self.decode_s

    def _set_pace(self, model: StepTimeModel) -> None:
        """Compute the step times that hold from now on. Called with every event, hence optimised."""
        self.targets.pace_changed()
        engines, sequences = self.engines, self.sequences + self.external_sequences
        chunk = self.step_tokens_max * engines
        self.chunk_tokens = max(1, chunk - sequences)
        # Seconds of a step besides what its tokens and requests cost, on every engine.
        read_s = model.base_s + model.context_token_s * (self.context_tokens + self.external_tokens) / engines
        self.decode_s = max(STEP_S_MIN, read_s + (model.token_s + model.request_s) * max(1, sequences) / engines)
        chunk_s = read_s + (model.token_s * max(chunk, sequences) + model.request_s * (sequences + 1)) / engines
        self.chunk_s = max(STEP_S_MIN, chunk_s)
        owed = self._sent - self._computed
        self.ready_at = self._at + self.prefill_s(owed) if owed else self._at
        self.busy_until = self.ready_at - BUSY_STEPS * self.chunk_s
        if self.shared is not None:
            self.busy_until = -inf  # `may_share` decides instead
            tokens = min(self.shared.tokens_a_step, self.chunk_tokens)
            self.shared.step_s = self.decode_s + model.token_s * tokens / engines
        if self._by_deadline is not None:
            self.ready_at = -inf  # it differs by prompt
        by_tpot = self.targets.by_tpot
        self.step_s_max = min(by_tpot) if by_tpot else self.knee_s

    def _go_by_deadlines(self, *, is_on: bool) -> None:
        if is_on == (self._by_deadline is not None):
            return
        self._by_deadline = PromptsByDeadline() if is_on else None
        if self._by_deadline is not None:
            for reservation in self._ends:
                self._by_deadline.add(reservation)

    def _bound_owed(self, prompts: PromptsByDeadline) -> None:
        """Bound the owed tokens by the prompts without a first token. The engine owes at most all of their tokens, and
        at least all but the largest prompt's, as prompts are computed one by one.
        """
        owed = min(max(self._sent - self._computed, prompts.tokens - prompts.largest()), prompts.tokens)
        self._computed = self._sent - owed

    def _begun(self, reservation: Reservation, end: float) -> None:
        """The first token has come of a prompt that ends there among all that were sent."""
        if self.shared is not None and self.model is not None:
            self.shared.started(reservation)
        if self._budget.since or self.shared is not None or self._by_deadline is not None:
            self._prefilled(reservation)
        if end > self._surely_computed:
            self._surely_computed = end
        if self._by_deadline is not None:
            self._bound_owed(self._by_deadline)
        elif reservation.produced_tokens <= FIRST_TOKENS_MAX * reservation.sequences:  # streamed
            self._computed = self._surely_computed
        elif end > self._computed:
            self._computed = end

    def _prefilled(self, reservation: Reservation) -> None:
        """A prompt is no longer owed, and not among `_ends` any more."""
        if self._budget.since:
            self._budget.since.pop(reservation, None)
        if self.shared is not None:
            self.shared.remove(reservation)
        if self._by_deadline is not None:
            self._by_deadline.remove(reservation)

    def _share(self, tokens: int | None) -> None:
        """Set the most tokens of one prompt that a step computes; None: as many as the step holds."""
        if tokens is None or tokens >= self.step_tokens_max or self.batching != "vllm":
            self.shared = None
            return
        long_max = self.engines * max(1, ceil(self.step_tokens_max / tokens) - 1)
        if self.shared is None or self.shared.share_tokens != tokens:
            self.shared = SharedSteps(tokens, self._ends, long_max=long_max)
        self.shared.long_max = long_max

    def _next_step(self, reservation: Reservation) -> float:
        """The step of the request's next token. A request gets a token with every step, the first when its prompt is
        computed.
        """
        if reservation.produced_tokens >= reservation.sequences:
            return self._steps
        ahead = self._ends.get(reservation, self._computed) - self._computed
        return self._steps + max(0, ceil(ahead / self.chunk_tokens) - 1)

    def _stall(self, owed_tokens: float) -> Stall:
        """The delay of decodes while this much prompt is computed."""
        full_steps, rest = divmod(owed_tokens, self.chunk_tokens)
        last = full_steps if rest else full_steps - 1
        return Stall(
            full_steps - 1,
            full_steps * self.chunk_s - ROUNDING_S if full_steps else -inf,
            max(0.0, last),
            max(self.decode_s, self.prefill_s(owed_tokens)) - ROUNDING_S,
        )
