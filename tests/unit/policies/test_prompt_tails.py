"""Sessions that only prompts tell: what is a next turn, what is not, and that no tenant gains or costs by it."""

import pytest

from policies.sessions.checkpoint import SessionsCheckpoint
from policies.sessions.prompt_tails import BLOCKS_MIN, DROPPED_RATIO, PromptTails
from policies.types import Request, SessionState
from tests.unit.policies.test_session_gate import KV, TURN, Agents

SYSTEM = tuple(range(1, 11))  # blocks of a system prompt


@pytest.fixture
def tails():
    return PromptTails()


def prompt(*blocks, tokens=None, tenant="A"):
    prefix = (*SYSTEM, *blocks)
    prompt_tokens = 250 * len(prefix) if tokens is None else tokens
    return Request("r", tenant, "m", arrived_at=0.0, prompt_tokens=prompt_tokens, output_tokens_max=10, prefix=prefix)


def test_a_longer_prompt_is_the_next_turn(tails):
    assert tails.session_of(prompt(20)) is None, "nothing tells that a first call is one of an agent"
    second = tails.session_of(prompt(20, 21, 22))
    assert second is not None
    assert [tails.session_of(prompt(20, 21, 22, *range(23, end))) for end in (24, 30, 31)] == [second] * 3


def test_a_turn_may_be_longer_by_less_than_a_block_or_be_sent_again(tails):
    tails.session_of(prompt(20))
    session = tails.session_of(prompt(20, 21, tokens=3_000))
    assert tails.session_of(prompt(20, 21, tokens=3_100)) == session
    assert tails.session_of(prompt(20, 21, tokens=3_100)) == session, "sent again"
    assert tails.session_of(prompt(20, 21, tokens=3_050)) is None, "shorter than what the session has"
    assert tails.session_of(prompt(20, 21, 22)) == session


def test_chats_with_one_system_prompt_are_no_session(tails):
    """Whose questions fill no block, or some."""
    assert [tails.session_of(prompt(tokens=2_500 + question)) for question in (10, 20, 5, 30)] == [None] * 4
    taken = tails.session_of(prompt(20))
    assert taken is not None, "one may seem to go on from another"
    assert [tails.session_of(prompt(number)) for number in range(30, 50)] == [None] * 20
    assert tails.session_of(prompt(35, 135)) not in {None, taken}, "but each that goes on is a session of its own"


def test_a_branch_begins_anew(tails):
    tails.session_of(prompt(20))
    session = tails.session_of(prompt(20, 21))
    assert tails.session_of(prompt(20, 21, 22)) == session
    assert tails.session_of(prompt(20, 21, 99)) is None
    other = tails.session_of(prompt(20, 21, 99, 100))
    assert other not in {None, session}
    assert tails.session_of(prompt(20, 21, 22, 23)) == session


def test_tenants_share_no_prompts(tails):
    tails.session_of(prompt(20))
    assert tails.session_of(prompt(20, 21, tenant="B")) is None


def test_a_tenant_with_many_prompts_loses_its_own():
    tails = PromptTails(tails_max=64)
    tails.session_of(prompt(20, tenant="quiet"))
    for number in range(1_000):
        tails.session_of(prompt(1_000 + number, tenant="loud"))
        assert tails._count == sum(map(len, tails._of.values())) <= 64
    assert len(tails._of["loud"]) > 64 - 64 // DROPPED_RATIO - 2, "and as few at once as that says"
    assert tails.session_of(prompt(20, 21, tenant="quiet")) is not None
    tails.removed("loud")
    assert (tails._count, set(tails._of)) == (2, {"quiet"})


def test_a_tenant_for_each_call_keeps_the_number_bounded():
    tails = PromptTails(tails_max=64)
    for number in range(300):
        tails.session_of(prompt(20, tenant=f"tenant-{number}"))
    assert tails._count == len(tails._of) == 64


# -- in a Scheduler ---------------------------------------------------------------------------------------------------


def turn(pool, request_id, blocks, prompt_tokens=TURN):
    pool.send("A", request_id, prompt_tokens, output_max=10, prefix=tuple(blocks), prefix_block_tokens=100.0)


def run(pool, request_id, blocks):
    turn(pool, request_id, blocks)
    pool.poll()
    pool.report(request_id, TURN, 5)
    pool.end(request_id)


def of(agent, end):
    return range(100 * agent, 100 * agent + end)


def test_sessions_that_prompts_tell_are_held():
    """Each of three agents has a context of which two fit."""
    pool = Agents()
    for number in range(1, 4):
        run(pool, f"{number}-1", of(number, 30))
        run(pool, f"{number}-2", of(number, 31))
    for number in range(1, 4):
        turn(pool, f"{number}-3", of(number, 32))
    assert len(pool.poll() + pool.poll()) == 2
    sessions = pool.ledger.table.sessions("A")
    assert sorted(each.state for each in sessions.values()) == sorted([SessionState.RUNNING] * 2 + [SessionState.HELD])
    assert sum(each.context for each in sessions.values() if each.running) <= 0.7 * KV


def test_a_short_prompt_tells_no_session():
    pool = Agents()
    for end in range(1, BLOCKS_MIN):
        run(pool, f"turn-{end}", of(1, end))
    assert not pool.ledger.table.sessions("A")


def test_a_name_counts_before_the_prompt():
    pool = Agents()
    run(pool, "first", of(1, 30))
    pool.run("named", "second", prefix=tuple(of(1, 31)), prefix_block_tokens=100.0)
    assert list(pool.ledger.table.sessions("A")) == ["named"]


def test_a_removed_tenant_leaves_no_prompts():
    pool = Agents()
    run(pool, "first", of(1, 30))
    pool.change(removed=["A"])
    assert not pool.scheduler._sessions._prompt_tails._of


def test_a_new_leader_goes_on_with_them():
    pool, new = Agents(), Agents()
    run(pool, "first", of(1, 30))
    run(pool, "second", of(1, 31))
    told = SessionsCheckpoint(sessions=pool.ledger.table.changes(pool.now, 10), at=pool.now)
    new.scheduler.sessions_restored(told, new.now)
    run(new, "third", of(1, 32))
    (session,) = new.ledger.table.sessions("A").values()
    assert (session.id, session.turns) == (next(iter(pool.ledger.table.sessions("A"))), 2)
