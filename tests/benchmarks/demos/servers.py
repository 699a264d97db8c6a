"""A real vLLM and a gateway in front of it, as the demos have them."""

import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests/vllm"))
from processes import Gateway, Vllm  # noqa: E402

BLOCK_TOKENS = 32
SEATS = 32  # max_num_seqs
KV_TOKENS = 10_000


@contextmanager
def vllm(*options, installed, folder, name="vllm", environment=None):
    """A vLLM with 32 seats and a pool of about 10,000 KV tokens, as the engine of the VTC paper had, unless the
    options (of `vllm serve`) say otherwise. `environment` is added to ours.
    """
    options = (
        *("--max-num-seqs", str(SEATS), "--block-size", str(BLOCK_TOKENS)),
        *("--num-gpu-blocks-override", str(KV_TOKENS // BLOCK_TOKENS), "--no-enable-prefix-caching"),
        *("--disable-uvicorn-access-log", *options),
    )
    with _running(Vllm(folder / f"{name}.log", *options, environment=environment or {}, installed=installed)) as server:
        yield server


@contextmanager
def gateway(*, backend, name, folder, **sections):
    """A fresh gateway in front of the backend, where no tenant has a past. Every API key is a tenant of weight 1 unless
    `sections` of the configuration say otherwise; what they say of backends is added to this one.
    """
    entry = {"requests_running_max": SEATS, **sections.pop("backends", {})}
    config = {"access_log": {"enabled": False}, "admin": {"enabled": False}, "auth": {}, **sections}
    directory = folder / f"gateway-{name}"
    directory.mkdir(exist_ok=True)
    with _running(Gateway(directory, backend, backend=entry, config=config)) as server:
        yield server


@contextmanager
def _running(server):
    try:
        yield server.start()
    finally:
        server.stop()
