"""Sessions, part by part: gaps, working sets, pauses, engagement, and what the ledger decides."""

from math import inf

import pytest

from policies.fairness.tree import FairTree
from policies.fairness.vtc import VirtualTokenCounter
from policies.sessions.engage import Engagement
from policies.sessions.gaps import Gaps, bucket_of
from policies.sessions.held import HeldTurns
from policies.sessions.ledger import SessionLedger, TurnEntry
from policies.sessions.pauses import to_yield, worth_pausing
from policies.sessions.session import AgentSession, Turn
from policies.sessions.working_set import ETA_FIRST, ETA_MAX, WorkingSet, beginnings
from policies.step_time.model import StepTime, StepTimeModel
from policies.types import BackendLoad, Request, SessionState, Tenant, Tier, Usage
from tests.held_sessions import AlwaysEngaged

POOL = 10_000
TOKEN_S = 1e-3


def make_session(name: str = "s", context: int = 1000, *, tenant: str = "t") -> AgentSession:
    session = AgentSession(tenant, name)
    session.context, session.turns = context, 1
    return session


def make_set(eta: float | None = None) -> WorkingSet:
    backend = WorkingSet("e", eta)
    backend.pool_tokens, backend.use.token_s = POOL, TOKEN_S
    return backend


class TestGaps:
    def test_the_prior_is_the_published_distribution(self):
        gaps = Gaps()
        assert gaps.outlook(0.0, 1.0).returns == pytest.approx(0.86, abs=0.01)
        assert gaps.outlook(0.0, 10.0).returns == pytest.approx(0.95, abs=0.01)

    def test_what_is_away_within_a_horizon_is_less_than_the_horizon(self):
        for idle_s in (0.0, 0.01, 0.3, 5.0, 100.0, 10_000.0):
            before = 0.0
            for horizon_s in (0.01, 0.1, 1.0, 10.0, 1e4):
                outlook = Gaps().outlook(idle_s, horizon_s)
                assert before <= outlook.away_s <= horizon_s + 1e-9
                assert 0.0 <= outlook.returns <= 1.0
                before = outlook.away_s

    def test_sessions_that_never_return_are_learnt_without_being_told(self):
        gaps = Gaps()
        for _ in range(100):
            gaps.began()
            gaps.ended(0, 0.1)
        for _ in range(10):
            gaps.began()
            gaps.passed(0, bucket_of(5.0))
        assert gaps.outlook(0.0, 1.0).returns > 0.85
        assert gaps.outlook(0.2, 1.0).returns < 0.5 < Gaps().outlook(0.2, 1.0).returns


class TestWorkingSet:
    def test_beginnings_are_two_for_each_doubling_and_add_up(self):
        found = beginnings(tuple(range(100, 200)), 16.0)
        assert [block - 99 for block, _ in found] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
        assert sum(part for _, part in found) == 96 * 16

    def test_what_sessions_share_counts_once(self):
        backend, one, other = make_set(), make_session("one"), make_session("other")
        one.shared = ((1, 256), (2, 256))
        other.shared = ((1, 256), (3, 256))
        backend.admit(one)
        backend.admit(other)
        assert backend.tokens == 2 * 1000 - 256
        assert next(backend.frees([one])) == 1000 - 256
        backend.release(one)
        assert backend.tokens == 1000
        backend.release(other)
        assert backend.tokens == 0

    def test_eta_falls_with_misses_and_rises_with_hits_once_all_fits(self):
        backend = make_set()
        backend.found(1000, 0, is_full=True)
        assert backend.eta == ETA_FIRST, "what did not fit before says nothing"
        backend.is_settled = True
        backend.found(1000, 0, is_full=True)
        assert backend.eta == pytest.approx(ETA_FIRST - 0.02)
        for _ in range(1000):
            backend.found(1000, 1000, is_full=True)
        assert backend.eta == ETA_MAX

    def test_no_hit_raises_eta_while_nothing_waits(self):
        backend = make_set()
        backend.is_settled = True
        backend.found(1000, 1000, is_full=False)
        assert backend.eta == ETA_FIRST


class TestPauses:
    def quick(self) -> Gaps:
        """Gaps of 0.1 s, a tenth of them ends."""
        gaps = Gaps()
        for number in range(900):
            gaps.began()
            if number % 10:
                gaps.ended(0, 0.1)
            else:
                gaps.passed(0, bucket_of(60.0))
        return gaps

    def choose(self, idle_s: float, context: int = 1000) -> list[AgentSession] | None:
        backend, session, gaps = make_set(), make_session(context=context), self.quick()
        backend.admit(session)
        backend.tokens = POOL * ETA_FIRST
        return worth_pausing(backend, context, idle_s, horizon_s=5.0, waiting=1, gaps_of=lambda _: gaps)

    def test_a_session_that_is_about_to_return_is_not_paused(self):
        assert self.choose(0.05) is None

    def test_a_session_that_has_not_returned_as_it_does_is(self):
        chosen = self.choose(0.5)
        assert chosen is not None
        assert len(chosen) == 1

    def test_where_the_context_costs_nothing_a_session_is_paused_at_once(self):
        assert self.choose(0.05, context=1) is not None

    def test_none_is_paused_where_all_together_make_no_room(self):
        backend = make_set()
        backend.tokens = POOL
        assert to_yield(backend, 100.0) is None

    def test_those_that_have_had_most_yield_first(self):
        backend = make_set()
        for number in range(7):
            session = make_session(f"s{number}")
            backend.admit(session)
            session.used_s = float(number % 4)
        chosen = to_yield(backend, 1500.0)
        assert chosen is not None
        assert [each.id for each in chosen] == ["s3", "s2"]


class TestEngagement:
    def busy(self, *, recomputed: int, gap_s: float) -> WorkingSet:
        """24 sessions of 2,000 tokens before a pool for 3.5 of them, for 60 s: 0.16 s of each second is one turn's."""
        backend = make_set()
        backend.use.advance(0.0)
        backend.use.running = 1
        for step in range(1, 600):
            backend.use.advance(step / 10.0)
            backend.use.recomputed_s += recomputed * backend.use.prefill_s_per_token
            backend.use.turned(4.0, 2000)
            backend.use.returned(gap_s)
        return backend

    def is_on(self, backend: WorkingSet) -> bool:
        engagement = Engagement()
        engagement.update([backend], is_needed=False, now=60.0)
        return engagement.is_on

    def test_it_pays_where_a_busy_engine_computes_again(self):
        assert self.is_on(self.busy(recomputed=60, gap_s=0.1))

    def test_it_does_not_where_little_is_computed_again(self):
        assert not self.is_on(self.busy(recomputed=5, gap_s=0.1))

    def test_it_does_not_where_gaps_are_long(self):
        assert not self.is_on(self.busy(recomputed=60, gap_s=10.0))

    def test_it_does_not_where_the_pool_is_not_known(self):
        backend = self.busy(recomputed=60, gap_s=0.1)
        backend.pool_tokens = inf
        assert not self.is_on(backend)

    def test_it_ends_when_nothing_was_held_for_a_while(self):
        engagement = Engagement()
        engagement.begin(0.0)
        backend = self.busy(recomputed=0, gap_s=0.1)
        engagement.update([backend], is_needed=False, now=9.0)
        assert engagement.is_on
        engagement.update([backend], is_needed=False, now=10.0)
        assert not engagement.is_on

    def test_it_ends_where_the_engine_would_have_time_for_all(self):
        engagement = Engagement()
        engagement.begin(0.0)
        engagement.update([make_set()], is_needed=True, now=30.0)
        assert not engagement.is_on


class Pool:
    """A ledger with one backend, that always holds or never does, and requests by short names."""

    def __init__(self, *, on: bool = True, wait_s_max: float = 1e9, eta: float | None = 0.7, **options: object) -> None:
        tenants = {name: Tenant(name) for name in "ab"}
        order = FairTree(VirtualTokenCounter, [Tier("default")], lambda _: 0, tenant=tenants.get)
        self.ledger = SessionLedger(lambda: order, tenants.__getitem__, wait_s_max=wait_s_max, eta=eta, **options)  # type: ignore[arg-type]
        step_time = StepTime(StepTimeModel(0.0, TOKEN_S), 0.0, is_sure=True)
        self.ledger.loads_changed([BackendLoad("e", kv_tokens_max=POOL, step_time=step_time)])
        self.requests: dict[str, Request] = {}
        self.numbers = 0
        if on:
            self.ledger.engagement = AlwaysEngaged()

    def arrive(self, session: str, prompt: int, now: float = 0.0, *, tenant: str = "a") -> TurnEntry | None:
        self.numbers += 1
        request = Request(
            f"{session}-{self.numbers}", tenant, "m", now, prompt, 10, program_id=None if session == "-" else session
        )
        self.requests[session] = request
        return self.ledger.arrived(request, now)

    def run(self, session: str, now: float = 0.0) -> None:
        self.ledger.sent(self.requests[session], "e", now)

    def end(self, session: str, now: float, *, cached: int = 0, final: bool = False) -> None:
        request = self.requests[session]
        request.ends_session = final
        self.ledger.ended(request.id, Usage(request.prompt_tokens, cached, 10), now)

    def turn(self, session: str, prompt: int, now: float = 0.0, **options: str) -> None:
        if self.arrive(session, prompt, now, **options) is None:
            assert self.released(now) == [session]
        self.run(session, now)
        self.end(session, now + 0.1)

    def state(self, session: str, tenant: str = "a") -> SessionState:
        return next(each for each in self.ledger.table.sessions(tenant).values() if each.id == session).state

    def released(self, now: float) -> list[str]:
        return [entry.request_id.partition("-")[0] for entry in self.ledger.released(now)]


def entered(pool: Pool, count: int, prompt: int = 1700) -> None:
    for number in range(count):
        pool.turn(f"s{number}", prompt)


def test_without_a_reason_to_hold_every_turn_passes_anywhere():
    pool = Pool(on=False)
    for number in range(20):
        entry = pool.arrive(f"s{number}", 5000)
        assert entry is not None
        assert entry.backend_id is None
        pool.run(f"s{number}")


def test_a_new_session_is_held_where_its_context_does_not_fit():
    pool = Pool()
    entered(pool, 4)
    assert pool.arrive("new", 1700, 0.2) is None
    assert pool.state("new") is SessionState.HELD
    assert pool.released(0.2) == []


def test_a_turn_of_an_admitted_session_goes_to_its_backend_at_once():
    pool = Pool()
    entered(pool, 4)
    assert pool.arrive("new", 1700, 0.2) is None
    assert pool.arrive("s1", 1800, 0.2) == TurnEntry(pool.requests["s1"].id, "e")


def test_the_end_of_a_session_lets_another_in():
    pool = Pool()
    entered(pool, 4)
    pool.arrive("new", 1700, 0.2)
    pool.arrive("s1", 1720, 0.2)
    pool.run("s1", 0.2)
    pool.end("s1", 0.4, final=True)
    assert pool.released(0.4) == ["new"]


def test_no_session_that_runs_is_paused_however_long_another_waits():
    pool = Pool(wait_s_max=1.0)
    for number in range(4):
        pool.arrive(f"s{number}", 1700)
    assert len(pool.released(0.0)) == 4
    for number in range(4):
        pool.run(f"s{number}")
    pool.arrive("new", 1700, 0.1)
    assert pool.released(1000.0) == []
    assert all(pool.state(f"s{number}") is SessionState.RUNNING for number in range(4))


def test_after_the_longest_wait_an_idle_session_yields_whatever_that_costs():
    pool = Pool(wait_s_max=1.0)
    entered(pool, 4)
    pool.arrive("new", 1700, 0.11)
    assert pool.released(0.12) == []
    pool.ledger.working_sets["e"].use.token_s = 1e3
    assert pool.released(1.0) == []
    assert pool.released(1.01) == ["new"]


def test_a_turn_that_has_waited_too_long_precedes_those_of_sessions_that_were_paused_early():
    order = FairTree(VirtualTokenCounter, [Tier("default")], lambda _: 0, tenant={"a": Tenant("a")}.get)
    held = HeldTurns(lambda: order, lambda _: Tenant("a"))
    for name, arrived_at, goes_first in (("old", 1.0, False), ("paused", 2.0, True), ("new", 3.0, False)):
        session = AgentSession("a", name, goes_first=goes_first)
        request = Request(name, "a", "m", arrived_at, 10, 10, program_id=name)
        held.add(Turn(request, session, arrived_at, continues=True, resumes=False, tokens=20))

    def asked() -> list[str]:
        return [each.request.id for each in held.of_tenant("a")]

    assert asked() == ["paused", "old", "new"]
    held.age(0.9)
    assert asked() == ["paused", "old", "new"]
    held.age(1.0)
    assert asked() == ["old", "paused", "new"]
    turn = held.next()
    assert turn is not None
    assert turn.request.id == "old"
    held.remove(turn)
    held.age(3.0)
    assert asked() == ["paused", "new"]
    for each in list(held.turns.values()):
        held.remove(each)
    assert (asked(), held.next()) == ([], None)
    held.age(9.0)


def test_a_session_that_has_had_its_quantum_yields_while_others_wait():
    pool = Pool(quantum=0.01)
    entered(pool, 4)
    assert pool.arrive("s0", 1750, 0.2), "nothing waits"
    pool.run("s0", 0.2)
    pool.end("s0", 0.5)
    pool.arrive("new", 1700, 0.6)
    assert pool.arrive("s0", 1800, 0.6) is None
    assert pool.released(0.6) == ["new"]
    assert pool.state("s0") is SessionState.HELD


def test_a_session_that_runs_does_not_yield_its_quantum_to_those_that_wait():
    pool = Pool(quantum=0.01)
    entered(pool, 3)
    for now in (0.2, 0.6):
        assert pool.arrive("s0", 1750, now), "nothing waits"
        pool.run("s0", now)
        if now == 0.2:
            pool.end("s0", 0.5)
    pool.arrive("new", 6000, 0.7)
    assert pool.arrive("s0", 100, 0.8), "a call beside the one that runs, which finds room"
    assert pool.ledger.yields_total == 0


def test_what_a_pause_made_an_engine_compute_again_is_not_charged():
    pool = Pool(quantum=0.01)
    entered(pool, 4)
    pool.turn("s0", 1750, 0.2)
    pool.arrive("new", 1700, 0.6)
    pool.arrive("s0", 1800, 0.6)
    pool.released(0.6)
    pool.run("new", 0.6)
    pool.end("new", 0.7, final=True)
    assert pool.released(0.7) == ["s0"]
    request = pool.requests["s0"]
    assert pool.ledger.turns[request.id].charged(Usage(1800, 0, 5)) == Usage(1800, 1760, 5)


def test_tenants_take_turns_by_what_they_received():
    pool = Pool()
    entered(pool, 4)
    for name in ("x", "y"):
        pool.arrive(name, 1700, 0.2)
    pool.arrive("z", 1700, 0.3, tenant="b")
    for tenant_id, service in (("a", 2000.0), ("b", 3000.0), ("a", 2000.0)):
        pool.ledger.held.charged(Tenant(tenant_id), service)
    pool.arrive("s0", 1720, 0.4)
    pool.run("s0", 0.4)
    pool.end("s0", 0.5, final=True)
    assert pool.released(0.5) == ["z"]


def test_parallel_calls_of_one_session_need_room_like_others():
    pool = Pool()
    for _ in range(50):
        pool.arrive("one", 1700)
    assert pool.released(0.0) == ["one"] * 4, "as many as fit"


def test_a_call_on_the_side_does_not_shorten_the_context():
    pool = Pool(on=False)
    pool.turn("s", 3000)
    pool.turn("s", 200, 1.0)
    (session,) = pool.ledger.table.sessions("a").values()
    assert session.context == 3010
    for now in (2.0, 3.0):
        pool.turn("s", 200, now)
    assert session.context == 210, "a context that does not come back was dropped"


def test_a_thousand_sessions_of_one_tenant_are_forgotten_and_no_others():
    pool = Pool(on=False, sessions_max=16)
    pool.turn("kept", 100, tenant="b")
    for number in range(1000):
        pool.turn(f"s{number}", 100, 1.0 + number)
    assert len(pool.ledger.table.sessions("a").values()) == 16
    assert len(pool.ledger.table.sessions("b").values()) == 1


def test_a_backend_that_is_gone_takes_the_contexts_with_it():
    pool = Pool()
    entered(pool, 4)
    pool.ledger.loads_changed([BackendLoad("other", kv_tokens_max=POOL)])
    assert pool.arrive("s0", 1720, 1.0) is None
    assert [entry.backend_id for entry in pool.ledger.released(1.0)] == ["other"]


def test_a_checkpoint_forgets_no_admitted_session():
    pool = Pool()
    entered(pool, 4)
    after = Pool(on=False)
    after.ledger.restored(pool.ledger.checkpoint(5.0, 1000), 1005.0)
    assert after.ledger.working_sets["e"].tokens == pool.ledger.working_sets["e"].tokens
    assert after.ledger.engagement.is_on
    assert after.arrive("s1", 1720, 1005.0) == TurnEntry("s1-1", "e")
    assert after.arrive("new", 1700, 1005.0) is None


@pytest.mark.parametrize(("eta", "restored"), [(None, 0.5), (0.7, 0.7)])
def test_a_checkpoint_keeps_the_part_of_the_pool_that_was_learnt_and_a_configured_one_stays(eta, restored):
    before, after = Pool(eta=eta), Pool(eta=eta)
    before.ledger.working_sets["e"].eta = 0.5
    after.ledger.restored(before.ledger.checkpoint(5.0, 1000), 1005.0)
    assert after.ledger.working_sets["e"].eta == restored


def test_a_turn_that_left_while_it_was_held_is_forgotten():
    pool = Pool()
    entered(pool, 4)
    pool.arrive("new", 1700, 0.2)
    pool.ledger.left(pool.requests["new"].id, 0.3)
    assert not pool.ledger.held
    assert pool.ledger.next_at() is None


def test_a_call_of_a_session_at_another_backend_says_nothing_of_how_long_ago_its_own_has_served_it():
    pool = Pool(on=False)
    ledger = pool.ledger
    ledger.measured(BackendLoad("f", kv_tokens_max=POOL))
    ledger.working_sets["e"].use.computed = 9 * POOL
    pool.turn("s0", 1700)  # at "e", whose context it has
    aside = {name: Request(name, "a", "m", 0.2, 500, 10, program_id="s0") for name in ("one", "other")}
    for request, backend_id in ((aside["one"], "e"), (aside["other"], "f")):
        ledger.arrived(request, 0.2)
        ledger.sent(request, backend_id, 0.2)
    for request in aside.values():
        ledger.ended(request.id, Usage(500, 0, 10), 0.3)
    ledger.is_engaged(1.0)
    assert pool.state("s0") is SessionState.IDLE, "its context is at 'e' still"


def test_a_session_that_moves_has_left_its_new_backend_when_it_was_admitted_there():
    busy, fresh, session = make_set(), make_set(), make_session()
    busy.id, busy.use.computed = "busy", 9.0 * POOL
    fresh.admit(session)
    fresh.release(session)
    busy.admit(session)  # its turn is let in, and leaves unsent
    busy.resize(session)
    assert busy.lost(1.0, 3600.0) is None
