"""Fixtures: two real vLLMs, a gateway in front of each, and clients that speak to them.

`vllm` is an ordinary server. `small` has two seats and refuses what is more than one ahead of them, and is
the one that gets killed; it is started again for the next test that needs it. `endpoint` runs a test twice:
against vLLM itself, which says what is right, and through the gateway, which must not be told apart from it.
"""

import plugin
import pytest
from openai import OpenAI
from processes import INSTALLED, SMALL_SEATS, Gateway, Vllm

SMALL_IN_FLIGHT_MAX = 3


@pytest.fixture(scope="session")
def vllm(tmp_path_factory):
    server = Vllm(tmp_path_factory.mktemp("vllm") / "vllm.log", "--enable-prompt-tokens-details")
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Where fairlead-vllm is installed, for servers that have it."""
    return plugin.install(INSTALLED / "venv" / "bin" / "python", tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="session")
def gateway(vllm, tmp_path_factory):
    server = Gateway(tmp_path_factory.mktemp("gateway"), vllm)
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def narrow_gateway(vllm, tmp_path_factory):
    """A gateway that gives the backend one request at a time, so that others wait in its own queue."""
    server = Gateway(tmp_path_factory.mktemp("narrow"), vllm, backend={"requests_running_max": 1})
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def _small(tmp_path_factory):
    server = Vllm(
        tmp_path_factory.mktemp("small") / "vllm.log",
        f"--max-num-seqs={SMALL_SEATS}",
        f"--max-num-queued-reqs={SMALL_IN_FLIGHT_MAX}",
    )
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _small_gateway(_small, tmp_path_factory):
    # It believes in more seats than there are: what vLLM does not admit has to be asked again.
    server = Gateway(tmp_path_factory.mktemp("small"), _small, backend={"requests_running_max": 8})
    yield server
    server.stop()


@pytest.fixture
def small(_small):
    if not _small.alive:
        _small.start()
    return _small


@pytest.fixture
def small_gateway(small, _small_gateway):
    if not _small_gateway.alive:
        _small_gateway.start()
    return _small_gateway


@pytest.fixture(params=["vllm", "gateway"])
def endpoint(request):
    """The URL under test, without /v1."""
    return request.getfixturevalue(request.param).url


@pytest.fixture
def client(endpoint):
    """The official client, without the retries that would hide a failure."""
    with OpenAI(base_url=f"{endpoint}/v1", api_key="sk-test", max_retries=0, timeout=60.0) as client:
        yield client
