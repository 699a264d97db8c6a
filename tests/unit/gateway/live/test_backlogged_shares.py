"""A tenant is due more than it got where its queue never emptied, and not where it waited for the next slot alone."""

from gateway.live.shares import shares_of
from gateway.live.windows import ServiceWindow
from policies.types import Attainment, Tenant, TenantView, Tier

TENANTS = (Tenant("flood", tier_id="batch"), Tenant("chat", tier_id="interactive"))
WEIGHTS = {"batch": Tier("batch").weight, "interactive": 4.0}


def view(service, spell):
    return TenantView(
        queued_requests=bool(spell), queued_bytes=0, in_flight_requests=1, in_flight_tokens=1, service=service,
        counter=service, rank=service, attainment=Attainment(), waiting_spell=spell,
    )  # fmt: skip


def shares(chat_spells):
    """The shares after as many seconds: the flood is served 80 a second, the chat 20."""
    window = ServiceWindow(60.0, 5.0)
    for second, spell in enumerate(chat_spells):
        if window.is_due(float(second)):
            window.begin(float(second))
            window.saw({"flood": view(80.0 * second, 1), "chat": view(20.0 * second, spell)})
            window.end()
    return shares_of(window, {each.id: (each, view(0.0, 0)) for each in TENANTS}, WEIGHTS)


def backlogged(found):
    """The tenants that asked for all there is."""
    return {tenant for tenant, asks in found.tenants.asks.items() if asks is None}


def test_one_that_waits_again_and_again_for_the_next_slot_is_due_what_it_gets():
    found = shares([1 + second for second in range(60)])
    assert (found.tenants.got["chat"], found.tenants.due["chat"], found.tenants.due["flood"]) == (0.2, 0.2, 0.8)
    assert backlogged(found) == {"flood"}


def test_one_whose_queue_never_empties_is_due_its_part_by_weight():
    found = shares([7] * 60)
    assert (found.tenants.got["chat"], found.tenants.due["chat"], found.tiers.due["interactive"]) == (0.2, 0.8, 0.8)
    assert backlogged(found) == {"flood", "chat"}


def test_one_whose_queue_emptied_for_most_of_the_window_is_due_what_it_gets():
    assert backlogged(shares([0] * 40 + [7] * 20)) == {"flood"}
