"""Backends behind TLS: believed where their CA is configured, and not used where it is not."""

import pytest
from gateway_rig import answer, call, gateway, stream
from tls_rig import NEEDS_OPENSSL, behind_tls, make_authority

pytestmark = NEEDS_OPENSSL

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("tls"))


async def test_a_backend_whose_ca_is_configured_is_asked_and_answers_whole_and_streamed(authority):
    async with behind_tls(authority, answer()) as backend:
        entry = {"name": "b0", "url": backend.url, "ca_file": str(authority / "ca.pem")}
        async with gateway(entry) as rig:
            assert rig.gateway.backends.states() == {"b0": "healthy"}
            assert (await rig.post()).status == 200
            backend.default = stream(EVENT, b"data: [DONE]\n\n")
            assert (await rig.post(call(stream=True))).body == EVENT + b"data: [DONE]\n\n"
            assert len(backend.calls) == 2


async def test_a_backend_of_an_unknown_ca_is_not_spoken_to(authority):
    async with behind_tls(authority, answer()) as backend, gateway({"name": "b0", "url": backend.url}) as rig:
        assert (await rig.post()).status == 503
        assert rig.gateway.backends.states()["b0"] in {"unknown", "down"}
        assert backend.polls == backend.calls == []


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "no PEM"])
async def test_a_ca_file_that_cannot_be_read_ends_the_start(tmp_path, content):
    ca_file = tmp_path / "ca.pem"
    if content is not None:
        ca_file.write_text(content)
    with pytest.raises(ValueError, match=r"ca\.pem"):
        async with gateway({"url": "https://127.0.0.1:9", "ca_file": str(ca_file)}):
            pass
