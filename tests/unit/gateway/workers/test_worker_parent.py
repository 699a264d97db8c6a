"""The parent of several workers: what it starts, starts anew, tells worker 0, and how it ends."""

import logging
import os
import signal
import socket
import threading
import time

import pytest

from gateway.workers.parent import EXIT_INVALID, RESTARTS_MAX, ParentProcess, count_of


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def report(pipe, *words):
    os.write(pipe, (" ".join(map(str, words)) + "\n").encode())


def lines(pipe):
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1 << 16).decode().splitlines()
    except BlockingIOError:
        return []


@pytest.fixture
def said():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def run_in_child(parent):
    """The exit status of a parent that runs in a process of its own, as it blocks signals."""
    pid = os.fork()
    if not pid:
        logging.disable()
        os._exit(parent.run())
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_it_starts_each_worker_once_and_passes_a_signal_on(listening, said):
    def work(place):
        report(said[1], place.name, place.epoch)
        signal.sigwait({signal.SIGTERM})
        return 0

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pid = run_in_child(ParentProcess(2, _blocking(work), listening))
        found = []
        until(lambda: found.extend(lines(said[0])) or len(found) == 2)
        os.kill(pid, signal.SIGTERM)
        assert ended(pid) == 0
        assert sorted(found) == ["w0-1 1", "w1-2 1"]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _blocking(work):
    def run(place):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        return work(place)

    return run


def test_a_worker_that_dies_is_started_anew_under_a_new_name_and_worker_0_is_told(listening, said):
    def work(place):
        if place.index:
            report(said[1], "started", place.name)
            if place.name == "w1-2":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        report(said[1], "told", os.read(place.control, 100).decode().strip())
        signal.pause()

    pid = run_in_child(ParentProcess(2, work, listening))
    found = []
    until(lambda: found.extend(lines(said[0])) or len(found) == 3)
    os.kill(pid, signal.SIGTERM)
    assert ended(pid) == 0
    assert sorted(found) == ["started w1-2", "started w1-3", "told w1-2"]


def test_a_worker_0_that_listens_no_more_does_not_end_the_parent(listening, said):
    def work(place):
        if not place.index:
            os.close(place.control)
            report(said[1], "closed")
        elif place.name == "w1-2":
            time.sleep(0.3)
            os._exit(1)
        else:
            report(said[1], "started anew")
        signal.pause()

    pid = run_in_child(ParentProcess(2, work, listening))
    found = []
    until(lambda: found.extend(lines(said[0])) or len(found) == 2)
    os.kill(pid, signal.SIGTERM)
    assert ended(pid) == 0


def test_a_new_worker_0_has_the_next_epoch_and_is_told_which_workers_run(listening, said):
    def work(place):
        if not place.index:
            report(said[1], place.epoch, *place.others)
            if place.epoch == 1:
                time.sleep(0.2)
                os._exit(1)
        signal.pause()

    pid = run_in_child(ParentProcess(3, work, listening))
    found = []
    until(lambda: found.extend(lines(said[0])) or len(found) == 2)
    os.kill(pid, signal.SIGTERM)
    ended(pid)
    assert found == ["1", "2 w1-2 w2-3"]


def test_it_gives_up_after_too_many_restarts_in_a_minute(listening, said, monkeypatch):
    monkeypatch.setattr("gateway.workers.parent.PAUSE_S", 0.001)

    def work(place):
        report(said[1], place.name)
        os._exit(3)

    assert ended(run_in_child(ParentProcess(1, work, listening))) == 1
    assert len(lines(said[0])) == 1 + RESTARTS_MAX


def test_a_worker_that_cannot_serve_as_configured_ends_all_at_once(listening):
    def work(place):
        if not place.index:
            return EXIT_INVALID
        return signal.pause()

    assert ended(run_in_child(ParentProcess(2, work, listening))) == 1


def test_it_leaves_no_folder_and_has_no_thread(listening, said):
    parent = ParentProcess(1, lambda _place: report(said[1], threading.active_count()) or EXIT_INVALID, listening)
    mode = parent.folder.stat().st_mode & 0o777
    assert ended(run_in_child(parent)) == 1
    assert not parent.folder.exists()
    assert mode == 0o700
    assert lines(said[0]) == ["1"]  # a thread of the tests does not survive the fork


def test_auto_is_the_number_of_cores_that_the_process_may_use(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr("gateway.workers.parent.CPU_MAX", tmp_path / "cpu.max")
    assert count_of(3) == 3
    assert count_of("auto") == 4
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert count_of("auto") == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert count_of("auto") == 4
