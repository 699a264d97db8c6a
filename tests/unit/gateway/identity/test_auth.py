"""Keys become tenants, and unknown keys none."""

from ipaddress import ip_network

import pytest
from multidict import CIMultiDict

from gateway.config.key_file import add_key, key_hmac, make_secret, read_keys
from gateway.config.sections import AuthSection
from gateway.identity.auth import (
    KEY_CHARS_MAX,
    TENANT_HEADERS,
    Authenticator,
    Identity,
    TrustedProxies,
    Unauthorized,
    make_authenticator,
)
from gateway.identity.key_ring import KeyRing

SECRET = b"0123456789abcdef"


def ring_of(secret: bytes, **keys: str) -> KeyRing[Identity]:
    """A ring that checks by this secret. It has the HMACs of these keys' tenants by SECRET, each with its key as id."""
    ring: KeyRing[Identity] = KeyRing(secret)
    for key, tenant in keys.items():
        ring.put(key, key_hmac(SECRET, f"fl-{key}").hex(), Identity(tenant, key_id=key))
    return ring


KNOWN = Authenticator(keys=ring_of(SECRET, a="alice", a2="alice", b="bob"))
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
    other = Authenticator(keys=ring_of(b"another secret!!", a="alice"))
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


def test_keys_are_checked_by_the_secret_of_the_configuration(tmp_path):
    auth = AuthSection(mode="keys", secret_file=tmp_path / "secret", keys_file=tmp_path / "keys")
    make_secret(auth.secret_file)
    secret = auth.secret_bytes()
    assert secret is not None
    key = add_key(auth.keys_file, tenant="alice", secret=secret, created_at="2026-01-01T00:00:00+00:00")
    authenticator = make_authenticator(auth)
    authenticator.keys.put("k1", read_keys(auth.keys_file)[0].hmac, Identity("alice"))
    assert authenticator.identify(bearer(key)) == Identity("alice")


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
    ring = ring_of(SECRET, a="alice")
    key_id = ring.find("fl-a").key_id
    ring.put(key_id, ring.hmac_hex("fl-a"), Identity("alice", frozenset({"tiny"})))
    assert not ring.find("fl-a").may_use("large")
    ring.drop(key_id)
    assert ring.find("fl-a") is None
