"""What every placement that is asked on arrival keeps to, whatever becomes of the requests. It runs over the table."""

from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.placement import ARRIVAL_PLACEMENT, ArrivalPlacement, Worker
from policies.types import BackendLoad, Request, Usage
from tests.examples import examples

every_placement = pytest.mark.parametrize("make", ARRIVAL_PLACEMENT.values(), ids=ARRIVAL_PLACEMENT.keys())


class Pool:
    """What the scheduler does for a placement, and nothing else: queues, dispatches, the index of what was sent."""

    def __init__(self, placement: ArrivalPlacement, backends: int = 4) -> None:
        self.placement = placement
        self.prefixes = PrefixIndex()
        placement.look_up_in(self.prefixes)
        loads = [BackendLoad(f"gpu-{number}", kv_tokens_max=10_000) for number in range(backends)]
        self.capacities = {load.backend_id: BackendCapacity(load) for load in loads}
        self.waiting: list[tuple[Request, str]] = []
        self.running: list[tuple[Request, str]] = []
        self.numbers = 0

    def workers(self, among: frozenset[str] | None = None) -> list[Worker]:
        queued = [backend_id for _, backend_id in self.waiting]
        return [
            Worker(capacity, queued.count(name))
            for name, capacity in self.capacities.items()
            if among is None or name in among
        ]

    def send(self, tenant: str, prompt: int, prefix: tuple[int, ...], at: float, among: frozenset[str] | None) -> str:
        self.numbers += 1
        request = Request(
            f"r{self.numbers}", tenant, "m", at, prompt, 100, prefix=prefix, prefix_block_tokens=16.0 if prefix else 0.0
        )
        chosen = self.placement.assign(request, self.workers(among))
        assert chosen in {worker.id for worker in self.workers(among)}
        self.waiting.append((request, chosen))
        return chosen

    def dispatch(self, which: int) -> None:
        request, backend_id = self.waiting.pop(which % len(self.waiting))
        self.prefixes.inserted(request, backend_id)
        self.placement.dispatched(request, backend_id)
        self.running.append((request, backend_id))

    def come_back(self, which: int) -> None:
        request, backend_id = self.running.pop(which % len(self.running))
        self.placement.returned(request, backend_id)
        self.waiting.append((request, backend_id))

    def leave(self, which: int) -> None:
        self.placement.unassigned(*self.waiting.pop(which % len(self.waiting)))

    def end(self, which: int, output: int) -> None:
        request, backend_id = self.running.pop(which % len(self.running))
        self.placement.ended(request, backend_id, Usage(request.prompt_tokens, 0, output))

    def end_all(self) -> None:
        while self.waiting:
            self.dispatch(0)
        while self.running:
            self.end(0, 10)


paths = st.lists(st.integers(0, 2), max_size=5).map(
    lambda turns: tuple(int("1" + "".join(map(str, turns[: depth + 1])), 4) for depth in range(len(turns)))
)
subsets = st.none() | st.frozensets(st.sampled_from([f"gpu-{number}" for number in range(4)]), min_size=1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("AB"), st.integers(0, 200), paths, subsets),
        st.tuples(st.sampled_from(["dispatch", "come_back", "leave"]), st.integers(0, 50)),
        st.tuples(st.just("end"), st.integers(0, 50), st.integers(0, 300)),
        st.tuples(st.just("forget"), st.sampled_from("AB")),
    ),
    max_size=60,
)


def run(pool: Pool, script) -> list[str]:
    chosen = []
    for time, (name, *arguments) in enumerate(script):
        if name == "send":
            tenant, prompt, path, among = arguments
            # Every few operations pass a minute, so that windows end within a script.
            chosen.append(pool.send(tenant, max(prompt, 16 * len(path)), path, 10.0 * time, among))
        elif name == "forget":
            live = {request.tenant_id for request, _ in pool.waiting + pool.running}
            if arguments[0] not in live:
                pool.placement.forget(arguments[0])
        elif pool.waiting if name in ("dispatch", "leave") else pool.running:
            getattr(pool, name)(*arguments)
    return chosen


@every_placement
@settings(max_examples=examples(80))
@given(script=operations)
@example(script=[("send", "A", 0, (), None)])  # of a prompt [[]]
def test_one_of_the_workers_is_chosen_whatever_happened_before(make, script):
    pool = Pool(make())
    run(pool, script)
    pool.end_all()
    pool.send("A", 50, (), 1e6, None)


@every_placement
@settings(max_examples=examples(40))
@given(script=operations)
def test_equal_histories_give_equal_choices(make, script):
    assert run(Pool(make()), script) == run(Pool(make()), script)


@every_placement
def test_the_order_in_which_workers_come_is_no_matter(make):
    chosen = set()
    for order in permutations(Pool(make()).workers()):
        placement = make()
        placement.look_up_in(PrefixIndex())
        requests = [Request(f"r{number}", "A", "m", 0.0, 100, 100) for number in range(5)]
        chosen.add(tuple(placement.assign(request, order) for request in requests))
    assert len(chosen) == 1


@every_placement
def test_a_backend_alone_takes_everything(make):
    pool = Pool(make(), backends=1)
    assert {pool.send("AB"[number % 2], 5000, (1, number), float(number), None) for number in range(50)} == {"gpu-0"}


@every_placement
def test_prompts_with_nothing_in_common_spread_over_all_backends(make):
    pool = Pool(make())
    chosen = [pool.send("A", 4000, (number,), float(number), None) for number in range(40)]
    assert [chosen.count(name) for name in pool.capacities] == [10, 10, 10, 10]


@every_placement
def test_backends_may_come_and_go(make):
    pool = Pool(make(), backends=2)
    for number in range(10):
        pool.send("A", 100, (number % 2,), float(number), None)
    pool.end_all()
    gone = pool.capacities.pop("gpu-0")
    pool.prefixes.retain(pool.capacities)
    assert {pool.send("A", 100, (number % 2,), 20.0, None) for number in range(10)} == {"gpu-1"}
    pool.capacities["gpu-0"] = gone
    for number in range(40):
        pool.send("A", 4000, (1000 + number,), 30.0, None)
    assert {backend_id for _, backend_id in pool.waiting} == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize("name", ["preble", "d2lpm"])
def test_a_prompt_follows_its_like_even_while_that_waits(name):
    pool = Pool(ARRIVAL_PLACEMENT[name]())
    first = pool.send("A", 100, (1, 2, 3, 4, 5), 0.0, None)
    assert {pool.send("A", 100, (1, 2, 3, 4, 5), 0.0, None) for _ in range(5)} == {first}
    pool.end_all()
    assert pool.send("A", 100, (1, 2, 3, 4, 5), 1.0, None) == first
