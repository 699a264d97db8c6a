"""An event loop whose time passes as its process works, and jumps while it waits.

A test that waits for a timer, with all that it waits for in its own process, takes no longer than its CPU; and a
machine that is busy with something else makes no timer of it fire too early, because time stands still for a process
that does not run. While the loop runs, the clocks of `time` that count from an arbitrary moment are its clock.

What is in the kernel or in a thread takes real time. So the loop waits before it jumps, a fiftieth of the jump, and
jumps over no work of its executor. Tests with other processes, or that compare with the time of the day, need a loop of
real time.
"""

import asyncio
import selectors
import time

SPEED = 50.0  # a jump takes this part of it
WAIT_S_MIN = 0.001  # what the kernel may need to pass on what one end of a connection has sent to the other
EXECUTOR_S = 0.002  # how long it sleeps between two looks at its executor's work

_monotonic, _sleep = time.monotonic, time.sleep


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipped_s = 1e6  # no clock of a machine begins with 0, or is near this one, with which it would be mixed
        self._in_executor: set[asyncio.Future] = set()
        super().__init__(_Selector(self))

    def time(self) -> float:
        return time.process_time() + self._skipped_s

    def run_in_executor(self, executor, func, *args):
        future = super().run_in_executor(executor, func, *args)
        self._in_executor.add(future)
        future.add_done_callback(self._in_executor.discard)
        return future

    def run_forever(self) -> None:
        before = time.monotonic, time.perf_counter
        time.monotonic = time.perf_counter = self.time
        try:
            super().run_forever()
        finally:
            time.monotonic, time.perf_counter = before

    def waited(self, selector: selectors.BaseSelector, timeout_s: float | None):
        """What is ready within this time, of which as little as possible is waited for."""
        if timeout_s is None or timeout_s <= 0:
            return selector.select(timeout_s)
        began_at, ends_at = _monotonic(), self.time() + timeout_s
        if self._in_executor:
            ready = selector.select(min(timeout_s, EXECUTOR_S))
            self._skipped_s += min(_monotonic() - began_at, EXECUTOR_S)
            return ready
        ready = selector.select(min(timeout_s, WAIT_S_MIN + timeout_s / SPEED))
        if not ready:
            self._skipped_s += max(0.0, ends_at - self.time())
        return ready


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        return self._loop.waited(super(), timeout)
