"""Which call ends engines: counts of losses, who is given up, and who waits for whom."""

import heapq
import itertools
from random import Random

import pytest

from gateway.continuation.loss_evidence import ENGINES_MAX, LossEvidence, Suspect


class Scene:
    """Calls that are sent to engines, and lose them, one after the other."""

    def __init__(self):
        self.evidence = LossEvidence()
        self.now = 0.0

    def send(self, backend_id, *calls):
        for call in calls:
            self.evidence.sent(call, backend_id, self.now)

    def lose(self, *calls, resends_max=None, after_s=1.0):
        """Their engine ends so much later. Returns whether each is given up."""
        self.now += after_s
        return [self.evidence.lost(call, self.now, resends_max=resends_max) for call in calls]


@pytest.fixture
def scene():
    return Scene()


def test_a_stream_that_has_lost_three_engines_is_given_up(scene):
    stream, given_up = Suspect(), []
    for backend_id in ("a", "b", "c"):
        scene.send(backend_id, stream)
        given_up += scene.lose(stream)
    assert given_up == [False, False, True]


@pytest.mark.parametrize(("resends_max", "engines"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_a_call_that_has_not_begun_is_sent_again_as_often_as_allowed_and_never_to_a_fourth(scene, resends_max, engines):
    call, given_up = Suspect(), []
    while not any(given_up):
        scene.send(f"b{len(given_up)}", call)
        given_up += scene.lose(call, resends_max=resends_max)
    assert len(given_up) == engines


def test_losses_before_and_after_the_first_event_are_one_count(scene):
    call = Suspect()
    scene.send("a", call)
    assert scene.lose(call, resends_max=1) == [False]
    scene.send("b", call)
    assert scene.lose(call) == [False]  # it has begun there
    scene.send("c", call)
    assert scene.lose(call) == [True]


def test_who_shared_the_losses_of_a_call_that_is_given_up_has_lost_nothing(scene):
    culprit, twice, once = Suspect(), Suspect(), Suspect()
    scene.send("a", culprit, twice)
    scene.lose(culprit, twice)
    scene.send("b", culprit, twice, once)
    scene.lose(culprit, twice, once)
    assert [culprit.lost, twice.lost, once.lost] == [2, 2, 1]
    scene.send("c", culprit)
    assert scene.lose(culprit) == [True]
    assert [twice.lost, once.lost] == [0, 0]


@pytest.mark.parametrize("order", [1, -1])
def test_who_is_aboard_with_a_call_that_has_lost_two_engines_is_not_blamed(scene, order):
    """Whichever notices first."""
    culprit, fellow = Suspect(), Suspect()
    for backend_id in ("a", "b"):
        scene.send(backend_id, culprit)
        scene.lose(culprit)
    scene.send("c", culprit, fellow)
    assert scene.lose(*[culprit, fellow][::order]) == [True, False][::order]
    assert fellow.lost == 0


def test_a_call_without_resends_left_is_sent_once_more_where_another_has_lost_as_many(scene):
    culprit, fellow = Suspect(), Suspect()
    for backend_id in ("a", "b"):
        scene.send(backend_id, culprit, fellow)
        assert scene.lose(fellow, culprit, resends_max=1) == [False, False]
    scene.send("c", fellow)
    scene.send("d", culprit)
    assert scene.lose(culprit, resends_max=1) == [True]
    assert fellow.lost == 0


def test_two_calls_that_have_lost_two_engines_each_are_not_sent_to_the_same_one(scene):
    first, second, other = Suspect(), Suspect(), Suspect()
    for backend_id, after_s in (("a", 0.5), ("b", 0.25)):
        scene.send(backend_id, first, second)
        scene.lose(first, second, after_s=after_s)
    scene.send("c", first)
    assert scene.evidence.apart_until(second, "c") == scene.now + 2 * 0.5  # twice as long as at any lost engine
    assert scene.evidence.apart_until(second, "d") is None
    assert scene.evidence.apart_until(other, "c") is None
    scene.evidence.left(first)
    assert scene.evidence.apart_until(second, "c") is None


def test_two_that_lose_a_third_engine_together_are_both_given_up(scene):
    """No call costs a fourth, even where the other one explains its losses."""
    first, second = Suspect(), Suspect()
    for backend_id in ("a", "b"):
        scene.send(backend_id, first, second)
        scene.lose(first, second)
    scene.send("c", first, second)
    assert scene.lose(first, second) == [True, True]


def test_what_is_kept_of_calls_that_have_ended_is_nothing(scene):
    call = Suspect()
    scene.send("a", call)
    scene.lose(call)
    scene.evidence.ended(call)
    assert not call.losses
    assert not scene.evidence._aboard


class Pool:
    """Engines in virtual time. One call ends every engine that computes it for `kills_s`; all others need `takes_s`.
    Each process knows its own calls.
    """

    def __init__(self, engines, calls, *, kills_s, takes_s, seed, processes=1):
        self.random, evidences = Random(seed), [LossEvidence() for _ in range(processes)]
        self.aboard = {
            f"b{number}": {} for number in range(engines)
        }  # in the order in which they came: no run is another
        self.calls = [Suspect() for _ in range(calls)]
        self.culprit, self.kills_s, self.takes_s = self.calls[self.random.randrange(calls)], kills_s, takes_s
        self.evidence = dict(zip(self.calls, itertools.cycle(evidences), strict=False))
        self.left_s = dict.fromkeys(self.calls, takes_s)
        self.failed, self.ended, self.lost = [], set(), 0
        self.number, self.events, self.sent = itertools.count(), [], {}

    def at(self, time, what, *args):
        heapq.heappush(self.events, (time, next(self.number), what, args))

    def run(self):
        for call in self.calls:
            self.at(self.random.uniform(0, 0.5), self.dispatch, call)
        while self.events:
            now, _, what, args = heapq.heappop(self.events)
            what(now, *args)

    def dispatch(self, now, call):
        """To the engine with the fewest."""
        backend_id = min(self.aboard, key=lambda each: (len(self.aboard[each]), self.random.random()))
        self.begin(now, call, backend_id)

    def begin(self, now, call, backend_id):
        if backend_id not in self.aboard:
            self.dispatch(now, call)
        elif (until := self.evidence[call].apart_until(call, backend_id)) is not None and until > now:
            self.at(min(until, now + 0.05), self.begin, call, backend_id)
        else:
            self.evidence[call].sent(call, backend_id, now)
            self.aboard[backend_id][call] = None
            self.sent[call] = now
            if call is self.culprit:
                self.at(now + self.kills_s * self.random.uniform(0.7, 1.3), self.end_engine, backend_id)
            else:
                self.at(now + self.left_s[call], self.end, call, now)

    def end(self, now, call, sent_at):
        if self.sent.get(call) == sent_at:
            self.aboard[call.backend_id].pop(call, None)
            self.evidence[call].left(call)
            self.evidence[call].ended(call)
            self.ended.add(call)

    def end_engine(self, now, backend_id):
        self.lost += 1
        calls = list(self.aboard.pop(backend_id))
        self.random.shuffle(calls)
        for call in calls:
            self.left_s[call] = max(0.1, self.left_s[call] - (now - self.sent.pop(call)))
            if self.evidence[call].lost(call, now, resends_max=1 if self.left_s[call] > 0.9 * self.takes_s else None):
                self.failed.append(call)
            else:
                self.at(now + self.random.uniform(0, 0.05), self.dispatch, call)


@pytest.mark.parametrize("kills_s", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("engines", [5, 10])
def test_of_200_calls_beside_one_that_ends_engines_none_fails_and_at_most_three_engines_are_lost(engines, kills_s):
    for seed in range(4):
        pool = Pool(engines, 201, kills_s=kills_s, takes_s=20.0, seed=seed)
        pool.run()
        assert pool.failed == [pool.culprit]
        assert pool.lost <= ENGINES_MAX
        assert len(pool.ended) == 200


@pytest.mark.parametrize("processes", [2, 3])
def test_where_the_call_that_ends_engines_is_another_process_s_few_calls_fail_and_no_more_engines(processes):
    """Its calls are not told from those of the others, which have lost the same engines."""
    pools = [Pool(5, 201, kills_s=1.0, takes_s=20.0, seed=seed, processes=processes) for seed in range(4)]
    for pool in pools:
        pool.run()
        assert pool.culprit in pool.failed
        assert pool.lost <= ENGINES_MAX
    assert sum(len(pool.failed) - 1 for pool in pools) <= 0.01 * 4 * 200
