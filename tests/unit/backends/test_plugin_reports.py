import json
from dataclasses import asdict
from functools import partial

import pytest

from backends.plugin_reports import ABSENT_S, EngineNews, PluginReports, name_at_plugin
from backends.step_times import ReportedStep
from backends.vllm_plugin.reports import EngineState, Reports, carried, take_carried
from backends.vllm_plugin.step_clock import StepReport as PluginStep

STATE = EngineState(
    dispatches={}, running=1, waiting=0, kv_blocks=100, kv_blocks_free=90, kv_block_tokens=16, step_tokens_max=2048,
    requests_running_max=128, scheduling_policy="fcfs", pab_tokens=500.0, pab_ttft_s=0.5, pab_tpot_s=0.05,
)  # fmt: skip


def answer(served: Reports, since: int = 0) -> bytes:
    return json.dumps(served.since(since)).encode()


def serve(*states, steps=()):
    served = Reports("epoch")
    for engine, state in enumerate(states):
        served.add(engine, {"steps": [list(step) for step in steps], "state": asdict(state)})
    return served


def state(**changes):
    return EngineState(**{**asdict(STATE), **changes})


def test_what_the_plugin_serves_is_what_the_gateway_reads():
    strings = {"an-adapter": 3, carried([PluginStep(10, 500, 2, 0.0125)], STATE): 0}
    (report,) = take_carried(strings)
    assert strings == {"an-adapter": 3}
    served = Reports("epoch")
    served.add(0, report)
    reports = PluginReports()
    assert reports.read(answer(served)) == [ReportedStep(10, 500, 2, 0.0125)]
    assert reports.engines == EngineNews(
        step_tokens_max=2048, requests_running_max=128, pab_tokens=500.0, pab_dispatches={}, reads_priority=False
    )
    assert reports.path(0.0) == "/fairlead/steps?since=1"


def test_only_steps_that_are_new_are_served_and_of_too_many_the_last():
    served = serve(STATE, steps=[(number, 0, 1, 1000) for number in range(5000)])
    assert served.since(4999)["steps"] == [[4999, 0, 4999, 0, 1, 1000]]
    assert served.since(5000)["steps"] == served.since(9999)["steps"] == []
    assert [served.since(0)["steps"][at][0] for at in (0, -1)] == [904, 4999]
    assert served.since(9999)["next"] == 5000


def test_several_engines_are_one_backend_and_none_says_which_dispatches_have_arrived():
    reports = PluginReports()
    reports.read(answer(serve(STATE, STATE)))
    assert reports.engines == EngineNews(
        step_tokens_max=4096, requests_running_max=256, pab_tokens=1000.0, reads_priority=False
    )
    reports.read(answer(serve(STATE, state(pab_tokens=None))))
    assert reports.engines.pab_tokens is None


@pytest.mark.parametrize(
    ("policies", "known"),
    [(["priority"], True), (["priority", "priority"], True), (["priority", "fcfs"], None), (["lottery"], None)],
)
def test_engines_say_whether_their_queues_go_by_priority(policies, known):
    reports = PluginReports()
    reports.read(answer(serve(*(state(scheduling_policy=policy) for policy in policies))))
    assert reports.engines.reads_priority is known


def test_only_our_own_dispatches_count_those_of_each_of_our_processes_for_themselves():
    reports = PluginReports()
    of = partial(name_at_plugin, reports.gateway)
    seen = {"another": 900, of(""): 7, of("one"): 3, f"{reports.gateway}s": 1}
    reports.read(answer(serve(state(dispatches=seen))))
    assert reports.engines.pab_dispatches == {"": 7, "one": 3}


def test_a_server_without_the_plugin_is_asked_again_after_a_while_and_after_silence():
    reports = PluginReports()
    reports.read(answer(serve(STATE, steps=[(1, 1, 1, 1000)])))
    reports.absent(100.0)
    assert reports.engines is None
    assert reports.path(100.0 + ABSENT_S / 2) is None
    assert reports.path(100.0 + ABSENT_S) == "/fairlead/steps?since=0"
    reports.absent(200.0)
    reports.silent()
    assert reports.path(200.0) == "/fairlead/steps?since=0"


def test_an_engine_that_never_reported_is_not_known_to_batch_fairly():
    reports = PluginReports()
    assert reports.read(answer(Reports("epoch"))) == []
    assert reports.engines is None


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"version":2,"epoch":"a","next":0,"steps":[],"engines":{}}',
     b'{"version":1,"epoch":"a","next":-1,"steps":[],"engines":{}}', b'{"version":1,"epoch":"a","next":0,"steps":{}}'],
)  # fmt: skip
def test_what_is_no_report_is_refused(body):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        PluginReports().read(body)


@pytest.mark.parametrize("row", [[], "row", [0, 0, 1, 1, 1], [0, 0, -1, 1, 1, 1], [0, 0, 1, 1, 1, 1.5], [None] * 6])
def test_a_row_that_is_no_step_is_passed_over(row):
    body = {"version": 1, "epoch": "a", "next": 2, "steps": [row, [1, 0, 5, 9, 1, 2000]], "engines": {}}
    assert PluginReports().read(json.dumps(body).encode()) == [ReportedStep(5, 9, 1, 0.002)]


@pytest.mark.parametrize(
    "lie",
    [
        {"pab_tokens": "many"},
        {"pab_tokens": float("inf")},
        {"step_tokens_max": -1},
        {"dispatches": [1]},
        {"scheduling_policy": 7},
        {},
    ],
)
def test_an_engine_that_says_what_cannot_be_says_nothing(lie):
    said = {"a": {**lie}}
    body = {"version": 1, "epoch": "a", "next": 0, "steps": [], "engines": said}
    reports = PluginReports()
    reports.read(json.dumps(body).encode())
    assert reports.engines == EngineNews()
