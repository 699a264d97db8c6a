"""Three vLLMs, one that writes, one that embeds and one that classifies, and a gateway in front of each.

They are started together, because most of a start is waiting, and are gone after the last test of this folder.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from house import house as gateway_house
from processes import Gateway, Vllm

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
# Or a model that knows nothing writes white space for ever, where JSON allows it.
COMPACT = '--structured-outputs-config={"backend": "xgrammar", "disable_any_whitespace": true}'
SERVERS = {
    # Which part of a prompt was cached is a matter of what was asked before: here nothing is.
    "text": ("--enable-prompt-tokens-details", "--no-enable-prefix-caching", COMPACT, *TOOLS),
    "embed": ("--runner=pooling", "--convert=embed"),
    "classify": ("--runner=pooling", "--convert=classify"),
}
SERVES_ALL = {"VLLM_ENABLE_RESPONSES_API_STORE": "1", "VLLM_ENABLE_COHERE_API": "1"}


@pytest.fixture(scope="package")
def vllms(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wire")
    servers = {
        name: Vllm(directory / f"{name}.log", *options, environment=SERVES_ALL) for name, options in SERVERS.items()
    }
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(Vllm.start, servers.values()))
        yield servers
    finally:
        for server in servers.values():
            server.stop()


@pytest.fixture(scope="package")
def servers(vllms, tmp_path_factory):
    """By name, the URL of a vLLM and that of the gateway in front of it."""
    with ExitStack() as stack:
        urls = {}
        for name, vllm in vllms.items():
            gateway = Gateway(tmp_path_factory.mktemp(name), vllm)
            stack.callback(gateway.stop)
            urls[name] = (vllm.url, gateway.start().url)
        yield urls


@pytest.fixture(scope="package")
def house(vllms, tmp_path_factory):
    with gateway_house(tmp_path_factory.mktemp("house"), vllms["text"]) as served:
        yield served


@pytest.fixture(scope="package")
def embedding_house(vllms, tmp_path_factory):
    with gateway_house(tmp_path_factory.mktemp("house"), vllms["embed"]) as served:
        yield served
