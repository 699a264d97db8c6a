"""WhatIfs: the calls of the last hour, simulated under another policy or other settings, and compared with their
measured outcome.

A what-if runs in a process of its own (process.py), one at a time, over files in a folder that is removed afterwards.
The results of the last KEPT_MAX are kept in memory. A what-if ends on request, and when no reader has asked for it for
ABANDONED_S.
"""

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import orjson
from msgspec.structs import asdict

from gateway.others import Others
from gateway.steering.what_if.changes import PlayedChanges
from gateway.steering.what_if.messages import (
    SESSIONS_AS_THEY_ARE,
    EngineSpec,
    InsteadSpec,
    SessionsChanged,
    WhatIf,
    WhatIfFound,
    WhatIfSpec,
)
from gateway.tasks import cancel

KNOWN: Final = "what-if"  # a service
END: Final = "what-if-end"  # another
ABANDONED_S: Final = 70.0  # a minute, which is how seldom browsers wake a tab that is hidden, and some seconds
KEPT_MAX: Final = 10
RUNS_S_MAX: Final = 600.0  # an hour of calls takes some ten seconds
PROCESS: Final = "gateway.steering.what_if.process"
LINE_BYTES_MAX: Final = 4 << 20
LAST_BYTES: Final = 2000  # of the errors of a process that has failed, for the log
SECRET: Final = "no key is checked in a simulation"  # noqa: S105

_WHAT_IF: Final = msgspec.json.Decoder(WhatIf)

log = logging.getLogger(__name__)


class NothingRecorded(Exception):  # noqa: N818 - an answer
    """An error: no call of this pool was recorded in the requested time."""


class OneIsRunning(Exception):  # noqa: N818 - an answer
    """An error: another what-if runs; its id is the argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request for a what-if: a simulation of the calls of the last `minutes` with other settings. `changes` has the
    fields of the admin API's WhatIfChanges. `pool` None: the pool with most calls.
    """

    policy: str | None
    weights: Mapping[str, float]
    minutes: int
    pool: str | None
    changes: Mapping[str, Any]
    sessions: SessionsChanged = SESSIONS_AS_THEY_ARE


class WhatIfs:
    """The runner of what-ifs in one process. A what-if is a simulation of recent calls with other settings. One runs at
    a time; the results of the last ones are kept. Made on the loop; `stop` ends the running one.
    """

    def __init__(
        self,
        others: Others,
        *,
        calls: Callable[[float], Awaitable[bytes]],
        pools: Callable[[], Mapping[str, str]],
        engine_of: Callable[[str], EngineSpec],
        config_of: Callable[[str], Callable[[], Mapping[str, Any]]],
    ) -> None:
        """`calls` returns the recorded calls of the last seconds as JSON lines; `pools` returns the pool of each model.
        `engine_of` gives engines that resemble a pool's backends. `config_of` gives the present configuration, as far
        as a simulation reads it, as a function that may run in a thread.
        """
        self._calls = calls
        self._pools = pools
        self._engine_of = engine_of
        self._config_of = config_of
        self._kept: dict[str, WhatIf] = {}
        self._asked_at: dict[str, float] = {}  # by id: when a reader asked for it last, by the loop's clock
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by id, of those that run
        self._others = others
        others.services |= {KNOWN: self._tell, END: self._end_own}

    async def find(self, id_: str) -> WhatIf | None:
        """The what-if with this id, whichever process runs it; None: no process knows it."""
        if id_ in self._kept:
            return self._asked_for(id_)
        answers, _ = await self._others.ask_all(self._others.names(), KNOWN, id_.encode())
        return next((_WHAT_IF.decode(answer) for answer in answers if answer), None)

    async def _tell(self, body: bytes) -> bytes:
        """What `find` of another process asks of this one: the what-if of this id; nothing where there is none."""
        known = self._asked_for(body.decode())
        return b"" if known is None else msgspec.json.encode(known)

    async def end(self, id_: str) -> bool:
        """End the what-if with this id, whichever process runs it. Returns False where it does not run."""
        if id_ in self._kept:
            return self._end(id_, "it was stopped")
        answers, _ = await self._others.ask_all(self._others.names(), END, id_.encode())
        return any(answers)

    async def _end_own(self, body: bytes) -> bytes:
        """What `end` of another process asks of this one; nothing where it does not run here."""
        return b"ended" if self._end(body.decode(), "it was stopped") else b""

    async def ask(self, asked: Asked, changes: PlayedChanges) -> WhatIf:
        """Begin a simulation; without a `pool`, of the pool with most calls. Raises NothingRecorded, OneIsRunning."""
        pool = asked.pool
        self._raise_if_running()
        lines = await self._calls(asked.minutes * 60.0)
        pools = dict(self._pools())
        by_pool = await asyncio.to_thread(_by_pool, lines, pools)
        if pool is None and by_pool:
            pool = max(by_pool, key=lambda name: (len(by_pool[name]), name))
        if pool is None or pool not in by_pool:
            raise NothingRecorded
        instead = None
        if changes.splits:
            instead = (await asyncio.to_thread(lambda: _by_pool(changes.calls(lines), pools))).get(pool, [])
        self._raise_if_running()  # while the calls were gathered
        what_if = WhatIf(
            id=secrets.token_hex(8),
            pool=pool,
            policy=asked.policy,
            weights=dict(asked.weights),
            minutes=asked.minutes,
            changes=dict(asked.changes),
            sessions=asked.sessions,
        )
        self._kept[what_if.id] = what_if
        while len(self._kept) > KEPT_MAX:
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._asked_at[oldest]
        task = self._tasks[what_if.id] = asyncio.create_task(
            self._run(what_if, _Played(by_pool[pool], instead, changes))
        )
        task.add_done_callback(lambda _: self._tasks.pop(what_if.id, None))
        self._asked_for(what_if.id)
        self._look_after(what_if)
        return what_if

    async def stop(self) -> None:
        await cancel(*self._tasks.values())

    def _raise_if_running(self) -> None:
        running = next((each for each in self._kept.values() if each.state == "running"), None)
        if running is not None:
            raise OneIsRunning(running.id)

    def _asked_for(self, id_: str) -> WhatIf | None:
        """The what-if that a reader asks for, which extends its time."""
        known = self._kept.get(id_)
        if known is not None:
            self._asked_at[id_] = asyncio.get_running_loop().time()
        return known

    def _look_after(self, what_if: WhatIf) -> None:
        """End the what-if when no reader has asked for it for too long."""
        loop = asyncio.get_running_loop()
        left_s = self._asked_at.get(what_if.id, 0.0) + ABANDONED_S - loop.time()
        if left_s > 0.0 and what_if.state == "running":
            loop.call_later(left_s, self._look_after, what_if)
        elif what_if.state == "running":
            self._end(what_if.id, "no reader asked for it for a minute")

    def _end(self, id_: str, why: str) -> bool:
        what_if, task = self._kept.get(id_), self._tasks.get(id_)
        if what_if is None or task is None or what_if.state != "running":
            return False
        what_if.state, what_if.error = "stopped", why
        task.cancel()
        return True

    async def _run(self, what_if: WhatIf, played: "_Played") -> None:
        try:
            with TemporaryDirectory(prefix="fairlead-what-if-") as folder:
                engine, config = self._engine_of(what_if.pool), self._config_of(what_if.pool)
                spec = await asyncio.to_thread(_written, Path(folder), what_if, played, engine, config)
                async with asyncio.timeout(RUNS_S_MAX):
                    await self._simulate(what_if, spec)
        except TimeoutError:
            what_if.state, what_if.error = "failed", f"it took longer than {RUNS_S_MAX:.0f} s"
        except Exception as error:  # a full disk, a process that was killed
            log.exception("a what-if has failed")
            what_if.state, what_if.error = "failed", type(error).__name__
        finally:
            if what_if.state == "running":  # the gateway ends
                what_if.state = "failed"

    async def _simulate(self, what_if: WhatIf, spec: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", PROCESS, str(spec),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX, env=_environment(),
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None, "they are pipes"  # noqa: PT018
        errors = asyncio.create_task(_last_words(process.stderr))  # unread it would fill, and the process wait
        try:
            async for line in process.stdout:
                _take(what_if, orjson.loads(line))
            words = await errors
            await process.wait()
            if what_if.state == "running":
                log.error("the process of a what-if has failed: %s", words.decode(errors="replace"))
                what_if.state, what_if.error = "failed", f"its process ended with status {process.returncode}"
        finally:
            errors.cancel()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class _Played:
    """The recorded calls of a pool, and those of a simulation with the changes; None: the same ones."""

    calls: Sequence[bytes]
    instead: Sequence[bytes] | None
    changes: PlayedChanges


def _written(
    folder: Path,
    what_if: WhatIf,
    played: _Played,
    engine: EngineSpec,
    config: Callable[[], Mapping[str, Any]],
) -> Path:
    """Write the specification of a simulation, and the files that it names; return its path."""
    trace, settings, spec = folder / "calls.jsonl", folder / "fairlead.yaml", folder / "spec.json"
    trace.write_bytes(b"\n".join(played.calls) + b"\n")
    configured = config()
    settings.write_bytes(_as_file(configured))
    instead = InsteadSpec(trace=None, config=str(folder / "instead.yaml"), engines=played.changes.engines)
    Path(instead.config).write_bytes(_as_file(played.changes.config(configured)))
    if played.instead is not None:
        instead.trace = str(folder / "instead.jsonl")
        Path(instead.trace).write_bytes(b"\n".join(played.instead) + b"\n")
    of = WhatIfSpec(
        trace=str(trace),
        config=str(settings),
        pool=what_if.pool,
        sessions=what_if.sessions,
        engine=engine,
        policy=what_if.policy,
        weights=what_if.weights,
        instead=instead,
    )
    spec.write_bytes(msgspec.json.encode(of))
    return spec


def _as_file(config: Mapping[str, Any]) -> bytes:
    """A configuration as a file, which has tenants where keys are checked, and only there. JSON is YAML."""
    auth = {"auth": {"mode": "keys", "secret": SECRET}} if config["tenants"] else {}
    return orjson.dumps({**config, **auth})


async def _last_words(errors: asyncio.StreamReader) -> bytes:
    """What a process has written last, when it has ended."""
    words = b""
    while piece := await errors.read(1 << 16):
        words = (words + piece)[-LAST_BYTES:]
    return words


def _take(what_if: WhatIf, said: Mapping[str, Any]) -> None:
    """Apply one line of the process's output."""
    if "progress" in said:
        what_if.progress = said["progress"]
    elif "done" in said:
        what_if.state, what_if.progress = "done", 1.0
        for name, found in asdict(msgspec.convert(said["done"], WhatIfFound)).items():
            setattr(what_if, name, found)
    else:
        what_if.state, what_if.error = "failed", said["error"]


def _by_pool(lines: bytes, pools: Mapping[str, str]) -> dict[str, list[bytes]]:
    """The lines of each pool in order of arrival; calls of several processes are not in that order."""
    found: dict[str, list[tuple[float, bytes]]] = {}
    for line in lines.splitlines():
        call = orjson.loads(line)
        pool = pools.get(call["model"])
        if pool is not None:  # else its model has left since
            found.setdefault(pool, []).append((call["arrival_s"], line))
    return {pool: [line for _, line in sorted(calls)] for pool, calls in found.items()}


def _environment() -> dict[str, str]:
    """The environment of this process, without the variables that would override the file."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("FAIRLEAD_")}
