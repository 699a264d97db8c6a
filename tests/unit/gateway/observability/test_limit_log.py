"""What the log says of backends of unknown size, and of limits that bind: once."""

import logging
from dataclasses import replace

import pytest

from gateway.observability.limit_log import QUIET_S, LimitLog
from policies.types import BackendView, SizeSource

VIEW = BackendView(
    available=True,
    in_flight_requests=15,
    requests_limit=256,
    reserved_tokens=0,
    tokens_limit=None,
    external_requests=0,
    external_tokens=0,
)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return said


def test_where_a_size_is_from_is_said_once_unless_it_is_given(lines):
    log = LimitLog()
    log.see("m", "b0", VIEW, queued_requests=0, now=0.0)
    assert lines() == []
    for now, source, limit in ((1.0, "assumed", 4), (2.0, "assumed", 9), (3.0, "learnt", 12), (4.0, "learnt", 13)):
        view = replace(VIEW, size=SizeSource(source), requests_limit=limit)
        log.see("m", "b0", view, queued_requests=0, now=now)
    assumed, learnt = lines()
    assert "b0" in assumed
    assert "4 requests at once are assumed" in assumed
    assert "requests_running_max" in assumed
    assert "12 requests at once are learnt" in learnt


def test_a_limit_that_binds_is_said_when_it_begins_when_it_moves_and_when_it_is_over(lines):
    log, full = LimitLog(), replace(VIEW, sequences_max=15.0)
    log.see("m", "b0", full, queued_requests=0, now=0.0)
    log.see("m", "b0", replace(full, in_flight_requests=14), queued_requests=9, now=1.0)
    assert lines() == [], "nothing waits for it"
    for now in (2.0, 3.0, 10.0):
        log.see("m", "b0", full, queued_requests=9, now=now)
    (line,) = lines()
    assert "15 requests" in line
    log.see("m", "b0", replace(full, sequences_max=7.0), queued_requests=9, now=11.0)
    assert "7 requests" in lines()[0]
    log.see("m", "b0", VIEW, queued_requests=9, now=12.0)
    assert lines() == []
    log.see("m", "b0", VIEW, queued_requests=0, now=11.0 + QUIET_S)
    assert "binds no more" in lines()[0]


def test_seats_that_are_all_taken_are_no_limit_that_binds(lines):
    LimitLog().see("m", "b0", replace(VIEW, in_flight_requests=256, sequences_max=256.0), queued_requests=9, now=0.0)
    assert lines() == []
