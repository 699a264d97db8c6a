"""The heap under every order: voids, stamps, keys that move while they wait."""

from policies.fairness import Fifo, VirtualTokenCounter
from policies.fairness.base import Account
from policies.fairness.heap import SPARE_ENTRIES, TenantHeap
from policies.types import Request


def queue_of(tenant_id: str, arrived_at: float = 0.0) -> dict[str, Request]:
    return {"r": Request("r", tenant_id, "m", arrived_at, 1, 1)}


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
    older, younger = Request("older", "A", "m", 1.0, 1, 1), queue.pop("r")
    queue.update({"older": older, "r": younger})
    fifo.queued(older, queue, 6.0)
    assert fifo.pick(anyone) is older
    del queue["older"]
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
