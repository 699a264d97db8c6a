"""The log of the gateway: a time, a level and a sentence, for people or for machines, and no line that is not ours."""

import io
import json
import logging
import os
import re
import threading
import warnings
from contextlib import contextmanager, suppress

import pytest

from gateway.observability import logs
from gateway.observability.logs import configure_logging, lines_lost

WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def configure():
    """Configures logging to a stream, and puts it back as it was."""
    names = ("", "gateway", "backends", "policies")
    before = {name: logging.getLogger(name).level for name in names}
    handlers = logging.getLogger().handlers[:]
    stream = io.StringIO()

    def configured(level="info", form="text", stream=stream):
        configure_logging(level, form, stream)
        return stream

    yield configured
    logging.captureWarnings(capture=False)
    logging.getLogger().handlers[:] = handlers
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def test_text_has_a_time_a_level_and_where_it_comes_from(configure):
    stream = configure()
    logging.getLogger("backends.pool").info("backend %s: up", "b0")
    assert re.fullmatch(rf"{WHEN} INFO backends\.pool: backend b0: up\n", stream.getvalue())


def test_json_is_one_object_a_line_with_the_exception_in_it(configure):
    stream = configure(form="json")
    try:
        int("two\nlines")
    except ValueError:
        logging.getLogger("gateway.app").exception("it\nbroke")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert re.fullmatch(WHEN, entry["time"])
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "gateway.app", "it\nbroke")
    assert entry["exception"].endswith(r"invalid literal for int() with base 10: 'two\nlines'")


def test_a_level_hides_what_is_below_it_and_other_packages_say_only_warnings(configure):
    stream = configure(level="warning")
    logging.getLogger("gateway.app").info("hidden")
    assert stream.getvalue() == ""
    stream = configure(level="debug")
    logging.getLogger("gateway.app").debug("shown")
    logging.getLogger("aiohttp.access").info("a line for every request")
    logging.getLogger("aiohttp.server").warning("also shown")
    assert re.sub(WHEN, "", stream.getvalue()) == " DEBUG gateway.app: shown\n WARNING aiohttp.server: also shown\n"


def test_a_name_from_outside_cannot_begin_a_line_nor_colour_a_terminal(configure):
    stream = configure()
    logging.getLogger("gateway").warning("tenant %s", "x\n2026-01-01T00:00:00.000Z ERROR gateway: forged\x1b[31m\x00")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("tenant x")
    assert second == r"    2026-01-01T00:00:00.000Z ERROR gateway: forged\x1b[31m\x00"


def test_warnings_of_python_are_log_lines_too(configure):
    stream = configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "WARNING py.warnings: " in stream.getvalue()


@contextmanager
def piped(configure):
    """A pipe that the log goes to: its stream, and its reading end, which nobody reads."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb", buffering=0) as read:
        os.set_blocking(reader, False)
        configure(stream=stream)
        yield stream, read


def has_ended(write):
    """Whether this ends within five seconds, in a thread."""
    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(5.0)
    return not writing.is_alive()


@pytest.mark.parametrize("opens_anew", [True, False])
def test_a_line_longer_than_a_page_does_not_wait_for_the_rest_of_its_room(configure, monkeypatch, opens_anew):
    log = logging.getLogger("gateway")
    if not opens_anew:  # as with a pipe of another user
        monkeypatch.setattr(logs, "_opened_anew", lambda descriptor: descriptor)
    with piped(configure) as (_, read):
        assert has_ended(lambda: [log.info("%d %s", number, "x" * 60_000) for number in range(3)])
        assert lines_lost() == 1
        begun = read.read(1 << 20)
        log.info("read again")
        lines = (begun + read.read(1 << 20)).splitlines()
        assert [len(line) > 60_000 for line in lines] == [True, True, False, False]
        assert lines[2].endswith(b" 1 lines of this log are lost: they were not read")
        assert lines[3].endswith(b"read again")


def test_another_process_may_take_the_last_room_of_a_pipe(configure, monkeypatch):
    log = logging.getLogger("gateway")
    with piped(configure) as (stream, _):
        log.info("first")
        os.set_blocking(stream.fileno(), False)
        with suppress(BlockingIOError):
            while os.write(stream.fileno(), bytes(4096)):
                pass
        os.set_blocking(stream.fileno(), True)
        (handler,) = logging.getLogger().handlers
        monkeypatch.setattr(handler, "_has_room", lambda: True)  # as it was before the other wrote
        assert has_ended(lambda: log.info("second"))
        assert lines_lost() == 1


class WatchedPoll:
    """A select.poll that notes how long it was told to wait."""

    def __init__(self, poll):
        self._poll, self.waits = poll, []

    def poll(self, timeout_ms):
        self.waits.append(timeout_ms)
        return self._poll.poll(timeout_ms)


def test_a_slow_reader_is_waited_for_once(configure, monkeypatch):
    log = logging.getLogger("gateway")
    with piped(configure) as (_, read):
        (handler,) = logging.getLogger().handlers
        poll = WatchedPoll(handler._poll)
        monkeypatch.setattr(handler, "_poll", poll)
        for number in range(100):
            log.info("%d %s", number, "x" * 3_000)
            if number % 10 == 9:
                read.read(8192)
        assert sum(map(bool, poll.waits)) == 1
        assert 0 < lines_lost() < 100


def test_a_pipe_that_nobody_reads_costs_lines_and_no_time(configure):
    reader, writer = os.pipe()
    log = logging.getLogger("gateway")
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb", buffering=0) as read:
        configure(stream=stream)
        writing = threading.Thread(target=lambda: [log.info("line %d", number) for number in range(5_000)], daemon=True)
        writing.start()
        writing.join(5.0)
        assert not writing.is_alive()
        kept = read.read(1 << 20).count(b"\n")
        assert 0 < kept < 5_000
        log.info("read again")
        lost, last = read.read(1 << 20).splitlines()
        assert lost.endswith(b" %d lines of this log are lost: they were not read" % (5_000 - kept))
        assert last.endswith(b"read again")
