"""A program in a terminal of its own: a pseudo-terminal, what it shows (pyte), and the keys that are pressed there."""

import asyncio
import contextlib
import fcntl
import os
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte
from forked import FAIRLEAD, fork_in_terminal

PATIENCE_S = 30.0  # a program starts within it, on a machine that others use too
TERM = "linux"  # what pyte emulates


class Terminal:
    """`raw` is all bytes that the program has written, `lines` what the screen shows of them."""

    def __init__(self, descriptor: int, *, height: int, width: int) -> None:
        self._descriptor = descriptor
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self._lines: list[str] | None = None  # made when they are looked at, and again after a change
        self.raw = b""
        self.process: Any = None

    @property
    def lines(self) -> list[str]:
        if self._lines is None:
            self._lines = [line.rstrip() for line in self._screen.display]
        return self._lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def read(self) -> None:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:  # the program has ended, and its terminal with it
            asyncio.get_running_loop().remove_reader(self._descriptor)
            return
        self.raw += data
        self._stream.feed(data)
        self._lines = None

    def press(self, *keys: str) -> None:
        os.write(self._descriptor, "".join(keys).encode())

    def resize(self, *, height: int, width: int) -> None:
        self._screen.resize(height, width)
        self._lines = None
        set_size(self._descriptor, height=height, width=width)

    async def shows(self, *texts: str, without: str | None = None) -> None:
        """All of these texts come to the screen, and the other one leaves it."""
        await self.until(lambda: all(text in self.text for text in texts) and (without or "\0") not in self.text)

    async def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"the screen is:\n{self.text}"
            await asyncio.sleep(0.01)

    async def end(self) -> int:
        """The exit code, when it has ended by itself."""
        code = await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        await asyncio.sleep(0.05)  # what it wrote last is read
        return code

    def attributes(self) -> list[Any]:
        """How the terminal treats input and output (termios)."""
        return termios.tcgetattr(self._descriptor)

    def cpu_s(self) -> float:
        """Seconds of CPU that the program has used."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def set_size(descriptor: int, *, height: int, width: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


@contextlib.asynccontextmanager
async def terminal(
    *arguments: str, height: int = 24, width: int = 120, cwd: Any = None, is_new: bool = False, **environment: str
):
    """`fairlead` with these arguments in a Terminal. A variable of the environment that is "" is not set. `is_new`: in
    an interpreter of its own, which reads variables when it starts.
    """
    main, other = os.openpty()
    set_size(other, height=height, width=width)
    shown = Terminal(main, height=height, width=width)
    before = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    given = {**before, "TERM": TERM, "LC_ALL": "C.UTF-8", "FAIRLEAD_CONFIG": "", **environment}
    variables = {name: value for name, value in given.items() if value}
    if is_new:
        shown.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FAIRLEAD, *arguments,
            preexec_fn=lambda: os.login_tty(other), pass_fds=(other,), cwd=cwd, env=variables,
        )  # fmt: skip
    else:
        folder = Path.cwd() if cwd is None else cwd
        shown.process = await fork_in_terminal(
            FAIRLEAD, *arguments, folder=folder, environment=variables, terminal=other
        )
    asyncio.get_running_loop().add_reader(main, shown.read)
    try:
        yield shown
    finally:
        if shown.process.returncode is None:
            shown.process.kill()
        await shown.process.wait()
        asyncio.get_running_loop().remove_reader(main)
        os.close(other)
        os.close(main)
