"""Made-up histories of a pool, told to a Scheduler and watched by the judges of backends/simulation.

`Facts` drives: facts one at a time or several in one instant, a poll after each instant, the books compared after
each poll. At the end whatever lives is brought to its end, the books are closed, and the whole recording is told to a
second Scheduler, which has to decide the same. Subclasses say what may happen, and which policy it happens to.
"""

from functools import partial
from typing import ClassVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from policies.accounts.cost import LinearPrice
from policies.admission import Admission
from policies.fairness import FAIRNESS
from policies.placement import ARRIVAL_PLACEMENT, PLACEMENT
from policies.pool.preemption import NO_INTERRUPTIONS
from policies.pool.session_gate import SessionRules
from policies.prediction import PREDICTION
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Cause, Dispatch, Group, Outcome, Preempt, Request, Tenant, Tier, Usage
from tests.fairness_orders import CHOOSE_AMONG_REQUESTS
from tests.simulation.checkers import InFlightLimits, RunWatch, WorkConservation
from tests.simulation.queue_accounts import WatchedPlacement
from tests.simulation.recording import Recorder, replay
from tests.simulation.run_accounts import RunAccounts

BACKENDS = ("x", "y")
PREDICTIONS = sorted(PREDICTION.keys() - {"noisy-oracle"})  # which a replay would have to draw again
STEPS_MAX = 10_000
MANY, FLOOD_VIEWED_EVERY = 20, 8  # waiting requests, and steps: how often each is viewed
BLOCK_TOKENS = 16

# Small enough that what they promise, and what they remember, matters within some dozen requests.
PARAMETERS = {
    "slack": {"slack_service": 40.0},
    "dlpm": {"quantum_service": 30.0},
    "drr": {"quantum_service": 30.0},
    "justitia": {"kv_tokens": 100.0, "idle_s": 1.0},
    "d2lpm": {"quantum_service": 30.0},
}


class Facts(RuleBasedStateMachine):
    """One pool under `policy` and `placement`. `steps` counts the instants of all histories of the class."""

    policy: ClassVar[str]
    placement: ClassVar[str]
    steps: ClassVar[int] = 0
    tiers = (Tier("default"),)
    groups: tuple[Group, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    wait_s_max = 1e6
    admission: list[Admission] | None = None
    decisions_max = 3
    price = LinearPrice()
    watched: WatchedPlacement | None = None
    scheduler_class: type[Scheduler] = Scheduler
    sessions: SessionRules | None = None

    def begin(
        self, *, prediction, share_ratio_max, preempt_service=None, interrupt_rules=NO_INTERRUPTIONS, **parameters
    ):
        """Every machine's first step; `parameters` are the policy's."""
        parameters = PARAMETERS.get(self.policy, {}) | parameters

        def make(*, is_watched=False):
            place = PLACEMENT[self.placement](**PARAMETERS.get(self.placement, {}))
            if is_watched and self.placement in ARRIVAL_PLACEMENT:
                place = self.watched = WatchedPlacement(place)
            return self.scheduler_class(
                tenants=self.tenants,
                tiers=self.tiers,
                groups=self.groups,
                fairness=partial(FAIRNESS[self.policy], **parameters),
                price=self.price,
                prediction=PREDICTION[prediction](),
                placement=place,
                share_ratio_max=share_ratio_max,
                wait_s_max=self.wait_s_max,
                preempt_service=preempt_service,
                interrupt_rules=interrupt_rules,
                admission=self.admission,
                decisions_max=self.decisions_max,
                sessions=self.sessions,
            )

        self.make = make
        self.scheduler = make(is_watched=True)
        self.accounts = RunAccounts(tenants=self.tenants, tiers=self.tiers, groups=self.groups, price=self.price)
        self.entries = []
        self.recorder = Recorder(self.scheduler, RunWatch(self.accounts, [self.entries.append, *self.judges()]))
        self.now = 0.0
        self.made = 0
        self.is_switched = False  # to another policy: what may be chosen, and what waits where, is not known any more
        self.same_instant = True
        self.cached_tokens = {}  # of each dispatched prompt, as the Scheduler believed
        self.recorder.load_changed([load(backend_id) for backend_id in BACKENDS], self.now)

    def judges(self):
        waits_for = {} if self.watched is None else self.watched.backend_ids
        any_request = self.policy in CHOOSE_AMONG_REQUESTS
        conservation = WorkConservation(self.accounts, self.scheduler, any_request=any_request, waits_for=waits_for)
        return [InFlightLimits(self.accounts), lambda entry: None if self.is_switched else conservation(entry)]

    # -- facts -----------------------------------------------------------------------------------------------

    def submit(self, tenant_id, *, prompt_tokens, output_tokens_max, shared_blocks=0, choices=1, **more):
        self.made += 1
        request = Request(
            id=f"r{self.made}",
            tenant_id=tenant_id,
            model="m",
            arrived_at=self.now,
            prompt_tokens=prompt_tokens + BLOCK_TOKENS * shared_blocks,
            output_tokens_max=output_tokens_max * choices,
            choices=choices,
            body_bytes=prompt_tokens,
            prefix=tuple(range(shared_blocks)),
            prefix_block_tokens=float(BLOCK_TOKENS),
            output_tokens_known=max(1, output_tokens_max * choices // 2),
            **more,
        )
        self.recorder.submit(request, self.now)

    def progress(self, accounts, *, tokens, prompt_error=0, cached_tokens=None):
        request = accounts.request
        prompt_tokens = max(1, request.prompt_tokens + prompt_error)
        cached_tokens = self.cached_tokens[request.id] if cached_tokens is None else cached_tokens
        output_tokens = min(accounts.output_tokens + tokens, request.output_tokens_max)
        self.recorder.tokens(
            request.id, Usage(prompt_tokens, min(cached_tokens, prompt_tokens), output_tokens), self.now
        )

    def interrupt(self, accounts, *, tokens=0, hold_s=0.0, cause=Cause.FAILED):
        """It stops after some more tokens."""
        output_tokens = min(accounts.output_tokens + tokens, accounts.request.output_tokens_max)
        usage = accounts.usage._replace(output_tokens=output_tokens)
        self.recorder.interrupted(accounts.request.id, usage, self.now, hold_s, cause)

    def end(self, accounts, outcome):
        self.recorder.finished(accounts.request.id, outcome, self.now)

    def restart(self, checkpoint, returning_s):
        """All that lives ends, and every tenant goes on from these counters, as in a new process."""
        for accounts in self.waiting():
            self.recorder.cancel(accounts.request.id, self.now)
        for accounts in self.in_flight():
            self.end(accounts, Outcome.CLIENT_DISCONNECTED)
        self.recorder.restored(checkpoint, self.now, returning_s)

    def poll(self):
        type(self).steps += 1
        preempted = False
        for action in self.recorder.poll(self.now):
            if isinstance(action, Dispatch):
                self.cached_tokens[action.request_id] = action.cached_tokens
                if self.watched is not None and not self.is_switched:
                    assert self.watched.backend_ids[action.request_id] == action.backend_id, "it waited for another"
            elif isinstance(action, Preempt) and int(action.request_id[1:]) % 3:
                accounts = self.accounts.requests[action.request_id]
                if accounts.output_tokens > accounts.output_before:
                    self.interrupt(accounts, cause=action.cause)
                else:
                    self.recorder.returned(action.request_id, self.now, cause=action.cause)
                preempted = True
            elif isinstance(action, Preempt):
                self.recorder.kept(action.request_id, self.now)
        wakeup = self.scheduler.next_wakeup()
        if preempted or (wakeup is not None and wakeup <= self.now):  # there is more to decide than one poll does
            self.poll()
            return
        self.accounts.compare(self.scheduler.snapshot(self.now))
        assert wakeup is not None or self.scheduler.snapshot(self.now).queued_requests == 0, "what waits has a deadline"
        # The replay does without these views: it decides the same if they change nothing. They take longer than all
        # else where hundreds wait, so a flood is viewed less often.
        waiting = {accounts.request.id for accounts in self.waiting()} - self.accounts.parked
        if len(waiting) <= MANY or type(self).steps % FLOOD_VIEWED_EVERY == 0:
            assert self.scheduler.wait_views(waiting, self.now).keys() == waiting

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def the_books_agree_after_every_instant(self):
        if not hasattr(self, "recorder"):
            return
        if self.same_instant:
            self.same_instant = False
        else:
            self.poll()

    def teardown(self):
        if not hasattr(self, "recorder"):
            return
        for request_id in sorted(self.accounts.parked):
            self.recorder.cancel(request_id, self.now)
        self.poll()
        for _ in range(STEPS_MAX):
            if not self.accounts.requests:
                break
            for accounts in self.in_flight():
                self.end(accounts, Outcome.COMPLETED)
            self.now += 1.0
            self.poll()
        self.accounts.conclude(self.scheduler.snapshot(self.now))
        assert list(replay(self.entries, self.make())) == []

    # -- what there is ---------------------------------------------------------------------------------------

    def in_flight(self):
        return [accounts for accounts in self.accounts.requests.values() if accounts.backend_id is not None]

    def untouched(self):
        """What has produced nothing since its last dispatch."""
        return [each for each in self.in_flight() if each.output_tokens == each.output_before]

    def resumable(self):
        return [accounts for accounts in self.in_flight() if accounts.request.is_resumable]

    def waiting(self):
        return [accounts for accounts in self.accounts.requests.values() if accounts.backend_id is None]


def load(backend_id, **known):
    return BackendLoad(backend_id, **{"kv_tokens_max": 400, "requests_running_max": 8, **known})
