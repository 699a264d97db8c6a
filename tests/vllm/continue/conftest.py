"""Two real vLLMs that are alike, a cutter before each, and a gateway in front of both."""

import pytest
from cutter import Cutter, Plan
from processes import Gateway, Vllm


@pytest.fixture(scope="package")
def twins(tmp_path_factory):
    directory = tmp_path_factory.mktemp("twins")
    servers = [Vllm(directory / f"{name}.log", "--enable-prompt-tokens-details") for name in ("one", "other")]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(scope="package")
def plan():
    return Plan()


@pytest.fixture(scope="package")
def cut_gateway(twins, plan, tmp_path_factory):
    """A gateway that reaches both through cutters, and leaves a backend alone for as short as it may after a cut."""
    cutters = [Cutter(server.url, plan).start() for server in twins]
    backends = [{"name": f"twin-{number}", "url": cutter.url} for number, cutter in enumerate(cutters)]
    gateway = Gateway(tmp_path_factory.mktemp("gateway"), twins[0], config={"backends": backends})
    yield gateway.start()
    gateway.stop()
    for cutter in cutters:
        cutter.stop()
