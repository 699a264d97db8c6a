"""Which calls are begun while the event loop is short of CPU: shares by tenant, turns that stay short, refusals."""

from gateway.intake.start_queue import STARTS_MAX, TURN_S_MAX, WAIT_S_MAX, StartQueue

COST_S = 0.001  # of the loop, for each call that is begun; to refuse one costs a quarter


def make_queue(gone=()):
    return StartQueue(is_gone=lambda call: call in gone)


class Loop:
    """Turns of an event loop that does nothing but this."""

    def __init__(self, queue):
        self.queue = queue
        self.now = 0.0
        self.begun = []  # in order
        self.refused = []
        self.turns = []
        self._begun_now = 0

    def come(self, tenant_id, count=1, weight=1.0):
        for _ in range(count):
            if self.queue.may_start():
                self.begun.append(tenant_id)
                self._begun_now += 1
            elif self.queue.put(tenant_id, weight, tenant_id, self.now) is not None:
                self.refused.append(tenant_id)

    def turn(self):
        spent_s = self._begun_now * COST_S + 0.0001
        self.now += spent_s
        given = self.queue.turn(spent_s)
        self.begun += given
        self._begun_now = len(given)
        self.turns.append(spent_s)


def crowd(loop, rates, seconds, weights=None):
    """Calls come at these rates, a second, by tenant."""
    owed = dict.fromkeys(rates, 0.0)
    last = loop.now
    end = loop.now + seconds
    while loop.now < end:
        for tenant_id, rate in rates.items():
            owed[tenant_id] += rate * (loop.now - last)
            loop.come(tenant_id, int(owed[tenant_id]), (weights or {}).get(tenant_id, 1.0))
            owed[tenant_id] %= 1
        last = loop.now
        loop.turn()


def test_nothing_waits_while_turns_are_short():
    loop = Loop(make_queue())
    for _ in range(1000):
        loop.come("a", 5)
        assert loop.queue.calls == 0
        loop.turn()
    assert len(loop.begun) == 5000


def test_a_turn_of_nothing_is_idle_and_one_with_a_call_is_not():
    queue = make_queue()
    assert queue.may_start()
    queue.turn(0.001)
    assert not queue.is_idle
    queue.turn(0.001)
    assert queue.is_idle


def test_who_asks_for_little_gets_all_of_it_and_the_greedy_are_refused():
    loop = Loop(make_queue())
    rates = {f"modest{n}": 20 for n in range(10)} | {f"greedy{n}": 200 for n in range(10)}
    crowd(loop, rates, 10)
    for tenant_id in rates:
        if tenant_id.startswith("modest"):
            assert loop.begun.count(tenant_id) >= 0.97 * 20 * 10
    assert {tenant_id[:6] for tenant_id in loop.refused} == {"greedy"}
    greedy = [loop.begun.count(f"greedy{n}") for n in range(10)]
    assert max(greedy) < 1.1 * min(greedy)
    assert len(loop.begun) > 0.85 / COST_S * 10


def test_shares_are_by_weight():
    loop = Loop(make_queue())
    crowd(loop, {"a": 2000, "b": 2000}, 5, {"a": 3.0, "b": 1.0})
    assert 2.7 < loop.begun.count("a") / loop.begun.count("b") < 3.3


def test_who_was_away_is_not_owed_for_it():
    loop = Loop(make_queue())
    crowd(loop, {"a": 2000, "b": 20}, 5)
    before = len(loop.begun)
    crowd(loop, {"a": 2000, "b": 2000}, 2)
    lately = loop.begun[before:]
    assert 0.9 < lately.count("b") / lately.count("a") < 1.1


def test_turns_become_short_and_all_of_them_are_used():
    loop = Loop(make_queue())
    loop.come("a", 20 * STARTS_MAX)
    for _ in range(40):
        loop.turn()
    assert max(loop.turns[25:]) <= 1.2 * TURN_S_MAX
    assert min(loop.turns[25:]) >= 0.8 * TURN_S_MAX


def test_a_burst_waits_and_a_queue_that_stands_is_refused_more():
    loop = Loop(make_queue())
    loop.come("a", 5000)
    assert loop.refused == []
    while loop.now <= WAIT_S_MAX:
        loop.turn()
    loop.come("a")
    loop.come("b")
    assert loop.refused == ["a"]


def test_some_are_begun_however_many_come():
    loop = Loop(make_queue())
    loop.come("a", 100)
    given = 0
    for _ in range(50):
        loop.come("a", 160)
        given += len(loop.queue.turn(0.2))  # of which all but nothing went to reading
    assert given >= 50 * 160 / 8


def test_who_is_gone_is_not_begun_and_holds_nobody_up():
    gone = set()
    queue = make_queue(gone)
    while queue.may_start():
        pass
    for call in ("first", "second"):
        assert queue.put("a", 1.0, call, 0.0) is None
    gone.add("first")
    assert queue.put("a", 1.0, "third", WAIT_S_MAX / 2) is None
    gone.add("second")
    assert queue.put("a", 1.0, "fourth", WAIT_S_MAX * 1.4) is None  # the oldest that is wanted came at half
    assert queue.turn(0.001) == ["third", "fourth"]
    assert queue.calls == 0


def test_what_is_known_of_tenants_that_do_not_wait_is_forgotten():
    loop = Loop(make_queue())
    for number in range(20_000):
        loop.come("flood")
        loop.come(f"once{number}")
        if number % 20 == 0:
            loop.turn()
    assert len(loop.queue._finishes) <= 1024 + 2 * len(loop.queue._waiting) + 100
