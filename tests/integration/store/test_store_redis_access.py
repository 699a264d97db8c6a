"""Which users may ask Redis: one with no more rights than the documentation gives, a password, a certificate."""

import re
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from redis_server import RedisServer, slow_proxy

from gateway.cluster.election_store import Ask, StoreCall
from gateway.config.state import RedisSection, StateSection
from gateway.store.assembly import make_elections, make_store
from gateway.store.base import Change, Document, Learnt, StoreUnavailable, Totals, UsageKey, UsageQuery, UsageRow
from gateway.store.mirrored import MirroredStore

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "operations.md"
PASSWORD = "a-password"
# A test that runs over midnight (UTC) counts on two days.
ALL_DAYS = UsageQuery("2000-01-01", "9999-12-31")
TODAY = time.strftime("%Y-%m-%d", time.gmtime())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With the user of the documentation alone."""
    rights = re.search(r"ACL SETUSER (fairlead on .*)", DOCUMENTATION.read_text(encoding="utf-8"))
    assert rights is not None
    folder = tmp_path_factory.mktemp("redis")
    acl = folder / "users.acl"
    acl.write_text(f"user default off\nuser {rights[1].replace('PASSWORD', PASSWORD)}\n")
    with RedisServer(folder, "--aclfile", str(acl)) as running:
        yield running


def store(tmp_path, url, **redis):
    given = {"url": url, "username": "fairlead", "password": PASSWORD, **redis}
    made = make_store(StateSection(file=tmp_path / "state.db", redis={**given, "timeout_ms": 5_000}), None)
    assert isinstance(made, MirroredStore)
    return made


async def test_the_documented_rights_are_enough_for_all_that_is_done(server, tmp_path):
    made = store(tmp_path, server.url)
    await made.open()
    (document,) = await made.commit([Change("tenants", "alice", {"weight": 2})], actor="ann", at_s=1.0)
    await made.merge([Document("tenants", "bob", 900, {})], await made.audit())
    await made.put_usage([UsageRow("w", UsageKey(TODAY, "alice", "k", "m"), Totals(1, 2, 3, 4))])
    await made.put_learnt(Learnt("model", 2.0, b"x"))
    await made.close()
    other = tmp_path / "other"
    other.mkdir()
    made = store(other, server.url)
    await made.open()
    assert document in (await made.news(0)).documents
    assert len(await made.audit()) == 1
    assert await made.learnt("model") == Learnt("model", 2.0, b"x")
    assert [row.totals for row in await made.usage(ALL_DAYS)] == [Totals(1, 2, 3, 4)]
    await made.close()


async def test_the_documented_rights_are_enough_to_elect(server):
    given = {"url": server.url, "username": "fairlead", "password": PASSWORD}
    one, two = make_elections(RedisSection(**given)), make_elections(RedisSection(**given))
    view = await one.call(StoreCall(Ask.ACQUIRE, "one", "here:1", 0, 1, 0.0))
    assert (view.leader, view.epoch) == ("one", 1)
    seen = await two.call(StoreCall(Ask.LOOK, "two", "there:2", 0, 1, 0.0))
    assert seen.members == {"one": "here:1", "two": "there:2"}
    await one.put_checkpoint(b"x")
    assert await two.checkpoint() == b"x"
    assert await one.shared_secret() == await two.shared_secret()
    await one.close()
    await two.close()


@pytest.mark.parametrize("wrong", [{"password": "another"}, {"username": "mallory"}, {"username": None}])
async def test_without_the_password_nothing_is_shared_and_the_password_is_not_told(server, tmp_path, wrong, caplog):
    made = store(tmp_path, server.url, **wrong)
    await made.open()
    with pytest.raises(StoreUnavailable) as caught:
        await made.commit([Change("tenants", "alice", {})], actor="ann", at_s=1.0)
    await made.close()
    assert not any(secret in str(caught.value) + caplog.text for secret in (PASSWORD, "another"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_over_tls_a_server_is_believed_whose_certificate_the_configured_authority_signed(server, tmp_path):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=a test's CA")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=redis")
    (tmp_path / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    async with slow_proxy(server.port, 0.0, context) as port:
        for ca_file, is_believed in ((tmp_path / "ca.pem", True), (None, False)):
            made = store(tmp_path, f"rediss://127.0.0.1:{port}/0", ca_file=ca_file)
            await made.open()
            assert made.is_available == is_believed
            await made.close()
