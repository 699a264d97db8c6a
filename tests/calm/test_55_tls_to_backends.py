"""TLS to backends: verified both ways, 1.2 or newer, and certificates are renewed without a dropped call."""

import contextlib
import ssl

import pytest
from gateway_rig import ScriptedBackend, answer, gateway
from tls_rig import serving_tls

from tests.calm.certificates import Authority

CALLS = 60


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "theirs")


class TlsBackend(ScriptedBackend):
    """Notes the name in the certificate of every client. It closes each connection after its answer."""

    names: list[str]

    async def serve(self, reader, writer):
        subject = (writer.get_extra_info("peercert") or {}).get("subject", ())
        self.names.append(dict(pair for each in subject for pair in each).get("commonName", ""))
        await super().serve(reader, writer)


@contextlib.asynccontextmanager
async def backend_with(pair, *, clients_of=None, tls_max=None):
    """A backend that shows this pair; `clients_of`: it asks its clients for certificates of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of.pem)
    if tls_max is not None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, tls_max
    backend = TlsBackend(answer())
    backend.names = []
    async with serving_tls(backend, context) as served:
        yield served


def entry(backend, authority, pair=None):
    shown = {} if pair is None else {"cert_file": str(pair[0]), "key_file": str(pair[1])}
    return {"name": "b0", "url": backend.url, "ca_file": str(authority.pem), **shown}


async def is_served(backend, authority, pair=None):
    async with gateway(entry(backend, authority, pair), queue={"backend_wait_s_max": 0.0}) as rig:
        status = (await rig.post()).status
        assert (status == 200) == bool(backend.calls)
        assert status in (200, 503)
        return status == 200


@pytest.mark.parametrize("shows_certificate", [False, True])
async def test_a_backend_is_spoken_to_only_where_its_certificate_is_valid_for_its_address(
    ours, theirs, shows_certificate
):
    outcomes, pair = {}, ours.issue("gateway") if shows_certificate else None
    for name, authority, options in (
        ("valid", ours, {}),
        ("expired", ours, {"days": -1}),
        ("of another address", ours, {"address": "127.0.0.2"}),
        ("of another authority", theirs, {}),
    ):
        async with backend_with(authority.issue("backend", **options)) as backend:
            outcomes[name] = await is_served(backend, ours, pair)
            assert outcomes[name] or backend.polls == []
    assert [name for name, served in outcomes.items() if served] == ["valid"]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize(("newest", "served"), [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)])
@pytest.mark.parametrize("shows_certificate", [False, True])
async def test_tls_below_1_2_is_not_spoken(ours, newest, served, shows_certificate):
    pair = ours.issue("gateway") if shows_certificate else None
    async with backend_with(ours.issue("backend"), tls_max=newest) as backend:
        assert await is_served(backend, ours, pair) is served


async def test_a_backend_that_asks_for_a_certificate_gets_it_and_serves_no_other_client(ours, theirs):
    async with backend_with(ours.issue("backend"), clients_of=ours) as backend:
        assert await is_served(backend, ours, ours.issue("gateway"))
        assert set(backend.names) == {"gateway"}, "calls and health checks"
    for pair in (None, theirs.issue("gateway"), ours.issue("expired", days=-1)):
        async with backend_with(ours.issue("backend"), clients_of=ours) as backend:
            assert not await is_served(backend, ours, pair)


async def test_a_renewed_certificate_is_shown_without_a_dropped_call(ours, figure, caplog):
    pair = ours.issue("first")

    def replace_by(name):
        for file, new in zip(pair, ours.issue(name), strict=True):
            new.rename(file)

    async with backend_with(ours.issue("backend"), clients_of=ours) as backend:

        async def answer_and_close(reader, writer):
            await answer()(reader, writer)
            return False

        backend.default = answer_and_close  # so that every call makes a connection
        async with gateway(entry(backend, ours, pair)) as rig:
            statuses = []
            for number in range(CALLS):
                if number == CALLS // 3:
                    ours.issue("half")[0].rename(pair[0])  # not the key's any more
                if number == 2 * CALLS // 3:
                    replace_by("second")
                statuses.append((await rig.post()).status)
            failed = len(statuses) - statuses.count(200)
            figure(55, "calls dropped at a renewal", failed, f"of {CALLS}", target="0")
            assert failed == 0
            assert backend.names[0] == "first"
            assert backend.names[-1] == "second"
            assert "half" not in backend.names
            assert "the last certificate for backends stays" in caplog.text


@pytest.mark.parametrize("missing", ["cert_file", "key_file"])
async def test_half_a_pair_is_an_error_at_the_start(ours, missing):
    pair = dict(zip(("cert_file", "key_file"), map(str, ours.issue("half")), strict=True))
    pair.pop(missing)
    with pytest.raises(ValueError, match="cert_file and key_file"):
        async with gateway({"url": "https://127.0.0.1:9", **pair}):
            pass
