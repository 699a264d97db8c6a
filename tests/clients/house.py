"""A gateway that wants keys, as a program of its own, for the packages that people really use."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from processes import GATEWAY_START_S_MAX, AdminPort, Server, Vllm
from typer.testing import CliRunner

from gateway.cli import app

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")
ENGINE = {"model": "tiny", "coefficients": "cpu-tiny"}


@dataclass(frozen=True)
class House:
    """Where to ask, with keys of two tenants, and of one that may ask once a minute. `state` is the scheduler's."""

    url: str
    key: str
    other_key: str
    limited_key: str
    state: Callable[[], dict[str, Any]]

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def in_flight(self) -> int:
        return self.state()["in_flight_requests"]


@contextmanager
def house(directory: Path, vllm: Vllm | None = None) -> Iterator[House]:
    """A gateway in front of this vLLM, or of the embedded engine."""
    server = KeyedGateway(directory, {"engine": ENGINE} if vllm is None else {"backends": [{"url": vllm.url}]})
    try:
        yield server.start()
    finally:
        server.stop()


class KeyedGateway(Server):
    ready = "/readyz"

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        super().__init__(directory / "gateway.log")
        self._config = directory / "fairlead.yaml"
        self._admin = AdminPort(directory)
        sections = {
            "listen": {"port": self.port},
            "admin": self._admin.section,
            "auth": {
                "mode": "keys",
                "keys_file": str(directory / "keys"),
                "secret_file": str(directory / "secret"),
            },
            "tenants": {"alice": {}, "bob": {}, "carol": {"requests_per_minute_max": 1}},
            "shutdown": {"lame_duck_s": 0.0, "drain_s": 1.0},
            **config,
        }
        self._config.write_text(yaml.safe_dump(sections))

    def start(self) -> House:
        keys = [self._key(tenant) for tenant in ("alice", "bob", "carol")]
        self._start([FAIRLEAD, "serve", "--config", str(self._config)], GATEWAY_START_S_MAX)
        return House(self.url, *keys, self._admin.pool)

    def _key(self, tenant: str) -> str:
        # Not as a process, which starts for as long as all calls of a package take.
        told = CliRunner().invoke(app, ["keys", "new", tenant, "--config", str(self._config)], catch_exceptions=False)
        assert told.exit_code == 0, told.output
        return told.stdout.split()[-1]
