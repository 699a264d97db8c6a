"""One page of metrics for several workers."""

from gateway.workers.exposition import counted, parse, summed, written

ONE = """# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{tenant="a b",outcome="ok"} 3.0
# HELP lag_seconds Lag.
# TYPE lag_seconds histogram
lag_seconds_bucket{le="0.1"} 1.0
lag_seconds_bucket{le="+Inf"} 2.0
lag_seconds_count 2.0
lag_seconds_sum 0.5
# HELP process_start_time_seconds Start.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 100.0
# HELP process_open_fds Open.
# TYPE process_open_fds gauge
process_open_fds 7.0
# HELP fairlead_cluster_epoch Number.
# TYPE fairlead_cluster_epoch gauge
fairlead_cluster_epoch 2.0
"""
OTHER = ONE.replace("3.0", "4.0").replace("100.0", "90.0").replace('tenant="a b"', 'tenant="c"')


def test_counters_and_histograms_are_summed_and_gauges_by_their_meaning():
    page = written(summed([parse(ONE), parse(OTHER), parse(ONE)]))
    assert 'calls_total{tenant="a b",outcome="ok"} 6.0' in page
    assert 'calls_total{tenant="c",outcome="ok"} 4.0' in page
    assert 'lag_seconds_bucket{le="+Inf"} 6.0' in page
    assert "lag_seconds_sum 1.5" in page
    assert "process_start_time_seconds 90.0" in page
    assert "process_open_fds 21.0" in page
    assert "fairlead_cluster_epoch 2.0" in page, "all follow one leadership"
    assert page.count("# TYPE calls_total counter") == 1


def test_one_page_is_written_as_it_was():
    assert written(parse(ONE)) == ONE


def test_of_a_worker_that_has_ended_the_counters_stay():
    page = written(summed([parse(ONE), counted(parse(OTHER))]))
    assert 'calls_total{tenant="c",outcome="ok"} 4.0' in page
    assert "process_open_fds 7.0" in page


def test_summing_changes_no_page():
    one = parse(ONE)
    summed([one, parse(ONE)])
    assert written(one) == ONE
