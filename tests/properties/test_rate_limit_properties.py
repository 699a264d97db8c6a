"""Whatever becomes of requests, a tenant's tokens of the minute are those reserved by what lives and used by what
has ended, and nothing stays reserved for what is gone.
"""

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import RateLimiter
from policies.prediction import TenantQuantile
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Outcome, Reject, Request, Tenant, Usage

LIMIT = 500
WAIT_S_MAX = 20.0

steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit", "progress", "finish", "come_back", "cancel", "spend", "wait"]),
        st.integers(0, 1_000),
        st.integers(0, 60),
        st.sampled_from(list(Outcome)),
    ),
    min_size=5,
    max_size=80,
)


class Course:
    """One tenant with a limit, driven at random; every booking is written down beside it."""

    def __init__(self) -> None:
        sizing = TenantQuantile(first_tokens=30)
        self.limiter = RateLimiter(sizing.predict)
        self.sizing = sizing
        self.scheduler = Scheduler(
            tenants=[Tenant("A", tokens_per_minute_max=LIMIT)],
            sizing=sizing,
            admission=[self.limiter],
            wait_s_max=WAIT_S_MAX,
        )
        self.scheduler.load_changed([BackendLoad("gpu", requests_running_max=3)], 0.0)
        self.now = 0.0
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, tuple[Request, int]] = {}  # with its output so far
        self.bookings: dict[str, list[tuple[float, int]]] = {}  # by request: when, how many tokens
        self.made = 0

    def step(self, kind: str, number: int, tokens: int, outcome: Outcome) -> None:
        getattr(self, kind)(number, tokens, outcome)
        self.poll()
        used = sum(amount for each in self.bookings.values() for at, amount in each if self.now - at <= 60.0)
        left = self.scheduler.rate_limits("A", self.now).tokens.remaining
        assert left == max(LIMIT - used, 0)
        assert self.limiter._reserved.keys() == self.waiting.keys() | self.running.keys()

    def submit(self, number, tokens, _outcome):
        self.made += 1
        request = Request(f"r{self.made}", "A", "m", self.now, 1 + number % 200, tokens)
        reserved = min(request.prompt_tokens + ceil(self.sizing.predict(request)), LIMIT)
        self.waiting[request.id] = request
        self.bookings[request.id] = [(self.now, reserved)]
        self.scheduler.submit(request, self.now)

    def progress(self, number, tokens, _outcome):
        if self.running:
            request, output = self.pick(self.running, number)
            self.running[request.id] = request, output + tokens
            self.scheduler.tokens(request.id, Usage(request.prompt_tokens, 0, output + tokens), self.now)

    def finish(self, number, _tokens, outcome):
        if self.running:
            request, output = self.pick(self.running, number)
            del self.running[request.id]
            is_served = outcome is not Outcome.BACKEND_FAILED or output
            self.over(request.id, request.prompt_tokens + output if is_served else 0)
            self.scheduler.finished(request.id, outcome, self.now)

    def over(self, request_id: str, used: int) -> None:
        ((at, reserved),) = self.bookings[request_id]
        self.bookings[request_id] = [(at, min(used, reserved)), (self.now, max(used - reserved, 0))]

    def come_back(self, number, _tokens, _outcome):
        untouched = {key: pair for key, pair in self.running.items() if not pair[1]}
        if untouched:
            request, _ = self.pick(untouched, number)
            del self.running[request.id]
            self.waiting[request.id] = request
            self.scheduler.returned(request.id, self.now, 1.0)

    def cancel(self, number, _tokens, _outcome):
        if self.waiting:
            request = self.pick(self.waiting, number)
            del self.waiting[request.id]
            self.over(request.id, 0)
            self.scheduler.cancel(request.id, self.now)

    def spend(self, number, tokens, _outcome):
        self.made += 1
        self.bookings[f"spent {self.made}"] = [(self.now, number % 50 + tokens)]
        self.scheduler.spent("A", Usage(number % 50, 0, tokens), self.now)

    def wait(self, number, _tokens, _outcome):
        self.now += number / 20.0

    def poll(self):
        for action in self.scheduler.poll(self.now):
            request = self.waiting.pop(action.request_id)
            if isinstance(action, Dispatch):
                self.running[request.id] = request, 0
            else:
                assert isinstance(action, Reject)
                self.bookings[request.id] = []

    @staticmethod
    def pick(table, number):
        return table[sorted(table)[number % len(table)]]


@given(history=steps)
@settings(deadline=None)
def test_tokens_of_the_minute_are_what_is_reserved_by_the_living_and_used_by_the_ended(history):
    course = Course()
    for step in history:
        course.step(*step)
    for request_id in list(course.waiting):
        course.scheduler.cancel(request_id, course.now)
    for request_id in list(course.running):
        course.scheduler.finished(request_id, Outcome.CLIENT_DISCONNECTED, course.now)
    assert course.limiter._reserved == {}
    assert course.scheduler.rate_limits("A", course.now + 61.0).tokens.remaining == LIMIT
