"""Every kind of limit per minute has its setting, its window, its record, its headers and its message, by its name."""

from dataclasses import fields

import pytest

from gateway.api.errors import PROBLEM_OF_REASON, problem_of
from gateway.cluster.leader.kept_windows import KeptWindows
from gateway.cluster.records import compose, part_of, window_records
from gateway.config.sections import GroupSection, LimitedSection, TenantSection
from gateway.http.answer_headers import rate_limit_headers
from policies.admission.rate_limit import RateLimiter
from policies.admission.rate_window import Booked, MinuteCheckpoint
from policies.types import Group, KeyLimits, LimitKind, RateLimit, RateLimits, Reason, ReplicaShare, Tenant

KINDS = [LimitKind(each.name) for each in fields(RateLimits)]
EMPTY = dict.fromkeys(KINDS, ())


@pytest.mark.parametrize("kind", KINDS)
def test_a_tenant_a_group_and_a_key_may_have_it(kind):
    name = f"{kind}_per_minute_max"
    assert all(name in section.model_fields for section in (TenantSection, GroupSection, LimitedSection))
    assert not Tenant("a").has_rate_limit
    for limited in (Tenant("a", **{name: 1}), Group("g", **{name: 1}), KeyLimits(**{name: 1})):
        assert limited.has_rate_limit
    assert Tenant("a", **{name: 1}).may_meet_rate_limit("")


@pytest.mark.parametrize("kind", KINDS)
def test_its_bookings_go_from_one_scheduler_to_the_next(kind):
    booked = MinuteCheckpoint(**EMPTY | {kind: (Booked(1.0, 4),)})
    records = window_records("p", {"a": booked}, ["a"], at=10.0)
    read = compose(records, 20.0).pools["p"].windows["a"]
    assert read == MinuteCheckpoint(**EMPTY | {kind: (Booked(11.0, 4),)})
    kept = KeptWindows({"a": read}, since=20.0).take(["a"], now=25.0)["a"]
    assert kept == MinuteCheckpoint(**EMPTY | {kind: (Booked(16.0, 4),)})
    assert part_of(kept, ReplicaShare(2, 0)) == MinuteCheckpoint(**EMPTY | {kind: (Booked(16.0, 2),)})
    rule = RateLimiter(lambda _: 0.0)
    rule.restore_windows({"a": kept}, now=30.0)
    assert rule.windows(30.0) == {"a": kept}
    assert getattr(rule.limits(Tenant("a", **{f"{kind}_per_minute_max": 5}), "", 30.0), kind) == RateLimit(5, 1, 44.0)


@pytest.mark.parametrize("kind", KINDS)
def test_its_client_is_told_of_it(kind):
    limits = RateLimits(**{kind: RateLimit(5, 1, 44.0)})
    assert limits.by_kind() == {kind: RateLimit(5, 1, 44.0)}
    assert rate_limit_headers(limits) == {
        f"x-ratelimit-limit-{kind}": "5",
        f"x-ratelimit-remaining-{kind}": "1",
        f"x-ratelimit-reset-{kind}": "44s",
    }
    problem = problem_of(Reason.RATE_LIMITED, 44.0, kind)
    assert problem.message == f"You are over your limit of {kind} per minute."
    assert (problem.status, problem.headers["retry-after"], problem.limit) == (429, "44", kind)


def test_a_prompt_over_a_limit_has_the_message_of_its_reason():
    problem = problem_of(Reason.REQUEST_TOO_LARGE, 60.0, LimitKind.TOKENS)
    assert problem.message == PROBLEM_OF_REASON[Reason.REQUEST_TOO_LARGE].message
