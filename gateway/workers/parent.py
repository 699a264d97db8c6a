"""ParentProcess: starts the workers, passes signals on, and restarts dead workers. It has no event loop and no threads.

It makes the things that all workers share: the listening socket, a private folder for their sockets, and a secret. The
listening socket is inherited, so a busy worker accepts fewer connections, and a worker that dies loses no waiting
connection (with SO_REUSEPORT each worker would have its own queue).
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from typing import Final, Literal

from gateway.workers.place import WorkerPlace

EXIT_INVALID: Final = 78
"""Exit status of a worker that cannot serve as configured (EX_CONFIG of sysexits.h): it is not restarted."""
RESTARTS_MAX: Final = 5  # within RESTARTS_S; after more the parent gives up
RESTARTS_S: Final = 60.0
PAUSE_S: Final = 0.25  # before the second restart within RESTARTS_S; each later one waits twice as long
SIGNALS: Final = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
SECRET_BYTES: Final = 32
CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")

log = logging.getLogger(__name__)

RunWorker = Callable[[WorkerPlace], int]


def count_of(workers: int | Literal["auto"]) -> int:
    """The number of workers for this setting; `auto`: one for every core that this process may use."""
    if workers != "auto":
        return workers
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, ceil(int(quota) / int(period))))


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens at this address. Raises OSError where the port is in use."""
    family, *_, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=backlog)


@dataclass(slots=True)
class _Worker:
    """One of the workers, or its record between its end and its restart."""

    index: int
    name: str = ""
    pid: int = 0  # 0: it does not run
    control: int = -1  # the writing end of its pipe
    starts_at: float = 0.0


@dataclass
class ParentProcess:
    """The parent process of `workers` worker processes. `run` returns when all workers have ended."""

    workers: int
    run_worker: RunWorker
    """The function that is called in each new process; it returns the exit status."""
    listening: socket.socket
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fairlead-")))  # mode 0700

    def run(self) -> int:
        """Run the workers until a signal ends them, and return the exit status: 0, or 1 where they cannot run."""
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._workers = [_Worker(index) for index in range(self.workers)]
        self._starts = self._epoch = 0
        self._restarted: deque[float] = deque()
        self._is_stopping, self._status = False, 0
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            while True:
                self._start_due()
                if self._is_stopping and not any(worker.pid for worker in self._workers):
                    return self._status
                self._handle(self._next_signal())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _next_signal(self) -> int:
        """The next signal; SIGCHLD also when it is time to start a worker."""
        due = [worker.starts_at for worker in self._workers if not worker.pid and not self._is_stopping]
        if not due:
            return signal.sigwait(SIGNALS)
        came = signal.sigtimedwait(SIGNALS, max(0.0, min(due) - time.monotonic()))
        return signal.SIGCHLD if came is None else came.si_signo

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            return
        if number != signal.SIGHUP:
            self._is_stopping = True
        self._send(number)  # workers know themselves what a second SIGTERM means, and that worker 0 ends last

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    # -- starting --------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        for worker in self._workers:
            if not worker.pid and not self._is_stopping and worker.starts_at <= time.monotonic():
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        self._starts += 1
        self._epoch += worker.index == 0
        worker.name, worker.starts_at = f"w{worker.index}-{self._starts}", inf
        reading, writing = os.pipe()
        place = WorkerPlace(
            index=worker.index,
            workers=self.workers,
            name=worker.name,
            epoch=self._epoch,
            others=tuple(each.name for each in self._workers if each.pid) if worker.index == 0 else (),
            secret=self._secret,
            folder=self.folder,
            listening=self.listening,
            control=reading,
        )
        pid = os.fork()
        if not pid:
            self._become(place, writing)
        os.close(reading)
        worker.pid, worker.control = pid, writing

    def _become(self, place: WorkerPlace, writing: int) -> None:
        """Become the worker in a new process, and never return."""
        status = 1
        try:
            for control in (writing, *(each.control for each in self._workers if each.pid)):
                os.close(control)  # else a worker would not notice that its parent has died
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            status = self.run_worker(place)
        except BaseException:
            log.exception("worker %s: it has failed", place.name)
        finally:
            os._exit(status)

    # -- ending ----------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.pid:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: _Worker, status: int) -> None:
        """Handle the end of a worker: with this exit status, or by a signal (its negative number)."""
        os.close(worker.control)
        worker.pid = 0
        if worker.index:
            self._tell_leader(worker.name)
        if self._is_stopping:
            self._status = self._status or int(status not in (0, -signal.SIGTERM, -signal.SIGINT))
            return
        if status == EXIT_INVALID:
            self._give_up()
            return
        now = time.monotonic()
        while self._restarted and now - self._restarted[0] > RESTARTS_S:
            self._restarted.popleft()
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        if len(self._restarted) >= RESTARTS_MAX:
            log.error(
                "worker %s has ended %s, after %d restarts in a minute: giving up", worker.name, how, RESTARTS_MAX
            )
            self._give_up()
            return
        pause_s = PAUSE_S * 2 ** (len(self._restarted) - 1) if self._restarted else 0.0
        log.warning("worker %s has ended %s, and is started anew in %.2f s", worker.name, how, pause_s)
        self._restarted.append(now)
        worker.starts_at = now + pause_s

    def _give_up(self) -> None:
        self._status, self._is_stopping = 1, True
        self._send(signal.SIGTERM)

    def _tell_leader(self, name: str) -> None:
        """Tell worker 0 not to wait for this worker to return (rule 17)."""
        if self._workers[0].pid:
            with suppress(BrokenPipeError):  # it is ending, too
                os.write(self._workers[0].control, f"{name}\n".encode())
