"""What a follower says of the limits per minute: what the leader told last, asked for now and then."""

from types import SimpleNamespace

from gateway.cluster.follower.decided import Decided
from gateway.cluster.follower.remote_scheduler import LIMITS_S, LeadersLimits
from gateway.cluster.wire import LimitsOf
from policies.types import RateLimit, RateLimits


def left(count):
    return RateLimits(requests=RateLimit(60, count, 1.0))


class Follower:
    """Keeps its questions to the leader, and the functions that take the answers."""

    def __init__(self, leader=None):
        self.asked = []
        self.decided = Decided()
        member = SimpleNamespace(lead=SimpleNamespace(leader=leader), follower=SimpleNamespace(decided=self.decided))
        self.limits = LeadersLimits("p", member, lambda *question: self.asked.append(question))

    def says(self, now, key_id=""):
        return self.limits.rate_limits("t", now, key_id)

    def told(self, limits):
        """With a decision on a request, as the leader tells them."""
        self.decided.limited(SimpleNamespace(pool="p", request=SimpleNamespace(tenant_id="t", key_id="")), limits)


def test_it_asks_for_each_key_and_again_after_a_while():
    follower = Follower()
    for now, key_id in ((0.0, ""), (0.9 * LIMITS_S, ""), (0.9 * LIMITS_S, "k"), (LIMITS_S, "")):
        follower.says(now, key_id)
    assert [question[:2] for question in follower.asked] == [
        ("p", LimitsOf("t", "")), ("p", LimitsOf("t", "k")), ("p", LimitsOf("t", "")),
    ]  # fmt: skip


def test_the_answer_holds_until_the_leader_tells_others():
    follower = Follower()
    assert follower.says(0.0) == RateLimits()
    follower.asked[0][2](left(9))
    assert follower.says(0.1) == left(9)
    follower.told(left(8))
    assert follower.says(0.2) == left(8)
    follower.says(LIMITS_S)
    follower.asked[1][2](left(7))
    assert follower.says(LIMITS_S) == left(7)


def test_one_that_leads_asks_its_own_scheduler():
    tenants = SimpleNamespace(rate_limits=lambda of, _now: left(5) if of == ("t", "") else None)
    follower = Follower(SimpleNamespace(pools={"p": SimpleNamespace(tenants=tenants)}))
    assert follower.says(0.0) == left(5)
    assert not follower.asked
