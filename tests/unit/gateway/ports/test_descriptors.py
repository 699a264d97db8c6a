"""A process without file descriptors says so, once a minute."""

import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.ports.listener import SAID_AGAIN_S, Descriptors


@pytest.fixture
def none_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 1
    taken = [os.dup(2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    with suppress(OSError):
        while True:
            taken.append(os.dup(2))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nothing_is_said_while_there_are_some(caplog):
    Descriptors().look(0.0)
    assert caplog.records == []


def test_it_is_said_once_a_minute(none_left, caplog):
    descriptors = Descriptors()
    for now in (0.0, 1.0, SAID_AGAIN_S - 1, SAID_AGAIN_S, SAID_AGAIN_S + 1):
        descriptors.look(now)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "file descriptors are short" in said[0]
