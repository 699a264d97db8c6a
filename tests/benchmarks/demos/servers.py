"""A real vLLM and a gateway in front of it, started and ended by this run, with what they cost in CPU time."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
GATEWAY = ROOT / ".venv/bin/fairlead"
BOOT_S_MAX = 120.0
END_S_MAX = 15.0
BLOCK_TOKENS = 32
SEATS = 32  # max_num_seqs
KV_TOKENS = 10_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Server:
    """A process that answers on 127.0.0.1:`port`."""

    def __init__(self, process, port, log):
        self._process = process
        self.port = port
        self._log = log

    def wait_until_up(self, path):
        """Wait for a 200; RuntimeError with the end of its log when it has not come up in time."""
        deadline = time.monotonic() + BOOT_S_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        raise RuntimeError(f"{self._process.args[0]} did not come up:\n{self._log.read_text()[-2000:]}")

    def cpu_s(self):
        """CPU time of the process and all below it."""
        return sum(_cpu_s(pid) for pid in _family(self._process.pid))

    def end(self):
        self._process.terminate()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def vllm(*options, installed, folder, name="vllm", environment=None):
    """A vLLM with 32 seats and a pool of about 10,000 KV tokens, as the engine of the VTC paper had, unless the
    options (of `vllm serve`) say otherwise. `environment` is added to ours.
    """
    command = [
        str(ROOT / "tests/vllm/serve.sh"),
        *(str(installed), str(port := _free_port())),
        *("--max-num-seqs", str(SEATS), "--block-size", str(BLOCK_TOKENS)),
        *("--num-gpu-blocks-override", str(KV_TOKENS // BLOCK_TOKENS), "--no-enable-prefix-caching"),
        *("--disable-uvicorn-access-log", *options),
    ]
    with _running(command, port, folder / f"{name}.log", "/health", environment) as server:
        yield server


@contextmanager
def gateway(*, backend, name, folder, **sections):
    """A fresh gateway in front of the backend, where no tenant has a past. Every API key is a tenant of weight 1 unless
    `sections` of the configuration say otherwise; what they say of backends is added to this one.
    """
    address = {"url": f"http://127.0.0.1:{backend.port}", "requests_running_max": SEATS}
    config = {
        "listen": {"port": (port := _free_port())},
        "access_log": {"enabled": False},
        "shutdown": {"lame_duck_s": 0, "drain_s": 1},
        **sections,
        "backends": [{**address, **sections.get("backends", {})}],
    }
    file = folder / f"fairlead-{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [str(GATEWAY), "serve", "--config", str(file)]
    with _running(command, port, folder / f"gateway-{name}.log", "/readyz") as server:
        yield server


@contextmanager
def _running(command, port, log, path, environment=None):
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    server = Server(process, port, log)
    try:
        server.wait_until_up(path)
        yield server
    finally:
        server.end()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _family(pid):
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _family(int(child))


def _cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
