"""The port where processes of one order meet: whoever reaches it without the secret gets no byte read and none back."""

import asyncio
import contextlib
import socket
import ssl
import stat
import subprocess
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from gateway_rig import PATIENCE_S
from tls_rig import NEEDS_OPENSSL, make_authority

from gateway.cluster.hello import Hello, HelloError
from gateway.cluster.wire import VERSION
from gateway.config.cluster import ClusterTls
from gateway.ports.listener import HANDSHAKES_MAX, Handshakes, Listener
from gateway.shared_order import services
from gateway.shared_order.credentials import _Authority, _load, _pem, derived_credentials, given_credentials
from gateway.shared_order.place import MemberPlace
from gateway.shared_order.services import MemberPort, Peers, ServiceClient, _Question
from gateway.store.base import StoreUnavailable
from gateway.tasks import Tasks
from gateway.workers.parent import ParentProcess

SECRET, OTHER = b"a secret of the cluster", b"another secret, as long"


def place_of(name, *secrets, **options):
    return MemberPlace(
        name=name,
        secret=b"",
        listen=("127.0.0.1", 0),
        credentials=derived_credentials(secrets or [SECRET], name),
        **options,
    )


@contextlib.asynccontextmanager
async def listening(*places):
    """A port of each place, whose service `state` answers with the name."""
    async with contextlib.AsyncExitStack() as stack:
        for place in places:

            async def order(websocket, name):
                await websocket.close()

            async def state(_body, name=place.name):
                return name.encode()

            port = MemberPort(place, {"state": state}, order=order)
            await port.start()
            stack.push_async_callback(port.stop)
        yield


async def asked(place, of, service="state"):
    """What the process at `of` answers to this one."""
    client = ServiceClient(place, of.address)
    try:
        return await client.ask(service)
    finally:
        await client.close()


async def test_two_that_know_the_secret_reach_each_other():
    one, other = place_of("m1"), place_of("m 2/ü")
    async with listening(one, other):
        assert await asked(one, other) == other.name.encode()
        assert await asked(other, one) == b"m1"


async def test_who_does_not_answer_in_time_is_said_to_be_late(monkeypatch):
    monkeypatch.setattr(services, "ANSWER_S_MAX", 0.3)
    one, other = place_of("m1"), place_of("m2")
    port = MemberPort(other, {"state": lambda _body: asyncio.sleep(PATIENCE_S)}, order=None)
    await port.start()
    try:
        with pytest.raises(StoreUnavailable, match=r"does not answer: not in 0\.3 s$"):
            await asked(one, other)
    finally:
        await port.stop()


async def test_who_connects_the_ports_of_two_replicas_with_each_other_gets_nothing_of_either():
    """As it could be done while a proof did not say who connects to whom: each was handed the other's."""
    one, other = place_of("m1"), place_of("m2")
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    async with listening(one, other), aiohttp.ClientSession() as session:
        for scheme, context in (("http", True), ("https", unchecked)):
            heard = []
            for place in (one, other):
                with contextlib.suppress(aiohttp.ClientError):
                    websocket = await session.ws_connect(f"{scheme}://{place.address}/services", ssl=context)
                    heard.append((await websocket.receive()).data)
            assert heard == []


async def test_a_relay_in_the_middle_of_two_replicas_can_neither_read_nor_change_what_passes():
    one, other = place_of("first member"), place_of("second member")
    passed = bytearray()

    async def relay(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(*other.address.split(":"))

        async def carry(source, sink):
            while data := await source.read(1 << 16):
                passed.extend(data)
                sink.write(data)
            sink.close()

        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer), return_exceptions=True)

    async with listening(one, other):
        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        between = MemberPlace(name="", secret=b"", listen="")
        between.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await asked(one, between) == b"second member"
        server.close()
        await server.wait_closed()
    assert passed
    for seen in (b"first member", b"second member", b"state", b"services", b"GET /"):
        assert seen not in passed


@pytest.mark.parametrize("secrets", [[OTHER], [OTHER, b"a third one, no better"]])
async def test_another_secret_is_refused_by_both_ends(secrets, caplog):
    member, stranger = place_of("m1"), place_of("m2", *secrets)
    async with listening(member, stranger):
        for client, server in ((member, stranger), (stranger, member)):
            with pytest.raises(StoreUnavailable, match="does not know the cluster's secret"):
                await asked(client, server)


async def test_a_secret_is_replaced_by_way_of_two_that_are_accepted():
    old, both_old, both_new, new = (
        place_of(f"m{number}", *secrets)
        for number, secrets in enumerate([[SECRET], [SECRET, OTHER], [OTHER, SECRET], [OTHER]])
    )
    async with listening(old, both_old, both_new, new):
        for one, other in ((old, both_old), (both_old, both_new), (both_new, new)):
            assert await asked(one, other) == other.name.encode()
            assert await asked(other, one) == one.name.encode()
        for one, other in ((old, new), (new, old)):
            with pytest.raises(StoreUnavailable):
                await asked(one, other)


@NEEDS_OPENSSL
async def test_what_the_operators_ca_has_signed_for_another_service_is_no_member(tmp_path):
    authority = make_authority(tmp_path)
    (tmp_path / "san").write_text("subjectAltName=DNS:elsewhere,IP:127.0.0.1,DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    command = ("openssl", "x509", "-req", "-in", "server.csr", "-out", "other.pem", *signed)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)  # noqa: ASYNC221 - nothing else runs yet

    def given(name, certificate):
        files = {"cert_file": authority / certificate, "key_file": authority / "server.key"}
        place = place_of(name)
        place.credentials = given_credentials(ClusterTls(**files, ca_file=authority / "ca.pem"))
        return place

    one, other, stranger = given("m1", "server.pem"), given("m2", "server.pem"), given("m3", "other.pem")
    async with listening(one, other, stranger):
        assert await asked(one, other) == b"m2"
        for client, server in ((one, stranger), (stranger, one)):
            with pytest.raises(StoreUnavailable):
                await asked(client, server)


@NEEDS_OPENSSL
def test_a_certificate_that_names_the_machine_alone_is_no_proof(tmp_path):
    authority = make_authority(tmp_path)
    (tmp_path / "san").write_text("subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost,DNS:here.localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san")
    command = ("openssl", "x509", "-req", "-in", "server.csr", "-out", "other.pem", *signed)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    files = {"cert_file": authority / "other.pem", "key_file": authority / "server.key"}
    with pytest.raises(ValueError, match="no subjectAltName"):
        given_credentials(ClusterTls(**files, ca_file=authority / "ca.pem"))


@pytest.mark.parametrize("is_self_signed", [True, False], ids=["self-signed", "of a CA of the same name"])
async def test_a_certificate_that_names_a_member_and_is_not_of_the_ca_is_refused_by_both_ends(is_self_signed):
    forger, key = _Authority(SECRET), Ed25519PrivateKey.generate()
    forger._key = key if is_self_signed else Ed25519PrivateKey.generate()
    forger._name = x509.Name([]) if is_self_signed else forger._name
    forged = _pem(key) + forger.issue(key, "m2").public_bytes(Encoding.PEM)
    member, stranger = place_of("m1"), place_of("m2")
    for context in (stranger.credentials.accepting, stranger.credentials.connecting):
        _load(context, forged)
    async with listening(member, stranger):
        for client, server in ((member, stranger), (stranger, member)):
            with pytest.raises(StoreUnavailable):
                await asked(client, server)


async def test_a_member_that_listens_at_the_address_of_another_is_not_taken_for_it():
    """So it is where an address was given to another process, or something in between leads elsewhere."""
    one, other, third = place_of("m1"), place_of("m2"), place_of("m3")
    async with listening(one, other, third):
        member = SimpleNamespace(follower=SimpleNamespace(link=SimpleNamespace(leader="m2")))
        peers = Peers(SimpleNamespace(place=one, leader=None, member=member), Tasks())
        try:
            one.addresses = {"m2": other.address}
            assert await peers.ask_leader("state") == b"m2"
            one.addresses = {"m2": third.address}
            with pytest.raises(StoreUnavailable, match="m3 listens there"):
                await peers.ask_leader("state")
        finally:
            await peers.close()


@NEEDS_OPENSSL
@pytest.mark.parametrize("is_given", [False, True], ids=["derived", "given"])
async def test_an_older_tls_is_spoken_by_neither_end(tmp_path, is_given):
    one, other = place_of("m1"), place_of("m2")
    if is_given:
        files = make_authority(tmp_path)
        tls = ClusterTls(cert_file=files / "server.pem", key_file=files / "server.key", ca_file=files / "ca.pem")
        one.credentials, other.credentials = given_credentials(tls), given_credentials(tls)
    old = other.credentials
    for context in (old.accepting, old.connecting):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(one, other):
        for client, server in ((one, other), (other, one)):
            with pytest.raises(StoreUnavailable):
                await asked(client, server)


async def test_a_member_cannot_speak_in_the_name_of_another():
    one, posing = place_of("m1"), place_of("m2")
    posing.name = "m3"
    async with listening(one, posing):
        for client, server in ((one, posing), (posing, one)):
            with pytest.raises(StoreUnavailable):
                await asked(client, server)


async def test_of_connections_that_come_at_once_no_more_are_kept_than_of_those_that_come_in_turn():
    credentials = place_of("m1").credentials
    handshakes = Handshakes(lambda: credentials.accepting, lambda _reason: None, s_max=10 * PATIENCE_S)
    listener = Listener(web.Server(lambda _request: None), ("127.0.0.1", 0), handshakes, stop_s_max=0.1)
    await listener.start()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket()) for _ in range(4 * HANDSHAKES_MAX)]
        for each in silent:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.connect(listener._sockets[0].getsockname())

        def is_open(connection):
            with contextlib.suppress(BlockingIOError):
                return connection.recv(1) != b""
            return True

        async with asyncio.timeout(PATIENCE_S):
            while sum(map(is_open, silent)) > HANDSHAKES_MAX:  # noqa: ASYNC110 - they are in the kernel
                await asyncio.sleep(0.01)
    await listener.stop()


async def test_of_a_stranger_no_byte_is_kept_and_its_handshakes_do_not_keep_a_member_out():
    one, other = place_of("m1"), place_of("m2")
    async with listening(one, other):
        host, port = one.address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(HANDSHAKES_MAX + 20)]
        assert await asked(other, one) == b"m1"
        open_now = [reader for reader, _ in silent if not reader.at_eof()]
        assert len(open_now) <= HANDSHAKES_MAX
        for _, writer in silent:
            writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /services HTTP/1.1\r\nHost: m1\r\nUpgrade: websocket\r\n\r\n" + bytes(1 << 20))
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in await reader.read()
        writer.close()


async def test_a_handshake_that_does_not_go_on_is_ended():
    failed = []
    handshakes = Handshakes(lambda: place_of("m1").credentials.accepting, failed.append, s_max=0.1)
    server = web.Server(lambda _request: None)
    listener = Listener(server, ("127.0.0.1", 0), handshakes, stop_s_max=0.1)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener._sockets[0].getsockname()[1])
    async with asyncio.timeout(2.0):
        assert await reader.read() == b""
    writer.close()
    assert len(failed) == 1
    await listener.stop()


async def test_connections_that_are_refused_again_and_again_are_logged_once(caplog):
    member, stranger = place_of("m1"), place_of("m2", OTHER)
    async with listening(member):
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await asked(stranger, member)
    assert sum("was refused" in record.getMessage() for record in caplog.records) == 1


async def test_a_member_has_one_connection_for_questions_the_newest():
    one, other = place_of("m1"), place_of("m2")
    async with listening(one, other):
        first, second = ServiceClient(other, one.address), ServiceClient(other, one.address)
        assert await first.ask("state") == await second.ask("state") == b"m1"
        async with asyncio.timeout(1.0):
            while first._websocket is not None:  # noqa: ASYNC110 - its reader notices
                await asyncio.sleep(0.01)
        assert await second.ask("state") == b"m1"
        await first.close()
        await second.close()


def test_the_sockets_of_workers_are_in_a_folder_of_their_user_alone():
    folder = ParentProcess(1, lambda _place: 0, None).folder  # type: ignore[arg-type]
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        folder.rmdir()


def test_a_greeting_has_the_form_that_every_version_reads():
    assert msgspec.msgpack.decode(Hello(1, "m1").encode()) == ["hello", 1, "m1", True]


@pytest.mark.parametrize(
    "body",
    [
        Hello(VERSION + 1, "m2").encode(),
        Hello(VERSION, "m1").encode(),
        b"\xff",
        Hello(VERSION, "m" * 2_000).encode(),
        msgspec.msgpack.encode(_Question(1, "state", b"")),
    ],
)
def test_another_version_the_own_name_and_what_is_no_greeting_are_refused(body):
    with pytest.raises(HelloError):
        Hello(VERSION, "m1").met(body)
