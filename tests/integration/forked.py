"""Python programs as processes of their own that begin as forks of a server which has imported what they need: so one
starts at the cost of a fork, and not of an interpreter and a second of imports.

They are what `python -c PROGRAM ARGUMENTS` would be, but for LD_PRELOAD, and look like processes of asyncio.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
from multiprocessing import connection, forkserver, util
from pathlib import Path
from typing import Any
from unittest import mock

PRELOADED = [
    "forked",
    "founding",
    "kill_worker",
    "made_once",
    "gateway.cli",
    "gateway.config.files",
    "gateway.replicas",
    "gateway.serve",
    "gateway.serve_workers",
    "gateway.steering.what_if.process",
    "gateway.workers.parent",
    "backends.engine.http.server",
    "uvloop",
]
FAIRLEAD = "from gateway.cli import main; main()"
MODULE = "import runpy, sys; runpy.run_module(sys.argv.pop(1), run_name='__main__')"
ENDED_POLL_S = 0.002
HELD_OPEN_S = 30.0  # for what a process has written to be read, after its end
TOLD_S = 5.0  # between a process's end and the server's word of it are two system calls, on a busy machine milliseconds
LOST = 255  # as multiprocessing says it

util.get_temp_dir()  # where the server listens; later, a test may have a folder for it that goes with the test


def context() -> Any:
    """Of multiprocessing, with the server running."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    # The fork server of Python 3.11 looks for what it loads beforehand on the path of its environment alone.
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver._forkserver.ensure_running()
    return made


def share() -> None:
    """Start the server for what this process forks, too. There, it is no child that could be waited for."""
    context()
    forkserver._forkserver.ensure_running = lambda: None


def _run(program: str, arguments: list[str], folder: str, environment: dict[str, str], *outputs: Any) -> None:
    for number, output in enumerate(outputs, 1):
        os.dup2(output.fileno(), number)
        output.close()
    _go_on(program, arguments, folder, environment)


def _run_in_terminal(
    program: str, arguments: list[str], folder: str, environment: dict[str, str], terminal: Any
) -> None:
    os.login_tty(os.dup(terminal.fileno()))
    terminal.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put another in its place
    sys.stdout.reconfigure(line_buffering=True)
    _go_on(program, arguments, folder, environment)


def _go_on(program: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the server's
    sys.argv = ["-c", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


class Forked:
    """A process that runs, and its output."""

    def __init__(self, process: Any, outputs: list[tuple[asyncio.BaseTransport, asyncio.StreamReader]]) -> None:
        self._process, self.pid = process, process.pid
        self._transports = [transport for transport, _ in outputs]
        if outputs:  # a terminal has none of its own
            self.stdout, self.stderr = (reader for _, reader in outputs)

    @property
    def returncode(self) -> int | None:
        """As the server has told; LOST where the process is gone and the server has not said how."""
        code = self._process.exitcode
        if code is None and not Path(f"/proc/{self.pid}").exists():
            self._process.join(TOLD_S)  # the server has waited for it, and tells next
            code = self._process.exitcode
            return LOST if code is None else code
        return code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code."""
        while self.returncode is None:  # noqa: ASYNC110 - it is a process
            await asyncio.sleep(ENDED_POLL_S)
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        """The rest of its output, once it has ended. Raises TimeoutError where something else holds its output open."""
        reading = asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        output, errors = await asyncio.wait_for(reading, HELD_OPEN_S)
        for transport in self._transports:
            transport.close()
        return output, errors


async def _read(end: connection.Connection) -> tuple[asyncio.BaseTransport, asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(end.fileno()), "rb", 0)
    end.close()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return transport, reader


async def fork(program: str, *arguments: str, folder: Path, environment: dict[str, str]) -> Forked:
    """Start a program in this folder with this environment."""
    made = await asyncio.to_thread(context)  # the server imports for a second, where it is the first time
    pipes = [made.Pipe(duplex=False) for _ in range(2)]
    ends = [there for _, there in pipes]
    process = made.Process(target=_run, args=(program, list(arguments), str(folder), environment, *ends))
    await asyncio.to_thread(process.start)
    for end in ends:
        end.close()
    return Forked(process, [await _read(here) for here, _ in pipes])


def fork_modules(monkeypatch: Any, starter: Any) -> None:
    """What this module of ours starts as `python -m MODULE ARGUMENTS` is a fork, for tests of what it does then."""

    async def begin(
        _python: str, _m: str, *command: str, env: dict[str, str], cwd: str | Path = ".", **_: Any
    ) -> Forked:
        return await fork(MODULE, *command, folder=Path(cwd), environment=env)

    monkeypatch.setattr(starter.asyncio, "create_subprocess_exec", begin)


async def fork_in_terminal(
    program: str, *arguments: str, folder: Path, environment: dict[str, str], terminal: int
) -> Forked:
    """The same with this terminal as the one that it is used at."""
    made = await asyncio.to_thread(context)
    there = connection.Connection(os.dup(terminal))
    process = made.Process(target=_run_in_terminal, args=(program, list(arguments), str(folder), environment, there))
    await asyncio.to_thread(process.start)
    there.close()
    return Forked(process, [])
