"""The heap under every order: voids, stamps, keys that move while they wait."""

from random import Random

import pytest

from policies.fairness import Fifo, VirtualTokenCounter
from policies.fairness.base import Account
from policies.fairness.heap import SPARE_ENTRIES, TenantHeap
from policies.queues import ArrivalOrder
from policies.types import Request


def queue_of(tenant_id: str, arrived_at: float = 0.0) -> ArrivalOrder:
    return ArrivalOrder([Request("r", tenant_id, "m", arrived_at, 1, 1)])


def anyone(_: Request) -> bool:
    return True


def test_a_forgotten_tenant_that_comes_back_does_not_meet_its_old_entry():
    vtc = VirtualTokenCounter()
    vtc.joined("A", queue_of("A"))
    vtc.left("A")
    vtc.forget("A")
    vtc.joined("A", queue_of("A"))
    assert vtc.pick(anyone).tenant_id == "A"
    vtc.left("A")
    assert vtc.pick(anyone) is None


def test_fifo_does_not_serve_a_tenant_for_a_head_that_it_had_before_it_was_forgotten():
    fifo = Fifo()
    fifo.joined("A", queue_of("A", arrived_at=0.0))
    fifo.left("A")
    fifo.forget("A")
    fifo.joined("A", queue_of("A", arrived_at=5.0))
    fifo.joined("B", queue_of("B", arrived_at=3.0))
    assert fifo.pick(anyone).tenant_id == "B"


def test_fifo_orders_by_the_head_that_came_back_to_the_queue():
    fifo, queue = Fifo(), queue_of("A", arrived_at=5.0)
    fifo.joined("A", queue)
    fifo.joined("B", queue_of("B", arrived_at=3.0))
    older = Request("older", "A", "m", 1.0, 1, 1)
    queue.prepend(older)
    fifo.queued(older, queue, 6.0)
    assert fifo.pick(anyone) is older
    queue.remove("older")
    assert fifo.pick(anyone).tenant_id == "B"


def test_keys_that_fall_by_tiny_steps_are_still_in_order():
    """Weights may be large, so that service over weight is small."""
    vtc = VirtualTokenCounter()
    vtc.joined("A", queue_of("A"))
    vtc.joined("B", queue_of("B"))
    vtc.charged("A", 5e-7, 0.0)
    vtc.charged("B", 6e-7, 0.0)
    assert vtc.pick(anyone).tenant_id == "A"
    for _ in range(4):
        vtc.charged("B", -1e-7, 0.0)
    assert vtc.pick(anyone).tenant_id == "B"


def test_a_token_that_was_expected_moves_no_key_and_enters_no_entry():
    vtc = VirtualTokenCounter()
    vtc.charged("A", 1e6 / 3, 0.0)
    vtc.joined("A", queue_of("A"))
    vtc.charged("A", 10.0, 512.0)
    assert vtc.pick(anyone).tenant_id == "A"
    for _ in range(256):
        vtc.charged("A", 2.0, -2.0)
    assert len(vtc._heap._entries) == 1


def test_void_entries_are_thrown_out_before_they_outnumber_the_waiting():
    heap = TenantHeap(lambda account: account.counter)
    accounts = [Account(f"t{number}") for number in range(3)]
    for fallen in range(10 * SPARE_ENTRIES):
        account = accounts[fallen % 3]
        account.counter = -float(fallen)
        heap.push(account, waiting=3)
        assert len(heap._entries) <= 2 * 3 + SPARE_ENTRIES
    assert heap.first() is accounts[(10 * SPARE_ENTRIES - 1) % 3]


@pytest.mark.parametrize("seed", range(20))
def test_whichever_is_passed_over_the_next_is_the_least_of_the_others(seed):
    """Against sorting all that wait, while keys rise and fall, tenants come and go, and searches pass over many."""
    rng = Random(seed)
    heap = TenantHeap(lambda account: account.counter)
    accounts = {f"t{number:02}": Account(f"t{number:02}") for number in range(20)}
    waiting: dict[str, Account] = {}
    for _ in range(600):
        account = accounts[rng.choice(list(accounts))]
        event = rng.choice(("rise", "fall", "come", "go", "pop", "look", "look"))
        if event == "rise":
            account.counter += rng.randrange(5)
        elif event == "fall":
            account.counter -= rng.randrange(5)
            if account.tenant_id in waiting and account.counter < account.entry_key:
                heap.push(account, len(waiting))
        elif event == "come" and account.tenant_id not in waiting:
            waiting[account.tenant_id] = account
            heap.push(account, len(waiting))
        elif event == "go" and account.tenant_id in waiting:
            del waiting[account.tenant_id]
            account.stamp = 0
        in_order = sorted(waiting.values(), key=lambda each: (each.counter, each.tenant_id))
        if event == "pop":
            popped = heap.pop()
            assert popped is (in_order[0] if in_order else None)
            waiting.pop(popped.tenant_id if popped else "", None)
        elif event == "look":
            besides = set(rng.sample(sorted(accounts), rng.randrange(12)))
            limit = rng.randrange(-20, 60)
            may_go = [each for each in in_order if each.tenant_id not in besides and each.counter >= limit]
            found = heap.first_of(lambda each, limit=limit: each.counter >= limit, besides)
            assert found is (may_go[0] if may_go else None)
        else:
            assert heap.first() is (in_order[0] if in_order else None)
