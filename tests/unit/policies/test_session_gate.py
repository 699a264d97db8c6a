"""Sessions in a Scheduler: what is held, where it goes, and that nothing outlives its backend, tenant or leader."""

from dataclasses import replace

import pytest

from policies.facts import FACTS, Parked, Readmitted
from policies.placement import ARRIVAL_PLACEMENT, PLACEMENT
from policies.pool.session_gate import SessionRules
from policies.types import (
    BackendLoad,
    Dispatch,
    Group,
    KeyLimits,
    Reason,
    Request,
    SessionState,
    Tenant,
    Tier,
    Usage,
    Wait,
)
from tests.held_sessions import AlwaysEngaged
from tests.unit.policies.pools import Pool

KV = 10_000
TURN = 3_000  # of which two fit into 0.7 of the pool


class Agents(Pool):
    """A pool that always holds sessions."""

    def __init__(self, *, backends: int = 1, wait_s_max: float = 60.0, sessions_max: int = 512, **options):
        self.loads = [
            BackendLoad(f"gpu{number}", kv_tokens_max=KV, requests_running_max=8) for number in range(backends)
        ]
        rules = SessionRules(wait_s_max=wait_s_max, sessions_max=sessions_max, eta=0.7, quantum=1e9)
        super().__init__(loads=self.loads, sessions=rules, **options)
        self.ledger = self.scheduler._sessions.ledger
        self.ledger.engagement = AlwaysEngaged()

    def measure(self, *loads: BackendLoad) -> None:
        super().measure(*loads)
        for backend in self.scheduler._sessions.ledger.working_sets.values():
            backend.use.token_s = 1e-3

    def turn(self, session: str, request_id: str, prompt: int = TURN, *, tenant: str = "A", **fields) -> None:
        self.send(tenant, request_id, prompt, output_max=10, program_id=session, **fields)

    def run(self, session: str, request_id: str, prompt: int = TURN, *, cached: int = 0, **fields) -> str:
        """One turn, from its arrival to its end. Returns its backend."""
        self.turn(session, request_id, prompt, **fields)
        (dispatch,) = self.poll()
        self.report(request_id, prompt, 5, cached)
        self.end(request_id)
        return dispatch.backend_id

    def waits(self, request_id: str) -> Wait | None:
        return self.scheduler.waits_for(request_id, self.now)

    def state(self, session: str, tenant: str = "A") -> SessionState:
        return self.ledger.table.sessions(tenant)[session].state


@pytest.fixture
def full() -> Agents:
    """Two idle sessions fill the pool."""
    pool = Agents()
    pool.run("one", "one-1")
    pool.run("two", "two-1")
    return pool


def test_a_session_that_does_not_fit_waits_and_is_said_to(full):
    full.turn("new", "n")
    assert full.poll() == []
    assert full.waits("n") is Wait.SESSION
    view = full.scheduler.wait_views(["n"], full.now)["n"]
    assert (view.reason, view.start_s) == (Wait.SESSION, 60.0)
    assert full.scheduler.next_wakeup() <= full.now + 1.0
    full.turn("one", "one-2")
    full.send("B", "chat")
    assert set(full.dispatched()) == {"one-2", "chat"}, "it holds up nothing else"


@pytest.mark.parametrize(("rules", "wait_s"), [(SessionRules(), 20.0), (SessionRules(wait_s_max=7.0), 7.0)])
def test_a_session_waits_for_half_of_the_queue_timeout_unless_a_rule_says_how_long(rules, wait_s):
    pool = Pool(loads=[BackendLoad("gpu0", kv_tokens_max=KV, requests_running_max=8)], sessions=rules, wait_s_max=40.0)
    pool.scheduler._sessions.ledger.engagement = AlwaysEngaged()
    for request_id in ("a", "b", "c", "d"):
        pool.send("A", request_id, TURN, output_max=10, program_id=request_id)
    pool.dispatched()
    assert pool.scheduler.wait_views(["d"], pool.now)["d"].start_s == wait_s


def test_the_end_of_a_session_makes_room(full):
    full.turn("new", "n")
    assert full.poll() == []
    full.turn("one", "one-2", ends_session=True)
    assert full.dispatched() == ["one-2"]
    full.report("one-2", TURN, 1)
    full.end("one-2")
    assert full.dispatched() == ["n"]


def test_what_has_waited_as_long_as_any_should_gets_room(full):
    full.ledger.working_sets["gpu0"].use.token_s = 1e3  # so no pause pays
    full.turn("new", "n")
    assert full.poll() == []
    full.now = 53.0
    assert full.poll() == []
    full.now = full.scheduler.next_wakeup()
    assert full.now == 54.0, "before the bound of 60 s, as what runs may have to end first"
    assert full.dispatched() == ["n"]


def test_a_turn_goes_to_the_backend_of_its_session_and_waits_for_it():
    pool = Agents(backends=2)
    home = pool.run("one", "one-1")
    for number in range(8):
        pool.send("B", f"b{number}", backend_ids=frozenset({home}))
    assert len(pool.dispatched()) == 8
    pool.turn("one", "one-2")
    assert pool.poll() == []
    assert pool.waits("one-2") is Wait.NO_ROOM
    pool.end("b0")
    assert pool.placed() == {"one-2": home}


def test_where_nothing_is_held_a_turn_goes_to_the_backend_of_its_session_if_that_has_room():
    pool = Agents(backends=2)
    pool.ledger.engagement.is_on = False
    home = pool.run("one", "one-1")
    pool.send("B", "b", backend_ids=frozenset({home}))
    pool.dispatched()
    assert pool.run("one", "one-2") == home, "the other one is less full"
    for number in range(7):
        pool.send("B", f"b{number}", backend_ids=frozenset({home}))
    pool.dispatched()
    assert pool.run("one", "one-3") != home, "it does not wait for it"


def test_a_turn_that_waits_for_the_backend_of_its_session_goes_elsewhere_when_that_is_gone_or_it_has_waited_long():
    for event in ("gone", "unavailable", "long"):
        pool = Agents(backends=2)
        home = pool.run("one", "one-1")
        other = next(each for each in pool.loads if each.backend_id != home)
        for number in range(8):
            pool.send("B", f"b{number}", backend_ids=frozenset({home}))
        assert len(pool.dispatched()) == 8
        pool.turn("one", "one-2")
        assert pool.poll() == []
        if event == "gone":
            pool.measure(other)
        elif event == "unavailable":
            pool.scheduler.measured(BackendLoad(home, available=False, kv_tokens_max=KV), pool.now)
        else:
            pool.now = 60.0
        assert pool.placed() == {"one-2": other.backend_id}, event
        pool.report("one-2", TURN, 1)
        pool.end("one-2")
        assert pool.ledger.table.sessions("A")["one"].backend_id == other.backend_id


@pytest.mark.parametrize("placement", sorted(ARRIVAL_PLACEMENT))
def test_a_turn_that_waits_for_a_backend_that_was_replaced_or_removed_is_placed_anew_when_another_comes(placement):
    for left in ([], ["new"]):
        pool = Agents(placement=ARRIVAL_PLACEMENT[placement]())
        pool.run("one", "one-1")
        pool.turn("one", "one-2")  # it is to go to the backend of its session
        pool.measure(*[replace(pool.loads[0], backend_id=each) for each in left])
        pool.measure(replace(pool.loads[0], backend_id="new"))
        (dispatch,) = pool.poll()
        assert (dispatch.request_id, dispatch.backend_id) == ("one-2", "new")


def test_a_turn_whose_backend_does_not_take_it_may_go_to_any():
    pool = Agents(backends=2)
    home = pool.run("one", "one-1")
    pool.turn("one", "one-2")
    assert pool.placed() == {"one-2": home}
    pool.come_back("one-2", hold_s=5.0)
    (other,) = pool.placed().values()
    assert other != home


def test_a_sub_agent_goes_to_its_parent_if_there_is_room():
    pool = Agents(backends=3)
    pool.run("one", "one-1", 1000)
    home = pool.run("parent", "p-1", 500)
    pool.turn("child", "c-1", 500, parent_id="parent")
    pool.ledger.held.tried.clear()
    assert pool.placed() == {"c-1": home}


def test_what_a_pause_made_a_backend_compute_again_is_not_charged(full):
    full.turn("new", "n")
    full.now = 60.0
    assert full.dispatched() == ["n"]
    paused = next(each for each in ("one", "two") if full.state(each) is SessionState.PAUSED)
    full.report("n", TURN, 1)
    full.end("n")
    before = full.service("A")
    full.turn(paused, "again")
    full.now = 120.0
    assert full.dispatched() == ["again"]
    full.report("again", TURN, 5, cached=0)
    full.end("again")
    assert full.tenant("A").used.cached_tokens == TURN
    assert full.service("A") - before == TURN * 1 + 5 * 2, "by this price cached tokens cost as much"


def test_held_turns_of_a_tenant_that_is_removed_are_rejected_and_its_sessions_forgotten(full):
    full.turn("new", "n")
    full.poll()
    full.change(removed=["A"])
    assert full.refused() == {"n": Reason.TENANT_UNKNOWN}
    assert not full.ledger.table.tenants
    assert not full.ledger.held


def test_a_turn_that_runs_when_its_tenant_is_removed_leaves_nothing():
    pool = Agents()
    pool.turn("one", "one-1")
    assert pool.dispatched() == ["one-1"]
    pool.change(removed=["A"])
    pool.report("one-1", TURN, 1)
    pool.end("one-1")
    assert not pool.ledger.table.tenants
    assert pool.ledger.working_sets["gpu0"].tokens == 0


def test_a_last_turn_that_runs_when_its_tenant_is_removed_leaves_nothing():
    pool = Agents()
    pool.turn("one", "one-1", ends_session=True)
    assert pool.dispatched() == ["one-1"]
    pool.change(removed=["A"])
    pool.report("one-1", TURN, 1)
    pool.end("one-1")
    assert not pool.ledger.table.tenants


def test_a_backend_that_leaves_and_returns_while_turns_run_runs_nothing_after_them():
    pool = Agents()
    pool.turn("one", "one-1")
    pool.send("B", "other", 100, output_max=10)
    assert len(pool.poll()) == 2
    pool.measure(BackendLoad("another", kv_tokens_max=KV, requests_running_max=8))
    pool.measure(*pool.loads)
    pool.report("one-1", TURN, 5)
    pool.end("one-1")
    pool.end("other")
    assert pool.ledger.working_sets["gpu0"].use.running == 0


def test_sessions_that_were_held_beyond_what_is_known_are_forgotten():
    pool = Agents(sessions_max=4)
    for number in range(20):
        pool.turn(f"session-{number}", f"held-{number}")
    for number in range(20):
        pool.scheduler.cancel(f"held-{number}", pool.now)
    pool.turn("new", "new-1")
    assert len(pool.ledger.table.sessions("A")) == 4


def test_of_several_choices_one_is_the_context():
    """The third prompt goes on from 1,200 tokens and one answer of 200, all of which was cached."""
    pool = Agents()
    for request_id, prompt, cached, output in (
        ("1", 1_000, 900, 800),
        ("2", 1_200, 1_100, 1_600),
        ("3", 2_000, 1_400, 80),
    ):
        prefix = tuple(range(prompt // 100))
        fields = {"choices": 8, "program_id": "one", "prefix": prefix, "prefix_block_tokens": 100.0}
        pool.send("A", request_id, prompt, output_max=8_000, **fields)
        pool.poll()
        pool.report(request_id, prompt, output, cached)
        pool.end(request_id)
    assert pool.ledger.recomputed_tokens_total == 0


def test_a_turn_that_has_waited_nearly_too_long_precedes_those_of_paused_sessions():
    pool = Agents(wait_s_max=60.0)
    pool.run("paused", "paused-1")
    pool.ledger._pause(pool.ledger.table.sessions("A")["paused"], pool.now)
    for session in ("one", "two"):
        pool.turn(session, f"{session}-1")
        assert pool.dispatched() == [f"{session}-1"]
    pool.turn("old", "old-1")
    pool.turn("paused", "paused-2")
    pool.poll()
    assert [each.request.id for each in pool.ledger.held.of_tenant("A")] == ["paused-2", "old-1"]
    pool.now += 55.0
    pool.poll()
    assert [each.request.id for each in pool.ledger.held.of_tenant("A")] == ["old-1", "paused-2"]


def test_held_turns_may_be_cancelled_and_set_aside():
    pool = Agents(wait_s_max=1e9)
    pool.run("one", "one-1")
    pool.run("two", "two-1")
    for name in "xyz":
        pool.turn(name, name)
    assert pool.poll() == []
    pool.scheduler.cancel("x", pool.now)
    pool.scheduler.told(Parked(pool.now, "y"))
    assert set(pool.ledger.held.turns) == {"z"}
    pool.scheduler.told(Readmitted(pool.now, Request("y", "A", "m", 0.0, TURN, 10, program_id="y")))
    assert set(pool.ledger.held.turns) == {"y", "z"}


def test_a_key_at_its_limit_holds_before_sessions_do():
    tenant = Tenant("A", keys={"k": KeyLimits(in_flight_max=1)})
    pool = Agents(tenants=[tenant])
    pool.turn("one", "one-1", key_id="k")
    pool.turn("two", "two-1", key_id="k")
    assert pool.dispatched() == ["one-1"]
    assert pool.waits("two-1") is Wait.KEY_LIMIT
    pool.report("one-1", TURN, 1)
    pool.end("one-1")
    assert pool.dispatched() == ["two-1"]
    pool.turn("three", "three-1", key_id="k")
    pool.turn("one", "one-2", key_id="k")
    assert pool.poll() == []
    pool.change(Tenant("A", keys={"k": KeyLimits(in_flight_max=5)}))
    assert pool.dispatched() == ["one-2"]
    assert pool.waits("three-1") is Wait.SESSION
    pool.change(Tenant("A", keys={"k": KeyLimits(in_flight_max=1)}))
    pool.poll()
    assert pool.waits("three-1") is Wait.KEY_LIMIT


def test_tenants_of_new_tiers_and_groups_take_their_turns(full):
    full.turn("new", "n")
    full.poll()
    full.scheduler.tenants_changed(
        tiers=[Tier("gold", weight=9.0)],
        groups=[Group("red", tier_id="gold")],
        changed=[Tenant("B", tier_id="gold"), Tenant("C", tier_id="gold", group_id="red"), Tenant("A", weight=2.0)],
        now=full.now,
    )
    full.turn("b", "b", tenant="B")
    full.turn("c", "c", tenant="C")
    full.now = 60.0
    sent = set()
    for _ in range(10):
        for action in full.poll():
            assert isinstance(action, Dispatch)
            sent.add(action.request_id)
            full.report(action.request_id, TURN, 1)
            full.end(action.request_id)
        full.now += 30.0
    assert sent == {"n", "b", "c"}


def test_another_scheduler_goes_on_with_all_sessions_and_breaks_no_turn(full):
    full.turn("one", "one-2")
    assert full.dispatched() == ["one-2"]
    checkpoint = full.scheduler.parts.sessions.ledger.checkpoint(full.now, 100)
    after = Agents()
    after.now = 1000.0
    fact = FACTS["sessions_restored"](now=1000.0, sessions=checkpoint)
    after.scheduler.told(fact)
    after.scheduler.adopted(
        Request("m.1", "A", "m", 999.0, TURN, 10, program_id="one"), "gpu0", Usage(TURN, 0, 0), after.now
    )
    assert after.ledger.working_sets["gpu0"].tokens == pytest.approx(full.ledger.working_sets["gpu0"].tokens)
    assert after.state("one") is SessionState.RUNNING
    after.turn("new", "n")
    assert after.poll() == []
    assert after.run("two", "two-2") == "gpu0"


def test_a_thousand_held_turns_take_bounded_polls_when_nothing_is_held_any_more():
    pool = Agents(admission=())
    pool.run("one", "one-1")
    pool.run("two", "two-1")
    for number in range(1000):
        pool.turn(f"s{number}", f"r{number}", tenant="B")
    assert pool.poll() == []
    pool.ledger.engagement.is_on = False
    pool.now += 1.0
    pool.scheduler.poll(pool.now)
    assert len(pool.ledger.held) >= 1000 - 64
    pool.poll()
    assert not pool.ledger.held


def test_what_sessions_do_is_seen(full):
    full.turn("new", "n", parent_id="one")
    full.poll()
    full.now = 12.0
    snapshot = full.scheduler.snapshot(full.now)
    seen = snapshot.sessions
    assert seen.is_holding
    assert dict(seen.states) == {"running": 0, "idle": 2, "held": 1, "paused": 0}
    working_set = seen.backends["gpu0"]
    assert (working_set.tokens, working_set.tokens_max, working_set.pool_tokens) == (2 * (TURN + 5), 7_000, KV)
    assert seen.demand_tokens == 2 * (TURN + 5) + TURN
    shown = {each.id: each for each in snapshot.tenants["A"].sessions}
    assert list(shown) == ["new", "two", "one"]
    assert (shown["new"].state, shown["new"].parent_id, shown["new"].since_at, shown["new"].until_at) == (
        SessionState.HELD, "one", 0.0, 60.0,
    )  # fmt: skip
    assert (shown["new"].needs_tokens, shown["one"].needs_tokens) == (TURN, None)
    assert dict(snapshot.tenants["A"].session_states) == {"idle": 2, "held": 1}
    assert (shown["one"].state, shown["one"].context_tokens, shown["one"].backend_id) == ("idle", TURN + 5, "gpu0")
    full.now = 60.0
    assert full.dispatched() == ["n"]
    after = full.scheduler.snapshot(full.now).sessions
    assert (after.pauses, sum(after.wait_counts), after.wait_s) == (1, 3, 60.0), "two began without waiting"
    assert full.scheduler.snapshot(full.now, ()).sessions == after
    assert full.scheduler.snapshot(full.now, ["A"]).sessions is None


def test_those_that_are_held_are_seen_first_however_many_were_used_since(full):
    full.turn("new", "n")
    for number in range(40):
        full.turn("one", f"one-{number + 2}", TURN + number)
        full.dispatched()
        full.end(f"one-{number + 2}")
    for number in range(20):
        full.turn(f"s{number}", f"r{number}", tenant="B")
    full.poll()
    tenants = full.scheduler.snapshot(full.now).tenants
    assert [each.id for each in tenants["A"].sessions] == ["new", "one", "two"]
    assert [each.id for each in tenants["B"].sessions] == [f"s{number}" for number in range(16)]
    assert tenants["B"].session_states == {"held": 20}


def test_what_engages_holding_is_seen_as_of_now_and_seeing_it_changes_nothing():
    pool = Agents()
    pool.run("one", "one-1")
    pool.turn("one", "one-2", TURN + 100)
    pool.poll()
    pool.now += 10.0
    pool.report("one-2", TURN + 100, 5, 1)  # it has to compute all again
    pool.end("one-2")
    use = pool.ledger.working_sets["gpu0"].use

    def seen(now):
        view = pool.scheduler.snapshot(now, ()).sessions.backends["gpu0"]
        return view.busy_ratio, view.recomputed_ratio

    busy, again = seen(pool.now)
    assert (busy, again) == pytest.approx((use.busy_ratio, use.recomputed_ratio))
    assert busy == pytest.approx(0.9)
    assert again > 0.3
    assert seen(pool.now + 10.0) == pytest.approx((busy / 10.0, again)), "idle since"
    assert (use.busy_ratio, use.recomputed_ratio) == (busy, again)
    pool.turn("one", "one-3", TURN + 200)
    pool.poll()
    pool.now += 10.0
    expected = seen(pool.now)
    use.advance(pool.now)
    assert expected == pytest.approx((use.busy_ratio, use.recomputed_ratio))


def test_what_was_expected_to_be_cached_is_compared_with_what_was():
    pool = Agents()
    pool.run("one", "one-1")
    pool.run("one", "one-2", TURN + 100, cached=TURN)
    pool.run("one", "one-3", TURN + 200, cached=1_000)
    seen = pool.scheduler.snapshot(pool.now).sessions
    assert (seen.expected_tokens, seen.recomputed_tokens) == (TURN + 5 + TURN + 105, 5 + TURN + 105 - 1_000)


@pytest.mark.parametrize("placement", sorted(PLACEMENT))
def test_a_turn_that_is_bound_to_a_backend_waits_for_another_where_all_are_gone(placement):
    pool = Agents(placement=PLACEMENT[placement]())
    pool.run("one", "one-1")
    pool.turn("one", "one-2")
    pool.measure()
    assert pool.dispatched() == []
    pool.measure(BackendLoad("new", kv_tokens_max=KV, requests_running_max=8))
    assert pool.dispatched() == ["one-2"]
