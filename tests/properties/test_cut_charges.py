"""However often and wherever a request is cut, it is charged as if it had run through, by every policy and price."""

from functools import partial

import pytest
from facts import PARAMETERS
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.accounts.cost import PRICES
from policies.facts import Parked, Readmitted
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Cause, Dispatch, Outcome, Request, Tenant, Usage
from tests.examples import examples

BACKENDS = (BackendLoad("x", requests_running_max=2), BackendLoad("y", requests_running_max=2))
CUTS = ("fails", "is refused", "is parked", "moves while it waits", "moves while it runs", "is preempted")

cuts = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.sampled_from(CUTS)), max_size=5)


class Answer:
    """One request, from one scheduler to the next; `told` is what the present one was told last."""

    def __init__(self, policy, price, placement, request):
        self.make = partial(
            Scheduler,
            tenants=[Tenant(request.tenant_id)],
            fairness=partial(FAIRNESS[policy], **PARAMETERS.get(policy, {})),
            price=price,
            share_ratio_max=1.0,
        )
        self.placement = placement
        self.request = request
        self.schedulers = []
        self.take_over()
        self.scheduler.submit(request, 0.0)
        self.dispatch()

    def take_over(self):
        """Another scheduler decides from now on."""
        self.scheduler = self.make(placement=PLACEMENT[self.placement](**PARAMETERS.get(self.placement, {})))
        self.schedulers.append(self.scheduler)
        self.scheduler.load_changed(BACKENDS, 0.0)

    def dispatch(self):
        (action,) = self.scheduler.poll(0.0)
        assert isinstance(action, Dispatch)
        self.backend_id = action.backend_id
        return action

    def cut(self, told, usage, how):
        """After `usage`, of which the scheduler knew `told`."""
        id_ = self.request.id
        self.scheduler.tokens(id_, told, 0.0)
        if how == "moves while it runs":
            self.take_over()
            self.scheduler.adopted(self.request, self.backend_id, told, 0.0)
            self.scheduler.interrupted(id_, usage, 0.0)
        elif how == "moves while it waits":
            self.take_over()
            self.scheduler.told(Readmitted(0.0, self.request, told, usage))
        else:
            cause = Cause.PREEMPTED if how == "is preempted" else Cause.FAILED
            self.scheduler.interrupted(id_, usage, 0.0, cause=cause)
        if how == "is parked":
            self.scheduler.told(Parked(0.0, id_))
            self.scheduler.told(Readmitted(0.0, self.request))
        if how == "is refused":
            self.dispatch()
            self.scheduler.returned(id_, 0.0)
        self.dispatch()

    def end(self, usage):
        self.scheduler.finished(self.request.id, Outcome.COMPLETED, 0.0, usage=usage)
        snapshots = [each.snapshot(0.0) for each in self.schedulers]
        assert all(each.queued_requests == 0 for each in snapshots)
        assert snapshots[-1].in_flight_requests == 0
        views = [each.tenants[self.request.tenant_id] for each in snapshots]
        assert views[-1].rank == pytest.approx(views[-1].counter), "nothing is outstanding"
        used = [sum(parts) for parts in zip(*(each.used for each in views), strict=True)]
        return sum(each.service for each in views), used


@pytest.mark.interpreted
@pytest.mark.parametrize("policy", sorted(FAIRNESS))
@settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)
@given(
    prompt_tokens=st.integers(1, 200),
    cached=st.floats(0.0, 1.0),
    prompt_error=st.integers(0, 9),
    cuts=cuts,
    last=st.integers(1, 50),
    price=st.sampled_from(sorted(PRICES)),
    placement=st.sampled_from(sorted(PLACEMENT)),
)
def test_a_request_that_is_cut_costs_what_it_costs_uncut(
    policy, *, prompt_tokens, cached, prompt_error, cuts, last, price, placement
):
    request = Request("r", "A", "m", 0.0, prompt_tokens, 1_000, output_tokens_known=60, is_resumable=True)
    reported, output = prompt_tokens + prompt_error, 0
    used = partial(Usage, reported, int(cached * reported))
    answer = Answer(policy, PRICES[price](), placement, request)
    for untold, told, how in cuts:
        answer.cut(used(output + told), used(output + told + untold), how)
        output += told + untold
    service, tokens = answer.end(used(output + last))
    whole_service, whole_tokens = Answer(policy, PRICES[price](), placement, request).end(used(output + last))
    assert tokens == whole_tokens
    assert service == pytest.approx(whole_service)
