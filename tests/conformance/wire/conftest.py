"""Three vLLMs, one that writes, one that embeds and one that classifies, and a gateway in front of each.

They are started together, because most of a start is waiting, and are gone after the last test of this folder.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from processes import Gateway, Vllm

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
SERVERS = {
    # Which part of a prompt was cached is a matter of what was asked before: here nothing is.
    "text": ("--enable-prompt-tokens-details", "--no-enable-prefix-caching", *TOOLS),
    "embed": ("--runner=pooling", "--convert=embed"),
    "classify": ("--runner=pooling", "--convert=classify"),
}
KEEPS_RESPONSES = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
AS_VLLM = {"allowed_origins": []}  # which pages may ask, by default


@pytest.fixture(scope="package")
def servers(tmp_path_factory):
    """By name, the URL of a vLLM and that of the gateway in front of it."""
    directory = tmp_path_factory.mktemp("wire")
    vllms = {
        name: Vllm(directory / f"{name}.log", *options, environment=KEEPS_RESPONSES)
        for name, options in SERVERS.items()
    }
    with ExitStack() as stack:
        for vllm in vllms.values():
            stack.callback(vllm.stop)
        with ThreadPoolExecutor() as threads:
            list(threads.map(Vllm.start, vllms.values()))
        gateways = {name: _gateway(directory / name, vllm) for name, vllm in vllms.items()}
        for gateway in gateways.values():
            stack.callback(gateway.stop)
            gateway.start()
        yield {name: (vllm.url, gateways[name].url) for name, vllm in vllms.items()}


def _gateway(directory, vllm):
    directory.mkdir()
    return Gateway(directory, vllm, listen=AS_VLLM)
