"""The two programs under test as child processes: a real vLLM, and the gateway in front of one.

Both listen on 127.0.0.1 and on a port that was free, write their output to a file, and are ended by
the handle that started them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from wire import Call, fetch

from backends.metrics import EngineMetrics, parse_metrics
from gateway.admin.command.client import AdminClient

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".vllm"  # by install.sh
SMALL_SEATS = 2  # of the vLLM that refuses and is killed (conftest.py)
VLLM_START_S_MAX = 600.0  # on a machine that is busy with something else; one that has ended is noticed at once
GATEWAY_START_S_MAX = 20.0
STOP_S_MAX = 20.0
CONDITION_S_MAX = 60.0  # on a machine that is busy with something else; a condition that holds is noticed at once


class NotStartedError(Exception):
    """A program did not start: its message is a sentence for whoever started it, `log` is what the program wrote."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log


class Server:
    """One program that serves HTTP. `ready` is the path that answers 200 when it can be used."""

    ready = "/health"

    def __init__(self, log: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU time of the process and all below it."""
        return sum(map(_cpu_s, _family(self.pid)))

    def text(self, path: str) -> str:
        status, body = fetch(self.url, path)
        assert status == 200, f"{path}: {status} {body[:200]!r}"
        return body.decode()

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """End it and its children at once, as a power cut would."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
            else:
                with suppress(ProcessLookupError):  # mostly: its children end with it
                    os.killpg(self.pid, signal.SIGKILL)

    def _start(
        self, command: list[str], start_s_max: float, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        assert not self.alive
        with self._log.open("ab") as output:
            # a session of its own: what it starts has its process id as group
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **environment}, start_new_session=True
            )
        try:
            until(lambda: self._is_ready() or not self.alive, timeout_s=start_s_max, what="ready", pause_s=0.1)
            ended = None if self.alive else f"it ended with exit code {self._process.returncode}"
        except AssertionError:
            ended = f"it did not answer {self.ready} within {start_s_max:g} s"
        except BaseException:
            self.stop()
            raise
        if ended is not None:
            self.stop()
            said = self.log_tail().strip()
            last = said.rpartition("\n")[2].strip()
            error = NotStartedError(f"{self._log.stem} did not start: {ended}. Its last line: {last}", self._log)
            error.add_note(said)  # pytest shows it with the failure
            raise error

    def _is_ready(self) -> bool:
        try:
            return fetch(self.url, self.ready)[0] == 200
        except OSError:
            return False


class Vllm(Server):
    """A real vLLM; `options` go to `vllm serve`, `environment` is added to ours. `installed` is where it is; None:
    where install.sh puts it.
    """

    def __init__(
        self,
        log: Path,
        *options: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        installed: Path | None = None,
    ) -> None:
        super().__init__(log)
        self._installed = installed or INSTALLED
        self._options = options
        self._environment = environment

    def start(self) -> "Vllm":
        command = [str(HERE / "serve.sh"), str(self._installed), str(self.port), *self._options]
        self._start(command, VLLM_START_S_MAX, self._environment)
        return self

    def metrics(self) -> EngineMetrics:
        return parse_metrics(self.text("/metrics"))

    def kill_engine(self) -> None:
        """End its engine and leave its API process: what a crash on the device looks like from outside."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        (engine,) = [pid for pid in children if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(engine), signal.SIGKILL)

    def wait_dead(self) -> None:
        """Wait until it has noticed that its engine is gone, and has ended itself."""
        self._process.wait(STOP_S_MAX)


class AdminPort:
    """The admin port of a gateway that is configured with `section`, to look at its state."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self._key_file = directory / "admin-key"
        self.section = {"enabled": True, "port": self._port, "key_file": str(self._key_file)}

    @property
    def _key(self) -> str:
        return self._key_file.read_text().strip()

    def client(self) -> AdminClient:
        return AdminClient(f"http://127.0.0.1:{self._port}", self._key)

    def samples(self, family: str) -> Sequence[Sample]:
        """What /metrics says of this family, which is named without `_total`."""
        headers = {"Authorization": f"Bearer {self._key}"}
        with Call(f"http://127.0.0.1:{self._port}", "/metrics", headers=headers) as call:
            assert call.response.status == 200, call.response.status
            families = text_string_to_metric_families(call.response.read().decode())
        return [sample for each in families if each.name == family for sample in each.samples]

    def pool(self) -> dict[str, Any]:
        """What its one pool holds, with tenants by name."""
        client = self.client()
        (pool,) = client.ask("GET", "/state", None).body["pools"]
        tenants = client.ask("GET", "/state/tenants?limit=1000", None).body["items"]
        return {**pool, "tenants": {each["tenant"]: each for each in tenants}}


WITH_CONSTANTS = """import importlib, json, sys
for name, value in json.loads(sys.argv.pop(1)).items():
    module, _, constant = name.rpartition(".")
    getattr(importlib.import_module(module), constant), setattr(sys.modules[module], constant, value)
from gateway.cli import main
main()"""


class Gateway(Server):
    """`fairlead serve` in front of one vLLM. `backend` are further keys of its entry, `config`
    further sections. `constants` are other values of constants, by module and name.
    """

    ready = "/readyz"

    def __init__(
        self,
        directory: Path,
        vllm: Vllm,
        *,
        backend: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(directory / "gateway.log")
        self._constants = constants
        self._config = directory / "fairlead.yaml"
        self._admin = AdminPort(directory)
        sections = {
            "listen": {"port": self.port},
            "admin": self._admin.section,
            "auth": {"secret_file": str(directory / "secret")},
            "backends": [{"name": "vllm", "url": vllm.url, **(backend or {})}],
            "shutdown": {"lame_duck_s": 0.0, "drain_s": 1.0},
            **(config or {}),
        }
        self._config.write_text(yaml.safe_dump(sections))

    def start(self) -> "Gateway":
        command = [str(Path(sys.executable).parent / "fairlead")]
        if self._constants:
            command = [sys.executable, "-c", WITH_CONSTANTS, json.dumps(self._constants)]
        self._start([*command, "serve", "--config", str(self._config)], GATEWAY_START_S_MAX)
        return self

    def admin(self) -> AdminClient:
        return self._admin.client()

    def samples(self, family: str) -> Sequence[Sample]:
        return self._admin.samples(family)

    def state(self) -> dict[str, Any]:
        """Return the snapshot of the one pool's scheduler, as JSON."""
        return self._admin.pool()

    def queued(self) -> int:
        return self.state()["queued_requests"]

    def in_flight(self) -> int:
        return self.state()["in_flight_requests"]

    def service(self) -> float:
        """Return what all tenants were charged since the start, in priced tokens."""
        return sum(tenant["service"] for tenant in self.state()["tenants"].values())


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _family(int(child))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(
    condition: Callable[[], bool], *, timeout_s: float = CONDITION_S_MAX, what: str = "", pause_s: float = 0.02
) -> None:
    """Wait until the condition holds. Fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(pause_s)
