"""MemoryGuard: refuses new work before the process runs out of memory and is killed with all its calls.

Above REFUSE_RATIO of the limit new bodies are refused (503), above PAUSE_RATIO no connection is accepted. Running calls
go on: they need little memory compared with bodies. A body that is being received counts with its final size, so that
many bodies together do not exceed the limit.

The limit is `limits.memory_bytes_max`, or by default that of the process's control group (cgroups(7)), for example a
container's. It is compared with the resident memory of this process.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, Self

from gateway.api.errors import OUT_OF_MEMORY, ProblemError
from gateway.ports.listener import Listener

REFUSE_RATIO: Final = 0.90
PAUSE_RATIO: Final = 0.95
LOOK_S: Final = 0.02  # in which a port of 10 Gbit/s brings 25 MB; to look costs 10 us
# glibc keeps freed memory where a small block lies behind it. Without this the process would stay above its mark.
TRIM_S: Final = 1.0
BODY_COPIES: Final = 2  # of a body that is received: its bytes, and its texts when it has been parsed
MEMORY: Final = "memory"
NO_LIMIT_BYTES: Final = 1 << 60  # cgroup v1 writes a number of this size where there is no limit


class ExpectedBody:
    """A reservation, in MemoryGuard, of the memory that one request body will take. It ends with its `with` block. Call
    `expect` before the memory is allocated.
    """

    __slots__ = ("_guard", "bytes")

    def __init__(self, guard: "MemoryGuard") -> None:
        self._guard = guard
        self.bytes = 0

    def expect(self, body_bytes: int) -> None:
        """Count a body of at least this many bytes. Raises ProblemError."""
        more = BODY_COPIES * body_bytes - self.bytes
        if more > 0:
            self._guard.check(more)
            self._guard.expected_bytes += more
            self.bytes += more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._guard.expected_bytes -= self.bytes


class MemoryGuard:
    """A guard against running out of memory: it refuses the bodies of calls while the process's memory is close to its
    limit. Without a limit it refuses no body. Call `start` on its loop, and `stop` at the end.
    """

    def __init__(self, limit_bytes: int | None, *, resident: Callable[[], int] | None = None) -> None:
        """`resident` returns the resident bytes of the process; the default asks the system."""
        self.limit_bytes = inf if limit_bytes is None else limit_bytes
        self.expected_bytes = 0  # what bodies will take that are being received
        self.refused = 0
        self._resident = resident or resident_bytes
        self._used_bytes = self._resident() if limit_bytes is not None else 0
        self._timer: asyncio.TimerHandle | None = None
        self._trimmed_at = 0.0

    def start(self, listener: Listener) -> None:
        """Look at the memory from now on; the listener pauses while it is short."""
        if self.limit_bytes < inf:
            self._look(asyncio.get_running_loop(), listener)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def body(self) -> ExpectedBody:
        """The count of a body that is received and parsed within its `with` block. Raises ProblemError."""
        self.check(0)
        return ExpectedBody(self)

    def check(self, more_bytes: int) -> None:
        """Raise ProblemError if this many more bytes would pass the mark."""
        if self._used_bytes + self.expected_bytes + more_bytes > REFUSE_RATIO * self.limit_bytes:
            self.refused += 1
            raise ProblemError(OUT_OF_MEMORY, "out_of_memory")

    def look(self, now: float, listener: Listener) -> None:
        """Measure the memory, and pause or resume `accepting`; `now` is in seconds."""
        self._used_bytes = self._resident()
        if self._used_bytes > REFUSE_RATIO * self.limit_bytes and now - self._trimmed_at >= TRIM_S:
            self._trimmed_at = now
            trim()
            self._used_bytes = self._resident()
        (listener.pause if self._used_bytes > PAUSE_RATIO * self.limit_bytes else listener.resume)(MEMORY)

    def _look(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self.look(loop.time(), listener)
        self._timer = loop.call_later(LOOK_S, self._look, loop, listener)


def resident_bytes() -> int:
    """The resident memory of this process in bytes (proc(5), statm)."""
    with Path("/proc/self/statm").open("rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Have glibc return free memory of its heap to the system (malloc_trim(3))."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def memory_limit(
    configured_bytes: int | None, *, proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The configured limit, or the lowest limit of this process's control group and the groups above it; None without
    any limit. `proc` and `root` are the system's paths with the groups.
    """
    if configured_bytes is not None:
        return configured_bytes
    limits = [limit for path in _limit_files(proc, root) if (limit := _read_limit(path)) is not None]
    return min(limits, default=None)


def _limit_files(proc: Path, root: Path) -> Iterator[Path]:
    with suppress(OSError, ValueError):  # there are none; a line that is not of proc(5)
        for line in proc.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers == "":
                folder, name = root, "memory.max"  # version 2
            elif "memory" in controllers.split(","):
                folder, name = root / "memory", "memory.limit_in_bytes"
            else:
                continue
            inside = folder / group.lstrip("/")
            # In a container the path may be that of the host: its own group is then the root of what it sees.
            for each in (inside, *inside.parents):
                if each.is_relative_to(folder):
                    yield each / name


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else None
