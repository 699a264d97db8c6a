"""No caller of the admin API makes changes faster than its rate, and a group's administrators have one together."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from gateway.admin.access.change_rate import RATES, ChangeRate
from gateway.admin.problems import AdminProblem
from gateway.admin.routes import Caller, Role

CHANGE, READ = SimpleNamespace(changes=True), SimpleNamespace(changes=False)
RED = [Caller(f"red-{number}", Role.GROUP_ADMIN, "red") for number in range(2)]
BURST, PER_S = RATES[True]


def made(rate, caller, count, now=0.0):
    """How many of so many changes are let through."""
    allowed = 0
    for _ in range(count):
        with suppress(AdminProblem):
            rate.count(CHANGE, caller, now)
            allowed += 1
    return allowed


def test_after_a_burst_changes_come_at_the_rate():
    rate = ChangeRate()
    assert made(rate, RED[0], 3_000) == BURST
    assert made(rate, RED[0], 3_000, now=10.0) == 10 * PER_S


def test_the_administrators_of_a_group_have_one_rate_and_leave_others_theirs():
    rate = ChangeRate()
    assert made(rate, RED[0], 3_000) == BURST
    assert made(rate, RED[1], 10) == 0
    assert made(rate, Caller("blue", Role.GROUP_ADMIN, "blue"), 10) == 10
    assert made(rate, Caller("red", Role.OPERATOR), 500) == 500, "a program of an operator, named like the group"


def test_reads_are_not_counted():
    rate = ChangeRate()
    for _ in range(3_000):
        rate.count(READ, RED[0], 0.0)
    assert made(rate, RED[0], 3_000) == BURST


def test_the_answer_says_when_the_next_change_may_be_made():
    rate = ChangeRate()
    made(rate, RED[0], 3_000)
    with pytest.raises(AdminProblem) as raised:
        rate.count(CHANGE, RED[0], 0.1)
    assert (raised.value.status, raised.value.headers["Retry-After"]) == (429, "1")
