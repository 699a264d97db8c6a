"""What one replica may let in of a limit that others share, by what they have said."""

from policies.admission import RateLimiter, SharedRateLimits
from policies.queues import PoolQueues
from policies.types import LimitKind, RateWindowReport, Request, Tenant

NOW = 100.0


class Replica:
    """One of `replicas`, named "b"; a limit of requests."""

    def __init__(self, limit, replicas=2):
        self.sharing = SharedRateLimits()
        self.sharing.replicas = replicas
        self.limiter = RateLimiter(lambda _: 0.0, sharing=self.sharing)
        self.tenant = Tenant("A", requests_per_minute_max=limit)
        self.now = NOW
        self.made = 0

    def ask(self):
        self.made += 1
        request = Request(f"r{self.made}", "A", "m", self.now, 1, 1)
        refusal = self.limiter.refuse(request, self.tenant, PoolQueues(), self.now)
        if refusal is None:
            self.limiter.admitted(request, self.tenant, self.now)
        return refusal

    def lets_in(self, most=1_000):
        """How many, of so many at once."""
        return sum(self.ask() is None for _ in range(most))

    def hears(self, said=None, **others):
        words = {name: {"A": word} for name, word in others.items()}
        return self.sharing.propose("b", words, self.now)

    def meets(self, **others):
        said = self.hears(**others)
        self.sharing.agreed()
        return said.get("A")

    def standing(self):
        return self.limiter.limits(self.tenant, self.now).requests


def said(used, claims=0.0, *, asks=True):
    return RateWindowReport((float(used), 0.0), (float(claims), 0.0), asks)


def test_an_untouched_limit_may_be_used_in_equal_parts_before_anybody_has_met():
    assert Replica(30, replicas=3).lets_in() == 10


def test_what_others_have_used_and_claimed_is_left_to_them():
    replica = Replica(30)
    replica.meets(a=said(10, 12))
    assert replica.lets_in() == 4, "half of what nobody has claimed"


def test_who_is_asked_claims_an_equal_part_of_what_is_left_with_the_others_who_are():
    replica = Replica(100)
    replica.ask()
    mine = replica.meets(a=said(9, 30))
    assert (mine.used, mine.asks) == ((1.0, 0.0), True)
    assert mine.claims[0] == 45.0
    assert replica.lets_in() == 45


def test_a_claim_is_no_more_than_others_have_left():
    replica = Replica(100)
    replica.ask()
    assert replica.meets(a=said(9, 80)).claims[0] == 10.0


def test_who_was_not_asked_for_a_while_leaves_its_part_to_the_others():
    replica = Replica(100)
    replica.ask()
    assert replica.meets(a=said(9, 30)).claims[0] > 0
    replica.now += 5.0
    mine = replica.meets(a=said(9, 30))
    assert (mine.claims, mine.asks) == ((0.0, 0.0), False)
    replica.now += 60.0
    assert replica.meets(a=said(9, 30)) is None, "there is nothing to say of it any more"


def test_until_a_claim_is_agreed_no_more_is_let_in_than_with_it_and_without():
    replica = Replica(100)
    replica.ask()
    replica.meets()
    replica.meets()
    replica.hears(a=said(9, 80))
    assert replica.lets_in() == 10
    replica.sharing.agreed()
    assert replica.lets_in() == 0
    replica.hears(a=said(9, 0))
    assert replica.lets_in() == 0, "what is more counts when it is agreed"
    replica.sharing.agreed()
    assert replica.lets_in() > 0


def test_the_last_seat_is_for_who_has_let_in_the_least():
    for theirs, is_let_in in ((5, True), (3, False)):
        replica = Replica(4 + theirs + 1)
        replica.lets_in(4)
        replica.meets(a=said(theirs, 0.5))
        replica.now += 1.0
        assert replica.lets_in() == is_let_in, theirs


def test_a_refusal_says_when_what_others_have_used_will_have_left():
    replica = Replica(10)
    replica.meets(a=said(20))
    assert replica.ask().retry_after_s == 60 * 11 / 20
    replica = Replica(10)
    replica.meets(a=said(2, 8))
    assert replica.ask() is None
    assert replica.ask().retry_after_s == 1.0, "there is room, but others have claimed it"


def test_what_is_left_is_told_with_the_others_in_it():
    replica = Replica(10)
    replica.ask()
    replica.meets(a=said(4))
    limit = replica.limiter.limits(replica.tenant, replica.now).requests
    assert (limit.remaining, limit.reset_s) == (5, 60.0)


def test_what_remains_of_a_limit_says_how_much_of_it_this_replica_may_let_in():
    replica = Replica(30, replicas=3)
    assert replica.standing().remaining_here is None, "nobody was asked yet"
    replica.ask()
    replica.hears(a=said(0), c=said(0))
    assert (replica.standing().remaining, replica.standing().remaining_here) == (29, 9)
    replica.lets_in()
    standing, refusal = replica.standing(), replica.ask()
    assert (refusal.limit, refusal.retry_after_s) == (LimitKind.REQUESTS, 1.0)
    assert (standing.remaining, standing.remaining_here) == (20, 0)


def test_a_replica_that_is_alone_may_let_in_all_that_remains():
    replica = Replica(30, replicas=1)
    replica.ask()
    assert (replica.standing().remaining, replica.standing().remaining_here) == (29, None)


def test_of_two_limits_the_one_that_takes_longer_is_named():
    limiter, tenant = RateLimiter(lambda _: 0.0), Tenant("A", requests_per_minute_max=2, tokens_per_minute_max=10)
    for now, prompt_tokens in ((0.0, 1), (30.0, 9)):
        limiter.admitted(Request(f"r{now}", "A", "m", now, prompt_tokens, 1), tenant, now)
    refusals = {
        tokens: limiter.refuse(Request(f"q{tokens}", "A", "m", 40.0, tokens, 1), tenant, PoolQueues(), 40.0)
        for tokens in (1, 9, 11)
    }
    assert {tokens: refusal.limit for tokens, refusal in refusals.items()} == {
        1: LimitKind.REQUESTS, 9: LimitKind.TOKENS, 11: LimitKind.TOKENS,
    }  # fmt: skip
