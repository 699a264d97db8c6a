"""The arithmetic of `fairlead bench`: what is added, what it costs, and whose service counts when."""

import pytest

from gateway.bench import report, run
from gateway.bench.run import Compared, Found, Share, Spread
from gateway.calibrate.calls import Answer


def test_what_is_added_is_the_median_of_pairs_and_not_the_difference_of_medians():
    pairs = run._Pairs([(Answer(1.0), Answer(1.1)), (Answer(9.0), Answer(9.1)), (Answer(2.0), Answer(2.4))])
    found = pairs.compared(lambda answer: [answer.total_s])
    assert found.added_ms == pytest.approx(100.0)
    assert (found.direct.median_ms, found.gateway.median_ms) == pytest.approx((2000.0, 2400.0))
    assert (found.direct.p99_ms, found.direct.samples) == (9000.0, 3)


def test_gaps_are_compared_call_by_call_and_counted_one_by_one():
    fast, slow = Answer(tokens_at=[0.0, 1.0, 2.0]), Answer(tokens_at=[0.0, 1.5])
    found = run._Pairs([(fast, slow)]).compared(lambda answer: answer.gaps_s)
    assert (found.direct.samples, found.gateway.samples) == (2, 1)
    assert found.added_ms == pytest.approx(500.0)
    assert run._Pairs([(fast, Answer())]).compared(lambda answer: answer.gaps_s) is None


def test_the_tail_is_the_sample_that_ninety_nine_of_a_hundred_do_not_pass():
    spread = run._spread([number / 1e3 for number in range(200, 0, -1)])
    assert (spread.median_ms, spread.p99_ms, spread.samples) == (pytest.approx(100.5), pytest.approx(198.0), 200)


def test_cpu_is_without_what_an_idle_gateway_takes_and_without_other_work():
    used, idle = run._Cpu(cpu_s=1.5, seconds=10.0), run._Cpu(cpu_s=0.1, seconds=2.0)
    assert run._beside_idle(used, idle, 100, 0.4) == pytest.approx(0.006)
    assert run._beside_idle(used, idle, 0, 0.0) is None
    assert run._beside_idle(None, idle, 100, 0.0) is None
    assert run._beside_idle(idle, used, 100, 0.0) == 0.0


def test_service_counts_from_the_end_of_the_warm_up_and_by_what_is_new(monkeypatch):
    now = 0.0
    monkeypatch.setattr(run.time, "monotonic", lambda: now)
    tally = run._TenantTally(from_s=1.0)
    told = tally.begin()
    told(10, 1)
    assert tally.service == 0.0
    now = 1.0
    told(10, 3)
    assert tally.service == pytest.approx(4.0), "two output tokens"
    told(0, 3)  # a chunk that says less than one before it
    told(10, 4)
    assert tally.service == pytest.approx(6.0)
    tally.begin()(10, 1)
    assert tally.service == pytest.approx(18.0)


def test_a_report_names_figures_samples_and_failures_and_shows_no_control_characters(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    compared = Compared(Spread(10.0, 20.0, 50), Spread(11.0, 22.0, 49), 0.875)
    found = Found("http://a", "m", compared, compared, None, 250.4, None, 0.012)
    found.shares.append(Share("tenant-1", 1.0, 7, 12.34, 0.25, 0.5, 0.5))
    found.failed_calls, found.failure = 2, "status 500 \x1b[31mred"
    report.print_report(found)
    text = capsys.readouterr().out
    assert "m at http://a" in text
    assert ["first", "token", "10.00", "20.00", "11.00", "22.00", "+0.875", "50", "and", "49"] in [
        line.split() for line in text.splitlines()
    ]
    assert "token to token" not in text
    assert "250 us a request, - a chunk" in text
    assert "1.2% of a core" in text
    assert ["tenant-1", "1", "7", "12.3", "25.0%", "50.0%", "0.500"] in [line.split() for line in text.splitlines()]
    assert "2 calls failed" in text
    assert "\x1b" not in text
    assert "stopped before its end" in text
