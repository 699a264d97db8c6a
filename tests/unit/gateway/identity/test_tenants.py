"""Which tenants there are, and that strangers cannot fill the memory."""

from gateway.identity.tenants import EVICTION_TRIES_MAX, TenantDirectory
from policies.types import Reason, Tenant

ALICE = Tenant(id="alice", weight=2)


def open_tenants(open_tenants_max: int, busy: set[str] | None = None) -> TenantDirectory:
    waiting = set() if busy is None else busy
    tenants = TenantDirectory(
        is_open=True,
        open_tenants_max=open_tenants_max,
        forget_if_idle=lambda tenant_id: tenant_id not in waiting,
    )
    tenants.put(ALICE)
    return tenants


def known(tenants: TenantDirectory, *tenant_ids: str) -> set[str]:
    """Which of these are remembered. A tenant that is not would be a new value."""
    return {tenant_id for tenant_id in tenant_ids if tenant_id in tenants._open}


def test_configured_tenants_are_those_and_no_others():
    tenants = TenantDirectory(is_open=False, forget_if_idle=lambda _: True)
    tenants.put(ALICE)
    assert (tenants.find("alice"), tenants.find("bob")) == (ALICE, None)
    assert tenants.reject_reason is Reason.TENANT_UNKNOWN


def test_an_open_directory_makes_tenants_of_weight_1_and_keeps_configured_ones():
    tenants = open_tenants(5)
    assert tenants.find("alice") is ALICE
    assert tenants.find("bob") == Tenant(id="bob", weight=1)
    assert tenants.find("bob") is tenants.find("bob")


def test_the_tenant_that_was_idle_longest_makes_room():
    tenants = open_tenants(2)
    for tenant_id in ("a", "b", "a", "c"):
        tenants.find(tenant_id)
    assert known(tenants, "a", "b", "c") == {"a", "c"}


def test_a_busy_tenant_is_never_forgotten():
    busy = {"a", "b"}
    tenants = open_tenants(2, busy)
    tenants.find("a")
    tenants.find("b")
    assert tenants.find("c") is None
    assert tenants.reject_reason is Reason.QUEUE_FULL
    busy.remove("b")
    assert tenants.find("c") == Tenant(id="c")
    assert known(tenants, "a", "b", "c") == {"a", "c"}


def test_looking_for_room_takes_bounded_work():
    asked = []

    def never_idle(tenant_id):
        asked.append(tenant_id)
        return False

    tenants = TenantDirectory(is_open=True, open_tenants_max=100, forget_if_idle=never_idle)
    for number in range(100):
        tenants.find(f"t{number}")
    assert tenants.find("one too many") is None
    assert len(asked) == EVICTION_TRIES_MAX
    assert known(tenants, *(f"t{number}" for number in range(100))) == {f"t{number}" for number in range(100)}
