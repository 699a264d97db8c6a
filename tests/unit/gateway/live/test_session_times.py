"""The times of sessions in the live document stay the same while the clocks agree, and follow a clock that was set."""

from gateway.live.document import _Lately, _session
from policies.types import SessionState, SessionView

HELD = SessionView("s", SessionState.HELD, 0, 0, 0, "", None, since_at=10.04, until_at=70.0, needs_tokens=100)


def test_a_time_that_stays_is_the_same_in_each_document():
    lately = _Lately()
    told = set()
    for at, late_s in ((10.0, 0.0), (11.0, 0.08), (12.0, 0.3), (13.0, -0.2)):
        lately.compare_clocks(1_000_000.0 + at + late_s, at)
        shown = _session(HELD, lately.ahead_s)
        told.add((shown.since_at, shown.until_at))
    assert told == {(1_000_010.0, 1_000_070.0)}


def test_a_clock_that_is_set_moves_it():
    lately = _Lately()
    lately.compare_clocks(1_000_000.0, 10.0)
    lately.compare_clocks(2_000_000.0, 11.0)
    assert _session(HELD, lately.ahead_s).until_at == 2_000_059.0
