"""Runs tests in processes that are forked once all tests are collected: `-p tests.forked_workers --workers 5`.

What pytest-xdist starts imports and collects all tests in each process anew, which takes as long as to run a third of
them. Here a worker is a fork of the process that has done so. It is handed indices of what was collected, one by one,
and returns reports, pickled. A worker has a piece of neighbours for itself, since they share fixtures. What waits comes
first in the list. Even workers have pieces from its front and odd ones from its end: so what waits runs beside what
computes, and what is left for the end computes. Once each test has a worker, one that has ended its piece takes half of
the largest other piece. So all end together, though a test takes between a millisecond and ten seconds.
"""

import multiprocessing
import os
import sys
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from _pytest import runner

PIECES = 4  # so small a part of its share of what is left is the next piece of a worker
GO = "helm_python is imported: threads of its Go runtime do not outlive a fork, so import it in the tests that need it"
WAITING = "tests/integration/"  # for gateways, in real time
PATIENCE_S = 5.0  # for a worker that is told to end


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=0, help="fork so many processes, which run the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if not session.config.option.workers or session.config.option.collectonly or session.testsfailed:
        return None
    if "helm_python" in sys.modules:
        raise pytest.UsageError(GO)
    crew = Crew(session)
    try:
        crew.run()
    finally:
        crew.end()
    return True


class Crew:
    """All workers, and the tests that are in no worker's piece yet."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._wanted = min(session.config.option.workers, len(session.items))
        names = [item.nodeid for item in session.items]
        self._left = deque(sorted(range(len(names)), key=lambda number: not names[number].startswith(WAITING)))
        self._workers: dict[Connection, Worker] = {}
        self._started = 0

    def run(self) -> None:
        while self._left and len(self._workers) < self._wanted:
            self._start()
        while self._workers:
            for pipe in wait(list(self._workers)):
                try:
                    self._hear(self._workers[pipe], pipe.recv())
                except (EOFError, ConnectionResetError):
                    self._ended(self._workers.pop(pipe))
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        for worker in self._workers.values():
            worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(PATIENCE_S)
            worker.process.kill()

    def _start(self) -> None:
        pipe, theirs = multiprocessing.Pipe()
        arguments = (self._session, theirs, self._started, [*self._workers, pipe])
        process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
        worker = self._workers[pipe] = Worker(process, pipe, from_the_end=self._started % 2 == 1)
        self._started += 1
        process.start()
        theirs.close()
        self._hand(worker)

    def _hand(self, worker: "Worker") -> None:
        """Its next test, or an empty list where none is left for it."""
        if not worker.piece:
            worker.piece.extend(self._next_piece(worker))
        following = [worker.piece.popleft()] if worker.piece else []
        worker.handed.extend(following)
        worker.pipe.send(following)

    def _next_piece(self, worker: "Worker") -> list[int]:
        if not self._left:
            largest = max((each.piece for each in self._workers.values()), key=len)
            return [largest.pop() for _ in range(-(-len(largest) // 2))][::-1]
        count = -(-len(self._left) // (PIECES * self._wanted))
        if worker.from_the_end:
            return [self._left.pop() for _ in range(count)][::-1]
        return [self._left.popleft() for _ in range(count)]

    def _hear(self, worker: "Worker", reports: list[Any] | None) -> None:
        if reports is None:
            self._hand(worker)
            return
        hook, item = self._session.config.hook, self._session.items[worker.handed.popleft()]
        for data in reports:
            report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _ended(self, worker: "Worker") -> None:
        """What a worker has left is run by others, but for the test that it ended in, which has failed."""
        worker.process.join()
        if not worker.handed:
            return
        item = self._session.items[worker.handed.popleft()]
        said = f"the process that ran this ended with status {worker.process.exitcode}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
        item.ihook.pytest_runtest_logreport(report=report)
        self._left.extendleft(reversed([*worker.handed, *worker.piece]))
        if self._left:
            self._start()


class Worker:
    """A process that runs tests, the indices of those that it was handed and has not reported, and of the next ones."""

    def __init__(self, process: Any, pipe: Connection, *, from_the_end: bool) -> None:
        self.process = process
        self.pipe = pipe
        self.from_the_end = from_the_end
        self.handed: deque[int] = deque()
        self.piece: deque[int] = deque()


def work(session: pytest.Session, pipe: Connection, number: int, of_the_parent: list[Connection]) -> None:
    """In a worker: run what is handed out until nothing is left. Before its last test it asks for more, since fixtures
    live on where the next test uses them.
    """
    for each in of_the_parent:
        each.close()
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are the parent's, too
    capture.start_global_capturing()
    folders = config._tmp_path_factory
    folders._basetemp = folders.getbasetemp() / f"worker-{number}"
    folders._basetemp.mkdir(mode=0o700)
    config.pluginmanager.register(Reporter(pipe))
    items = deque(pipe.recv())
    while items:
        if len(items) == 1:
            pipe.send(None)
            items.extend(pipe.recv())
        item = session.items[items.popleft()]
        item.ihook.pytest_runtest_protocol(item=item, nextitem=session.items[items[0]] if items else None)
    pipe.close()
    os._exit(0)  # what the parent does at its exit is not for a worker to do


class Reporter:
    """In the place of pytest's own protocol, whose reports go to the plugins of this process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        reports = runner.runtestprotocol(item, nextitem=nextitem, log=False)
        written = item.config.hook.pytest_report_to_serializable
        self._pipe.send([written(config=item.config, report=report) for report in reports])
        return True
