"""Keys become tenants, and unknown keys none."""

from ipaddress import ip_network

import pytest
from multidict import CIMultiDict

from gateway.config.key_file import KeyRecord, add_key, key_hmac, make_secret
from gateway.config.sections import AuthSection
from gateway.identity.auth import (
    KEY_CHARS_MAX,
    TENANT_HEADERS,
    Authenticator,
    Identity,
    TrustedProxies,
    Unauthorized,
    make_authenticator,
    tenant_keys,
)
from gateway.identity.key_ring import KeyRing

SECRET = b"0123456789abcdef"


def record(tenant: str, key: str) -> KeyRecord:
    return KeyRecord(tenant=tenant, hmac=key_hmac(SECRET, key).hex(), last_four=key[-4:], created_at="2026-01-01")


RECORDS = [record("alice", "fl-a"), record("alice", "fl-a2"), record("bob", "fl-b")]
KNOWN = Authenticator(keys=tenant_keys(SECRET, RECORDS))
OPEN = Authenticator(open_secret=SECRET)


def bearer(key: str) -> CIMultiDict[str]:
    return CIMultiDict({"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize(("key", "tenant"), [("fl-a", "alice"), ("fl-a2", "alice"), ("fl-b", "bob")])
def test_a_known_key_is_its_tenant(key, tenant):
    assert KNOWN.identify(bearer(key)) == Identity(tenant)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer fl-x"},
        {"Authorization": "Bearer FL-A"},
        {"Authorization": "Basic fl-a"},
        {"Authorization": "fl-a"},
        {"Authorization": "Bearer \udcff"},
        {"Authorization": "Bearer " + "x" * (KEY_CHARS_MAX + 1)},
        {"x-api-key": "fl-x"},
        # One wrong key is not mended by a right one elsewhere.
        {"Authorization": "Bearer fl-x", "x-api-key": "fl-a"},
    ],
)
def test_anything_else_is_unauthorized(headers):
    with pytest.raises(Unauthorized):
        KNOWN.identify(CIMultiDict(headers))


@pytest.mark.parametrize("headers", [{"X-API-Key": "fl-a"}, {"Api-Key": "fl-a"}, {"authorization": "bearer  fl-a "}])
def test_a_key_may_come_as_sdks_send_it(headers):
    assert KNOWN.identify(CIMultiDict(headers)) == Identity("alice")


def test_a_key_made_with_another_secret_is_unknown():
    other = Authenticator(keys=tenant_keys(b"another secret!!", [record("alice", "fl-a")]))
    with pytest.raises(Unauthorized):
        other.identify(bearer("fl-a"))


def test_in_open_mode_every_key_is_its_own_tenant_and_its_name_tells_nothing_of_it():
    one, two = OPEN.identify(bearer("key-one")), OPEN.identify(bearer("key-two"))
    assert one != two
    assert one == OPEN.identify(CIMultiDict({"x-api-key": "key-one"}))
    assert one.tenant_id.startswith("key-")
    assert len(one.tenant_id) == len("key-") + 12
    assert "one" not in one.tenant_id
    assert one != Authenticator(open_secret=b"another secret!!").identify(bearer("key-one"))


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"x-api-key": ""}])
def test_in_open_mode_no_key_is_the_tenant_anonymous(headers):
    assert OPEN.identify(CIMultiDict(headers)) == Identity("anonymous")


def test_in_open_mode_another_scheme_or_an_endless_key_is_unauthorized():
    for headers in ({"Authorization": "Basic eA=="}, {"x-api-key": "x" * (KEY_CHARS_MAX + 1)}):
        with pytest.raises(Unauthorized):
            OPEN.identify(CIMultiDict(headers))


def test_keys_are_read_from_the_files_of_the_configuration(tmp_path):
    auth = AuthSection(mode="keys", secret_file=tmp_path / "secret", keys_file=tmp_path / "keys")
    make_secret(auth.secret_file)
    secret = auth.secret_bytes()
    assert secret is not None
    key = add_key(auth.keys_file, tenant="alice", secret=secret, created_at="now")
    assert make_authenticator(auth).identify(bearer(key)) == Identity("alice")


def test_an_open_gateway_without_a_secret_makes_one_up_at_every_start(tmp_path):
    auth = AuthSection(secret_file=tmp_path / "none")
    one, two = make_authenticator(auth), make_authenticator(auth)
    assert one.identify(bearer("k")) != two.identify(bearer("k"))
    configured = AuthSection(secret="sixteen-bytes-or-more")
    assert make_authenticator(configured).identify(bearer("k")) == make_authenticator(configured).identify(bearer("k"))


# -- proxies -------------------------------------------------------------------------------------------------------

PROXIES = TrustedProxies([ip_network("10.1.0.0/16"), ip_network("fd00::/8"), ip_network("127.0.0.1/32")])


@pytest.mark.parametrize("name", TENANT_HEADERS)
@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::7", "127.0.0.1"])
def test_a_trusted_peer_names_the_tenant(name, peer):
    assert PROXIES.named(CIMultiDict({name.upper(): "team/a"}), peer) == Identity("team/a")


@pytest.mark.parametrize("peer", ["10.2.0.1", "::1", "127.0.0.2", "::ffff:10.2.0.1", None, "", "not an address"])
def test_what_any_other_peer_says_is_not_read(peer):
    for named in ("alice", "no tenant!"):
        assert PROXIES.named(CIMultiDict({"x-tenant-id": named}), peer) is None


def test_a_trusted_peer_that_names_no_tenant_leaves_it_to_the_key():
    assert PROXIES.named(CIMultiDict(), "10.1.2.3") is None
    assert not TrustedProxies([]).any


@pytest.mark.parametrize("named", ["", " ", "a b", "a\nb", "-a", "ä", "a" * 129, "a;b"])
def test_a_name_that_no_tenant_can_have_is_unknown(named):
    with pytest.raises(Unauthorized):
        PROXIES.named(CIMultiDict({"x-tenant-id": named}), "10.1.2.3")


def test_the_first_header_that_names_one_counts():
    headers = CIMultiDict({TENANT_HEADERS[2]: "c", TENANT_HEADERS[1]: "b"})
    assert PROXIES.named(headers, "10.1.2.3") == Identity("b")


def test_a_key_is_unknown_from_when_it_expires():
    now = [100.0]
    ring = KeyRing(SECRET, clock=lambda: now[0])
    ring.put("k1", ring.hmac_hex("fl-x"), Identity("alice"), expires_at_s=200.0)
    assert ring.find("fl-x") == Identity("alice")
    now[0] = 200.0
    assert ring.find("fl-x") is None


def test_a_key_that_is_dropped_is_unknown_and_one_that_is_put_again_has_its_new_owner():
    ring = tenant_keys(SECRET, [record("alice", "fl-a")])
    key_id = ring.find("fl-a").key_id
    ring.put(key_id, ring.hmac_hex("fl-a"), Identity("alice", frozenset({"tiny"})))
    assert not ring.find("fl-a").may_use("large")
    ring.drop(key_id)
    assert ring.find("fl-a") is None
