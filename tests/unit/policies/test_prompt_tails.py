"""Sessions that only prompts tell: what is a next turn, what is not, and that no tenant gains or costs by it."""

import pytest

from policies.facts import Parked, Readmitted, SessionsRestored
from policies.sessions.checkpoint import SessionsCheckpoint
from policies.sessions.prompt_tails import BLOCKS_MIN, PromptTails
from policies.types import Request, SessionState, Tenant, Usage, Wait
from tests.unit.policies.test_session_gate import KV, TURN, Agents

SYSTEM = tuple(range(1, 11))  # blocks of a system prompt


@pytest.fixture
def tails():
    return PromptTails()


def prompt(*blocks, tokens=None, tenant="A", per_block=250.0):
    prefix = (*SYSTEM, *blocks)
    return Request(
        "r", tenant, "m", arrived_at=0.0, prompt_tokens=250 * len(prefix) if tokens is None else tokens,
        output_tokens_max=10, prefix=prefix, prefix_block_tokens=per_block,
    )  # fmt: skip


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


def test_an_edited_turn_is_of_its_session(tails):
    """Its client goes on from an earlier prompt than the last one."""
    tails.session_of(prompt(20))
    session = tails.session_of(prompt(20, 21))
    assert tails.session_of(prompt(20, 21, 22)) == session
    assert tails.session_of(prompt(20, 21, 99)) == session
    assert tails.session_of(prompt(20, 21, 22, 23)) == session


def test_another_branch_of_a_first_prompt_begins_anew(tails):
    tails.session_of(prompt(20))
    session = tails.session_of(prompt(20, 21))
    assert tails.session_of(prompt(20, 31)) is None
    assert tails.session_of(prompt(20, 31, 32)) not in {None, session}


def test_the_size_of_a_prompt_is_not_its_estimated_tokens(tails):
    """The same text is estimated anew after each answer."""
    tails.session_of(prompt(20, tokens=13_000, per_block=1_000.0))
    session = tails.session_of(prompt(20, 21, tokens=14_000, per_block=1_000.0))
    assert tails.session_of(prompt(20, 21, tokens=12_600, per_block=900.0)) == session
    assert tails.session_of(prompt(20, 21, tokens=12_500, per_block=900.0)) is None, "it is shorter"


def test_two_agents_with_one_first_prompt_have_two_sessions():
    """Also where what was known of the first one's beginning is gone."""
    tails = PromptTails(tenant_tails_max=4)
    tails.session_of(prompt())
    one = tails.session_of(prompt(*range(20, 22)))
    for end in range(23, 40):
        assert tails.session_of(prompt(*range(20, end))) == one
    tails.session_of(prompt())
    assert tails.session_of(prompt(50)) not in {None, one}


def test_tenants_share_no_prompts(tails):
    tails.session_of(prompt(20))
    assert tails.session_of(prompt(20, 21, tenant="B")) is None


def test_a_tenant_with_many_prompts_loses_its_own():
    tails = PromptTails(tenant_tails_max=64)
    tails.session_of(prompt(20, tenant="quiet"))
    for number in range(1_000):
        tails.session_of(prompt(1_000 + number, tenant="loud"))
    assert (len(tails._of["loud"]), tails._count) == (64, 65)
    assert tails.session_of(prompt(20, 21, tenant="quiet")) is not None
    tails.removed("loud")
    assert (tails._count, set(tails._of)) == (2, {"quiet"})


def test_beyond_all_tails_the_tenant_that_is_away_for_longest_loses_its_own():
    tails, steady = PromptTails(tails_max=64), []
    for number in range(300):
        tails.session_of(prompt(20, tenant=f"tenant-{number}"))
        steady.append(tails.session_of(prompt(*range(20, 22 + number // 10), tenant="steady")))
        assert tails._count == sum(map(len, tails._of.values())) <= 64
    assert all(tails._of.values())
    assert steady[:10] == [None] * 10
    assert len(set(steady[10:])) == 1, "one session, at each of its turns"


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


def full():
    """Three agents, each with a context of which two fit: the pool, the turns that run, and the one that is held."""
    pool = Agents()
    for number in range(1, 4):
        run(pool, f"{number}-1", of(number, 30))
        run(pool, f"{number}-2", of(number, 31))
    for number in range(1, 4):
        turn(pool, f"{number}-3", of(number, 32))
    ran = [each.request_id for each in pool.poll() + pool.poll()]
    (held,) = {"1-3", "2-3", "3-3"} - set(ran)
    return pool, ran, held


def as_it_came(pool, request_id, end=32):
    """A call of `full` as its client sent it, without the session that its prompt told."""
    return Request(
        request_id, "A", "m", arrived_at=pool.now, prompt_tokens=TURN, output_tokens_max=10,
        prefix=tuple(of(int(request_id[0]), end)), prefix_block_tokens=100.0,
    )  # fmt: skip


def test_sessions_that_prompts_tell_are_held():
    pool, ran, held = full()
    assert len(ran) == 2
    assert pool.waits(held) is Wait.SESSION
    sessions = pool.ledger.table.sessions("A")
    assert sum(each.context for each in sessions.values() if each.running) <= 0.7 * KV


def test_a_held_turn_that_is_readmitted_is_held():
    pool, _, held = full()
    pool.scheduler.told(Parked(pool.now, held))
    pool.scheduler.told(Readmitted(pool.now, as_it_came(pool, held)))
    assert not pool.poll()
    assert pool.waits(held) is Wait.SESSION


def test_a_new_leader_pauses_no_session_that_runs():
    pool, ran, held = full()
    new = Agents()
    told = SessionsCheckpoint(sessions=pool.ledger.table.changes(pool.now, 10), at=pool.now)
    new.scheduler.told(SessionsRestored(new.now, told))
    for request_id in ran:
        new.scheduler.adopted(as_it_came(new, request_id), "gpu0", Usage(TURN, 0, 0), new.now)
    new.scheduler.told(Readmitted(new.now, as_it_came(new, held), Usage(0, 0, 0)))
    for _ in range(30):
        new.now += 1.0
        new.poll()
    states = [(each.state, each.pauses) for each in new.ledger.table.sessions("A").values()]
    assert states.count((SessionState.RUNNING, 0)) >= 2


def test_a_first_turn_that_is_held_is_held_at_a_new_leader():
    """Its session is known by its prompt alone, and no turn of it has been answered."""
    pool = Agents()
    pool.ledger.table.changes(pool.now, 10)  # the checkpoint has begun
    run(pool, "3-1", of(3, 30))
    for number in range(1, 3):
        run(pool, f"{number}-1", of(number, 30))
        run(pool, f"{number}-2", of(number, 31))
    turn(pool, "1-3", of(1, 32))
    turn(pool, "2-3", of(2, 32))
    ran = [each.request_id for each in pool.poll() + pool.poll()]
    assert ran == ["1-3", "2-3"]
    turn(pool, "3-2", of(3, 31))
    assert not pool.poll()
    assert pool.waits("3-2") is Wait.SESSION
    new = Agents()
    told = SessionsCheckpoint(
        pool.ledger.table.changes(pool.now, 10), {"gpu0": pool.ledger.working_sets["gpu0"].eta}, at=pool.now
    )
    new.scheduler.told(SessionsRestored(new.now, told))
    for request_id in ran:
        new.scheduler.adopted(as_it_came(new, request_id), "gpu0", Usage(TURN, 0, 0), new.now)
    new.scheduler.told(Readmitted(new.now, as_it_came(new, "3-2", 31), Usage(0, 0, 0)))
    assert not new.poll()
    assert new.waits("3-2") is Wait.SESSION
    (session,) = [each for each in new.ledger.table.sessions("A").values() if each.held]
    assert (session.is_paused, session.goes_first) == (False, False), "it was never paused"


def test_a_rejected_turn_may_be_edited():
    pool = Agents(tenants=[Tenant("A", requests_per_minute_max=2)])
    run(pool, "1", of(1, 30))
    run(pool, "2", of(1, 31))
    (session,) = pool.ledger.table.sessions("A")
    turn(pool, "3", of(1, 33))
    assert set(pool.refused()) == {"3"}
    pool.now += 120
    turn(pool, "4", (*of(1, 32), 5_555))
    assert pool.dispatched() == ["4"]
    assert list(pool.ledger.table.sessions("A")[session].running) == ["4"]


def test_calls_of_unknown_tenants_leave_no_prompts():
    pool = Agents()
    pool.send("unknown", "r", TURN, output_max=10, prefix=tuple(of(1, 30)), prefix_block_tokens=100.0)
    assert set(pool.refused()) == {"r"}
    assert not pool.scheduler._sessions._prompt_tails._of


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
    new.scheduler.told(SessionsRestored(new.now, told))
    run(new, "third", of(1, 32))
    (session,) = new.ledger.table.sessions("A").values()
    assert (session.id, session.turns) == (next(iter(pool.ledger.table.sessions("A"))), 2)
