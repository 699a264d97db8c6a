"""What the checks share beside the rigs of tests/integration: figures of a process, and of many measured values.

A machine that others use disturbs times. A test whose gateway, backends and clients share one thread measures *own
time*: that of a clock that stands while the thread is ready to run and has no core (`Watch(own_s)`). A test of several
processes compares with a control that the machine disturbs alike. What still disturbs one of both shows in some rounds
of `undisturbed`, a fault in all.
"""

import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def jain_index(values: Collection[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def rss_bytes(pid: int, key: str = "VmRSS") -> int:
    """Resident memory of a process; `VmHWM` is the most that it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(key)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


ROUNDS = 3  # at load 4 on two cores, one of two is disturbed


async def undisturbed(measure: Callable[[], Awaitable[T]], is_held: Callable[[T], bool]) -> T:
    """What was measured in the first round in which it is held, else in the last one."""
    for _ in range(ROUNDS):
        found = await measure()
        if is_held(found):
            break
    return found


def waited_s() -> float:
    """Seconds in which this thread was ready to run and had no core (run_delay of Linux), since it began."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def own_s() -> float:
    """This thread's own time: the seconds of a clock that stands while it waits for a core."""
    return time.monotonic() - waited_s()


class Watch:
    """Seconds since it was made, by this clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()

    @property
    def s(self) -> float:
        return self._clock() - self._began
