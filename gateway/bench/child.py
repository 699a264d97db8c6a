"""A gateway as a child process, on a free port and with a temporary configuration.

The user's own setup has no effect on the gateway: no file of the current folder, no FAIRLEAD_... variable. The gateway
writes no access log; otherwise it runs as in production.
"""

import asyncio
import os
import re
import secrets
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from backends.spec import BackendSpec
from gateway.calibrate.calls import CalibrationError
from gateway.config.key_file import add_key
from gateway.config.sections import AuthSection

START_S_MAX = 60.0
STOP_S_MAX = 5.0
LINES_KEPT = 20  # of what it says, for when it does not start
KEY_VARIABLE = "BENCH_BACKEND_KEY"
POLL_S = 0.25  # as often while nothing runs as while something does: what polls cost can be taken off then

_SERVES = re.compile(r"fairlead serves (http://\S+?)\.? ")


@dataclass(frozen=True, slots=True)
class Child:
    """A gateway that the bench runs as a child process: its URL, the API key of each tenant, and its process id."""

    url: str
    keys: Mapping[str, str]
    pid: int

    def cpu_s(self) -> float | None:
        """CPU time of the process so far, in seconds; None on any system but Linux."""
        try:
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
        except (OSError, ValueError, IndexError):
            return None


@asynccontextmanager
async def gateway(
    spec: BackendSpec, weights: Mapping[str, float], *, api_key: str | None, slots: int | None = None
) -> AsyncIterator[Child]:
    """Run a gateway in front of this server, for tenants of these weights, until the block ends. `slots`: the requests
    that it sends there at once (None: it detects this). Raises CalibrationError where it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        keys = _configure(folder, spec, weights, slots, has_key=api_key is not None)
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("FAIRLEAD_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", "serve", "--config", str(folder / "fairlead.yaml"),
            stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, cwd=folder, start_new_session=True,
            env=environment | ({} if api_key is None else {KEY_VARIABLE: api_key}),
        )  # fmt: skip
        reading: asyncio.Task[None] | None = None
        try:
            assert process.stderr is not None, "it is a pipe"
            url = await _started(process.stderr)
            reading = asyncio.create_task(_read_on(process.stderr))
            yield Child(url, keys, process.pid)
        finally:
            await _end(process)
            if reading is not None:
                await reading


def _configure(
    folder: Path, spec: BackendSpec, weights: Mapping[str, float], slots: int | None, *, has_key: bool
) -> dict[str, str]:
    """Write the configuration and the keys; return the key of each tenant."""
    secret, keys_file = secrets.token_urlsafe(32), folder / "fairlead.keys"
    backend: dict[str, Any] = {"name": "backend", "url": spec.url}
    if has_key:
        backend["api_key_env"] = KEY_VARIABLE
    if slots is not None:
        backend["requests_running_max"] = slots
    settings = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "backends": [backend],
        "auth": {"mode": "keys", "secret": secret, "keys_file": str(keys_file)},
        "tenants": {name: {"weight": weight} for name, weight in weights.items()},
        "health": {"idle_s": POLL_S, "busy_s": POLL_S},
        "shutdown": {"lame_duck_s": 0.0, "drain_s": 0.0},
    }
    (folder / "fairlead.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    hmac_secret = AuthSection.model_validate(settings["auth"]).given_secret()
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    return {name: add_key(keys_file, tenant=name, secret=hmac_secret, created_at=made_at) for name in weights}


async def _started(errors: asyncio.StreamReader) -> str:
    """Return where it serves."""
    output: deque[str] = deque(maxlen=LINES_KEPT)
    try:
        async with asyncio.timeout(START_S_MAX):
            while line := (await errors.readline()).decode("utf-8", "replace"):
                output.append(line)
                if found := _SERVES.search(line):
                    return found[1]
    except TimeoutError:
        output.append(f"(not in {START_S_MAX:g} s)")
    raise CalibrationError("the gateway did not start:\n" + "".join(output).rstrip())


async def _read_on(errors: asyncio.StreamReader) -> None:
    """What it says is read until its end, or it would wait for that."""
    while await errors.read(1 << 16):
        pass


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S_MAX)
    except (TimeoutError, asyncio.CancelledError):  # told twice to stop: then at once
        process.kill()
        await process.wait()
