"""The registry: what is declared and what is made, one view; changes checked as a whole, made whole, told to all."""

import asyncio

import pytest

from gateway.config import Config
from gateway.config.key_file import KeyRecord
from gateway.registry.changes import AlreadyThere, DeclaredInFile, Edit, EtagMismatch, Guard, Invalid, NotFound
from gateway.registry.entries import declared_by
from gateway.registry.registry import Registry
from gateway.store.base import Change, Document, StoreUnavailable
from gateway.store.sqlite import SqliteStore

HMAC = "ab" * 32
KEY = {"hmac": "cd" * 32, "last_four": "wxyz", "created_at": "2026-11-20T10:00:00Z", "tenant": "alice"}

FILE = {
    "auth": {"mode": "keys", "secret": "0123456789abcdef"},
    "tiers": {"gold": {"weight": 4, "reserve_ratio": 0.4}},
    "tenants": {"alice": {"tier": "gold", "weight": 2, "envelope": {"ttft_ms": 300}}},
    "backends": [{"url": "http://vllm-0:8000", "name": "vllm-0"}],
}


def declared(**changes):
    config = Config(**{**FILE, **changes})
    return declared_by(config, [KeyRecord("alice", HMAC, "abcd", "2026-11-01T00:00:00+00:00")])


@pytest.fixture
async def registry():
    made = Registry(SqliteStore(None), declared(), clock=lambda: 1_000.0)
    await made.start()
    yield made
    await made.stop()


async def test_what_the_file_declares_is_in_force_without_being_in_the_store(registry):
    alice = registry.get("tenants", "alice")
    assert alice.origin == "declared"
    assert alice.version == 0
    assert alice.body == {"tier": "gold", "weight": 2.0, "envelope": {"ttft_ms": 300.0}}
    assert alice.section.in_flight_max is None
    assert registry.get("keys", HMAC[:16]).section.tenant == "alice"
    assert [entry.name for entry in registry.entries("backends")] == ["vllm-0"]


async def test_what_is_made_by_the_api_stands_beside_what_is_declared(registry):
    bob = await registry.changes.create("tenants", "bob", {"weight": 3}, actor="ann")
    assert (bob.origin, bob.body) == ("admin", {"weight": 3.0})
    assert [entry.name for entry in registry.entries("tenants")] == ["alice", "bob"]


async def test_an_entry_of_the_api_hides_the_declared_one_whole_until_it_is_deleted(registry):
    await registry.changes.patch("tenants", "alice", {"weight": 9}, actor="ann")
    alice = registry.get("tenants", "alice")
    assert alice.origin == "overridden"
    assert alice.body == {"tier": "gold", "weight": 9.0, "envelope": {"ttft_ms": 300.0}}
    registry.redeclare(declared(tenants={"alice": {"weight": 5}}))
    assert registry.get("tenants", "alice") == alice
    await registry.changes.delete("tenants", "alice", actor="ann")
    alice = registry.get("tenants", "alice")
    assert (alice.origin, alice.body) == ("declared", {"weight": 5.0})


async def test_an_entry_of_the_api_is_its_own_while_the_file_has_none(registry):
    await registry.changes.patch("tenants", "alice", {"weight": 9}, actor="ann")
    for tenants, origin in (({"bob": {}}, "admin"), ({"alice": {}}, "overridden")):
        registry.redeclare(declared(tenants=tenants))
        assert registry.get("tenants", "alice").origin == origin


async def test_what_only_the_file_declares_cannot_be_deleted_but_a_key_of_it_can_be_revoked(registry):
    with pytest.raises(DeclaredInFile):
        await registry.changes.delete("tenants", "alice", actor="ann")
    key = await registry.changes.patch("keys", HMAC[:16], {"revoked": True}, actor="ann")
    assert key.section.revoked
    assert key.section.hmac == HMAC


async def test_a_patch_merges_and_null_takes_a_field_away(registry):
    await registry.changes.patch("tenants", "alice", {"envelope": {"tpot_ms": 40}, "weight": None}, actor="ann")
    assert registry.get("tenants", "alice").body == {"tier": "gold", "envelope": {"ttft_ms": 300.0, "tpot_ms": 40.0}}


async def test_a_put_is_whole(registry):
    await registry.changes.put("tenants", "alice", {"in_flight_max": 7}, actor="ann")
    assert registry.get("tenants", "alice").body == {"in_flight_max": 7}


async def test_a_change_that_is_meant_for_another_etag_is_refused(registry):
    stale = registry.get("tenants", "alice").etag
    now = await registry.changes.patch("tenants", "alice", {"weight": 3}, actor="ann", etag=stale)
    assert now.etag != stale
    for attempt in (
        registry.changes.patch("tenants", "alice", {"weight": 4}, actor="ann", etag=stale),
        registry.changes.put("tenants", "alice", {}, actor="ann", etag=stale),
        registry.changes.delete("tenants", "alice", actor="ann", etag=stale),
    ):
        with pytest.raises(EtagMismatch):
            await attempt
    assert registry.get("tenants", "alice") == now


async def test_the_etag_of_a_declared_entry_changes_with_what_is_declared(registry):
    before = registry.get("tenants", "alice").etag
    registry.redeclare(declared())
    assert registry.get("tenants", "alice").etag == before
    registry.redeclare(declared(tenants={"alice": {"weight": 5}}))
    assert registry.get("tenants", "alice").etag != before


async def test_what_is_there_cannot_be_created_and_what_is_not_cannot_be_patched_or_deleted(registry):
    with pytest.raises(AlreadyThere):
        await registry.changes.create("tenants", "alice", {}, actor="ann")
    with pytest.raises(NotFound):
        await registry.changes.patch("tenants", "nobody", {}, actor="ann")
    with pytest.raises(NotFound):
        await registry.changes.delete("tenants", "nobody", actor="ann")


async def test_of_two_creations_of_the_same_one_is_told_that_it_is_there(registry):
    results = await asyncio.gather(
        *(registry.changes.create("tenants", "bob", {"weight": n}, actor="ann") for n in (1, 2)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["AlreadyThere", "Entry"]


@pytest.mark.parametrize(
    ("kind", "name", "body", "path"),
    [
        ("tenants", "bob", {"wait": 2}, ("wait",)),
        ("tenants", "bob", {"weight": -1}, ("weight",)),
        ("tenants", "bob", {"tier": "silver"}, ("tier",)),
        ("tenants", "b b", {}, ("name",)),
        ("tiers", "silver", {"reserve_ratio": 0.6}, ("reserve_ratio",)),
        ("keys", "k1", {**KEY, "tenant": "nobody"}, ("tenant",)),
        ("keys", "k1", {**KEY, "role": "admin"}, ()),
        ("keys", "k1", {**KEY, "created_at": "2026-11-20T10:00:00"}, ("created_at",)),
        ("keys", "k1", {**KEY, "hmac": "secret"}, ("hmac",)),
        ("backends", "b1", {"url": "http://b1:8000", "api_key": "secret"}, ()),
        ("backends", "b1", {"url": "http://b1:8000", "name": "b2"}, ("name",)),
        ("backends", "b1", {"url": "file:///etc/passwd"}, ("url",)),
        ("pools", "chat", {"scheduling": {"fairness": "first"}}, ("scheduling", "fairness")),
    ],
)
async def test_what_would_be_wrong_is_refused_with_the_field_and_the_reason(registry, kind, name, body, path):
    with pytest.raises(Invalid) as caught:
        await registry.changes.create(kind, name, body, actor="ann")
    assert [problem.path for problem in caught.value.problems] == [path]
    assert registry.get(kind, name) is None
    assert await registry.audit_log.entries() == ()


@pytest.mark.parametrize("kind", ["tenants", "groups"])
async def test_who_is_in_a_tier_that_the_file_has_no_more_is_changed_but_put_into_no_such_tier(registry, kind):
    await registry.changes.create(kind, "bob", {"tier": "gold"}, actor="ann")
    registry.redeclare(declared(tenants={"alice": {}}, tiers={}))
    assert (await registry.changes.patch(kind, "bob", {"weight": 3}, actor="ann")).body["tier"] == "gold"
    with pytest.raises(Invalid, match="there is no tier 'silver'"):
        await registry.changes.patch(kind, "bob", {"tier": "silver"}, actor="ann")


async def test_a_tier_in_use_stays(registry):
    await registry.changes.create("tiers", "silver", {"weight": 2}, actor="ann")
    await registry.changes.create("tenants", "bob", {"tier": "silver"}, actor="ann")
    with pytest.raises(Invalid, match="bob"):
        await registry.changes.delete("tiers", "silver", actor="ann")
    await registry.changes.patch("tenants", "bob", {"tier": None}, actor="ann")
    await registry.changes.delete("tiers", "silver", actor="ann")
    assert registry.get("tiers", "silver") is None


async def test_with_a_tenant_its_keys_go_so_that_they_do_not_open_the_next_of_this_name(registry):
    await registry.changes.create("tenants", "bob", {}, actor="ann")
    await registry.changes.create("keys", "k1", {**KEY, "tenant": "bob"}, actor="ann")
    await registry.changes.create("keys", "k2", KEY, actor="ann")
    await registry.changes.delete("tenants", "bob", actor="eve")
    assert registry.get("keys", "k1") is None
    assert registry.get("keys", "k2") is not None
    assert [(entry.actor, entry.action, entry.kind) for entry in (await registry.audit_log.entries(limit=2))] == [
        ("eve", "delete", "keys"),
        ("eve", "delete", "tenants"),
    ]


async def test_several_edits_are_made_whole_or_not_at_all(registry):
    edits = [Edit("tiers", "silver", {"weight": 2}), Edit("tenants", "bob", {"tier": "silver"})]
    tier, tenant = await registry.changes.apply(edits, actor="ann")
    assert (tier.name, tenant.section.tier) == ("silver", "silver")
    with pytest.raises(Invalid):
        await registry.changes.apply(
            [Edit("tenants", "carol", {}), Edit("tenants", "dan", {"tier": "none"})], actor="ann"
        )
    assert registry.get("tenants", "carol") is None


async def test_entries_come_in_pages_by_name(registry):
    for name in ("dan", "bob", "carol"):
        await registry.changes.create("tenants", name, {}, actor="ann")
    first = registry.page("tenants", limit=2)
    assert [entry.name for entry in first] == ["alice", "bob"]
    assert [entry.name for entry in registry.page("tenants", after="bob", limit=9)] == ["carol", "dan"]
    await registry.changes.delete("tenants", "carol", actor="ann")
    assert [entry.name for entry in registry.page("tenants", after="bob")] == ["dan"]


async def test_listeners_hear_what_is_different_in_force_and_only_that(registry):
    heard = []
    stop = registry.subscribe(heard.append)
    await registry.changes.patch("tenants", "alice", {"weight": 3}, actor="ann")
    await registry.refresh()
    registry.redeclare(declared(tenants={"alice": {"weight": 7}, "bob": {}}, tiers={}))
    await registry.changes.delete("tenants", "alice", actor="ann")
    stop()
    await registry.changes.create("tenants", "carol", {}, actor="ann")
    assert heard == [
        {("tenants", "alice")},
        {("tenants", "bob"), ("tiers", "gold")},
        {("tenants", "alice")},
    ]


async def test_the_audit_log_says_who_changed_what_from_what_into_what_and_when(registry):
    await registry.changes.create("tenants", "bob", {"weight": 1}, actor="ann")
    await registry.changes.patch("tenants", "bob", {"weight": 2}, actor="eve")
    entry = (await registry.audit_log.entries(kind="tenants"))[0]
    assert (entry.actor, entry.at_s, entry.before, entry.after) == ("eve", 1_000.0, {"weight": 1.0}, {"weight": 2.0})


class Interfering(SqliteStore):
    """Another writes the same just before."""

    def __init__(self, times):
        super().__init__(None)
        self.times = times

    async def commit(self, changes, *, actor, at_s, replica=""):
        if self.times:
            self.times -= 1
            change = Change(changes[0].kind, changes[0].name, {"weight": 50 + self.times})
            await super().commit([change], actor="other", at_s=at_s)
        return await super().commit(changes, actor=actor, at_s=at_s, replica=replica)


async def started(store):
    registry = Registry(store, declared())
    await registry.start()
    return registry


async def test_a_patch_that_names_no_etag_is_made_of_what_another_has_just_written():
    registry = await started(Interfering(times=2))
    entry = await registry.changes.patch("tenants", "alice", {"in_flight_max": 3}, actor="ann")
    assert entry.body == {"weight": 50.0, "in_flight_max": 3}
    await registry.stop()


async def test_a_change_that_names_an_etag_is_not_made_where_another_was_quicker():
    registry = await started(Interfering(times=1))
    etag = registry.get("tenants", "alice").etag
    with pytest.raises(EtagMismatch):
        await registry.changes.patch("tenants", "alice", {"in_flight_max": 3}, actor="ann", etag=etag)
    assert registry.get("tenants", "alice").body == {"weight": 50.0}
    await registry.stop()


class Away(SqliteStore):
    def __init__(self):
        super().__init__(None)
        self.is_away = False

    def _guarded(self, work):
        if self.is_away:
            raise StoreUnavailable("away")
        return super()._guarded(work)


async def test_while_the_store_is_away_changes_are_refused_and_what_is_in_force_stays(caplog):
    store = Away()
    registry = await started(store)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await registry.changes.create("tenants", "bob", {}, actor="ann")
    assert registry.get("tenants", "bob") is None
    assert registry.get("tenants", "alice") is not None
    store.is_away = False
    await registry.changes.create("tenants", "bob", {}, actor="ann")
    await registry.stop()


async def test_what_another_gateway_wrote_and_this_one_does_not_understand_is_left_as_it_was(caplog):
    store = SqliteStore(None)
    registry = await started(store)
    await store.merge([Document("tenants", "alice", 7, {"weight": 3, "new_field": 1}), Document("planets", "x", 8, {})])
    await registry.refresh()
    assert registry.get("tenants", "alice").body["weight"] == 2.0
    assert "tenants/alice" in caplog.text
    await registry.stop()


async def test_of_two_changes_under_a_guard_at_two_gateways_the_later_is_checked_with_the_earlier(registry):
    """The other gateway has not heard of the first change when it makes its own."""
    other = Registry(registry._store, declared(), clock=lambda: 1_000.0)
    await other.refresh()

    def most(at):
        """At most one tenant has a budget."""

        def check():
            if any(entry.body.get("tokens_per_day_max") for entry in at.entries("tenants")):
                raise PermissionError

        return Guard("red", check)

    budget = {"tokens_per_day_max": 1}
    await registry.changes.create("tenants", "a", budget, actor="x", guard=most(registry))
    assert other.get("tenants", "a") is None
    with pytest.raises(PermissionError):
        await other.changes.create("tenants", "b", budget, actor="x", guard=most(other))
    assert other.get("tenants", "b") is None
    assert [entry.kind for entry in await registry.audit_log.entries()] == ["tenants"]
    await other.changes.create("tenants", "c", {}, actor="x", guard=Guard("blue", lambda: None))


@pytest.mark.parametrize("count", [2, 12])
async def test_changes_under_a_guard_are_all_made_where_each_may_be(registry, count):
    other = Registry(registry._store, declared(), clock=lambda: 1_000.0)
    await other.refresh()
    free = Guard("red", lambda: None)
    made = [
        (registry, other)[number % 2].changes.create("tenants", f"t{number}", {}, actor="x", guard=free)
        for number in range(count)
    ]
    await asyncio.gather(*made)
    await registry.refresh()
    assert sum(entry.name.startswith("t") for entry in registry.entries("tenants")) == count
