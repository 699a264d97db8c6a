"""Agents: what is drawn of their sessions, the trace that it makes, and what a run says of it."""

import json
import shlex
from collections import defaultdict
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from statistics import median

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.simulate.trace.agents import GAPS_S, Agents, always, read_quantiles, turns_of

PAGE = Path(__file__).parents[3] / "docs/simulate.md"


def run(*arguments: str):
    return CliRunner().invoke(app, ["simulate", *arguments])


def written(tmp_path, *arguments):
    result = run("agents", *arguments)
    assert result.exit_code == 0, result.output
    (tmp_path / "agents.jsonl").write_text(result.stdout)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_is_not_given_is_drawn_as_published(tmp_path):
    lines = written(tmp_path, "--agents", "A=100", "--rounds", "4")
    turns = defaultdict(int)
    for line in lines:
        turns[line["program"]] += 1
    assert len(turns) == 400
    assert median(turns.values()) == pytest.approx(43, rel=0.1)
    gaps = [line["gap_s"] for line in lines if "gap_s" in line]
    assert sum(gap <= 1.0 for gap in gaps) / len(gaps) == pytest.approx(0.8646, abs=0.01)
    assert sum(gap < 10.0 for gap in gaps) / len(gaps) == pytest.approx(0.9512, abs=0.01)
    assert sum(line["prompt_tokens"] for line in lines) / len(lines) == pytest.approx(50_000, rel=0.15)
    assert sum(line["output_tokens"] for line in lines) / len(lines) == pytest.approx(350, rel=0.1)


def test_each_turn_sends_all_before_it_and_a_session_follows_another(tmp_path):
    lines = written(tmp_path, "--agents", "A=1", "--agents", "B=2", "--rounds", "2", "--turns", "3", "--tell-ends")
    assert [(line["tenant"], line["program"], line["turn"]) for line in lines[:7]] == [
        *(("A", "A-0-0", turn) for turn in (1, 2, 3)), *(("A", "A-0-1", turn) for turn in (1, 2, 3)), ("B", "B-0-0", 1),
    ]  # fmt: skip
    for before, after in pairwise(lines):
        if after["turn"] > 1:
            assert after["prompt_tokens"] > before["prompt_tokens"] + before["output_tokens"]
    assert ["after" in line for line in lines[:4]] == [False, False, False, True]
    assert [line.get("final", False) for line in lines[:3]] == [False, False, True]


def test_another_agent_changes_no_draw_of_the_first(tmp_path):
    one = written(tmp_path, "--agents", "A=1", "--rounds", "1")
    assert one == written(tmp_path, "--agents", "A=2", "--rounds", "1")[: len(one)]
    assert one != written(tmp_path, "--agents", "A=1", "--rounds", "1", "--seed", "1")


def test_a_session_ends_where_its_context_is_full():
    agents = Agents(
        tenant_id="A", sessions=1, first_prompt=always(100.0), added=always(50.0), output=always(50.0),
        turns=always(40.0), context_max=350,
    )  # fmt: skip
    turns = list(islice(turns_of(agents, Random(0)), 6))
    assert [(turn.prompt_tokens, turn.is_last) for turn in turns] == [(100, False), (200, False), (300, True)] * 2


@pytest.mark.parametrize(
    "text", ["0", "-1", "x", "0:1", "0:1,1:0", "0.5:1,1:2", "0:1,0.5:2,0.5:3,1:4", "0:1,1:inf", ""]
)
def test_what_are_no_quantiles_is_said(text):
    result = run("agents", "--agents", "A=1", "--turns", text)
    assert result.exit_code == 1
    assert f"'{text}' must" in result.stderr


@pytest.mark.parametrize("text", ["A", "A=0", "=3", "A=x", "A=10001"])
def test_what_is_no_number_of_agents_is_said(text):
    result = run("agents", "--agents", text)
    assert result.exit_code == 1
    assert f"'{text}' must be like TENANT=COUNT" in result.stderr


def test_quantiles_are_typed_as_published():
    assert read_quantiles("0:0.02,0.8646:1,0.9512:10,1:10") == GAPS_S
    assert read_quantiles("12") == always(12.0)


def commands() -> list[list[str]]:
    """The example of agents on the page of simulations."""
    lines = [
        line for line in PAGE.read_text().splitlines() if line.startswith("fairlead simulate") and "agents" in line
    ]
    return [shlex.split(line.partition(" > ")[0])[2:] for line in lines]


def test_holding_sessions_is_worth_what_the_page_says_as_far_as_two_sessions_of_each_agent_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (_, *agents), compared = commands()
    lines = written(tmp_path, *agents)
    result = run(*compared, "--json")
    assert result.exit_code == 0, result.output
    free, held = json.loads(result.stdout)["policies"]
    assert (free["policy"], held["policy"]) == ("vtc + sessions free", "vtc + sessions held")
    for each in (free, held):
        assert each["served"] == len(lines) == each["sessions"]["turns"]
        assert each["sessions"]["sessions"] == 24 * 2
    assert held["output_tokens_per_s"] > 1.6 * free["output_tokens_per_s"]
    assert free["hit_ratio"] < 0.1
    assert held["hit_ratio"] > 0.6
    assert held["sessions"]["session_p50_s"] < 0.6 * free["sessions"]["session_p50_s"]
    assert free["sessions"]["held_turns"] == free["sessions"]["pauses"] == 0
    assert free["sessions"]["etas"] == {}
    assert held["sessions"]["held_turns"] > 0 < held["sessions"]["pauses"]
    assert held["sessions"]["held_max"] > 0 < held["sessions"]["paused_max"]
    assert list(held["sessions"]["etas"]) == ["engine-1"]


def test_the_table_says_what_became_of_sessions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "--agents", "A=2", "--rounds", "1", "--turns", "3", "--gap-s", "0.5", "--first-prompt", "100")
    result = run("run", "--trace", "agents.jsonl", "--engine", "cpu-tiny", "--report", "report")
    assert result.exit_code == 0, result.output
    header, _, line = result.stdout.split("\n\n")[2].splitlines()
    told = dict(zip(*([cell.strip() for cell in row.split("|")[1:-1]] for row in (header, line)), strict=True))
    assert (told["sessions"], told["turns"], told["held turns (mean s)"]) == ("2", "6", "0 (-)")
    assert "<td>0 (-)</td>" in (tmp_path / "report/index.html").read_text()


def test_a_turn_comes_its_gap_after_the_answer_before_however_slow_the_engine_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "--agents", "A=1", "--rounds", "1", "--turns", "4", "--gap-s", "100", "--starts-within-s", "0")
    for engine in ("cpu-tiny", "a800-llama3.1-8b"):
        result = run("run", "--trace", "agents.jsonl", "--engine", engine, "--json")
        (found,) = json.loads(result.stdout)["policies"]
        assert found["sessions"]["session_p50_s"] > 300.0
        assert found["sessions"]["turn_wait_max_s"] < 0.1
