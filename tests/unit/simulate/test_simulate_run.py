"""`fairlead simulate run` as an operator meets it: what is typed, what comes back, and what is left when it fails."""

import builtins
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from policies.fairness import FAIRNESS
from policies.fairness.bounds import BOUNDS

HOSTILE = "<script>alert(1)</script>$x_{1}$ & co"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_CONFIG", raising=False)


def write_trace(folder: Path, count: int = 240) -> str:
    """A tenant that floods with so many calls, one that asks now and then, and one whose name means mischief."""
    lines = []
    for number in range(count):
        lines.append({"arrival_s": number / 8, "tenant": "loud", "prompt_tokens": 100, "output_tokens": 120})
        if number % 8 == 0:
            lines.append({"arrival_s": number / 8, "tenant": "quiet", "prompt_tokens": 40, "output_tokens": 30})
        if number % 40 == 0:
            lines.append({"arrival_s": number / 8, "tenant": HOSTILE, "prompt_tokens": 10, "output_tokens": 10})
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a trace beside it, in a folder that had a page and notes before."""
    folder = tmp_path_factory.mktemp("reported")
    (folder / "report").mkdir()
    (folder / "report/index.html").write_text("before")
    (folder / "report/notes.txt").write_text("mine")
    draw(write_trace(folder, 24), folder / "report")
    return folder / "report"


def draw(trace: str, folder: Path) -> None:
    assert run("--trace", trace, "--policy", "vtc", "--report", folder).exit_code == 0


def run(*arguments: str):
    return CliRunner().invoke(app, ["simulate", "run", *map(str, arguments)])


def figures(*arguments: str):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return {policy["policy"]: policy for policy in json.loads(result.stdout)["policies"]}


def files(folder: Path):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_table_compares_policies_line_by_line(trace):
    result = run("--trace", trace, "--policy", "vtc", "--policy", "fifo", "--engine", "a10g-llama2-7b")
    assert result.exit_code == 0
    header, rule, vtc, fifo = result.stdout.strip().splitlines()[-4:]
    assert header.startswith("| policy ")
    assert set(rule) <= set("|-:")
    assert (vtc.split()[1], fifo.split()[1]) == ("vtc", "fifo")
    assert len({len(line) for line in (header, rule, vtc, fifo)}) == 1
    assert "tenants: 3, by the rule column" in result.stdout
    assert result.stderr == ""


def test_a_fair_policy_shields_the_quiet_tenant_from_the_loud_one(trace):
    found = figures("--trace", trace, "--policy", "vtc", "--policy", "fifo")
    quiet = {policy: found[policy]["tenants"]["quiet"]["ttft_p99_s"] for policy in found}
    assert quiet["vtc"] < quiet["fifo"] / 3
    for run_ in found.values():
        assert run_["requests"] == run_["served"] == 240 + 30 + 6
        served = {name: tenant["service"] for name, tenant in run_["tenants"].items()}
        assert served == pytest.approx({"loud": 240 * 340, "quiet": 30 * 100, HOSTILE: 6 * 30})
        assert served == pytest.approx({name: tenant["asked_service"] for name, tenant in run_["tenants"].items()})
    assert list(found["vtc"]["tenants"]) == ["loud", "quiet", HOSTILE]
    assert found["vtc"]["difference_max"] <= found["vtc"]["difference_bound"]
    assert found["fifo"]["difference_bound"] is None


def test_every_combination_of_what_is_given_several_times_is_tried(trace):
    found = figures(
        "--trace",
        trace,
        "--policy",
        "vtc",
        "--policy",
        "drr:quantum_service=200",
        "--prediction",
        "oracle",
        "--prediction",
        "none",
    )
    assert list(found) == [
        "vtc + oracle",
        "vtc + none",
        "drr:quantum_service=200 + oracle",
        "drr:quantum_service=200 + none",
    ]
    assert found["vtc + oracle"]["ttft_p99_s"] != found["vtc + none"]["ttft_p99_s"]
    bounds = [found[f"{policy} + none"]["difference_bound"] for policy in ("vtc", "drr:quantum_service=200")]
    assert bounds[1] - bounds[0] >= 400


def test_a_policy_promises_a_bound_or_is_known_to_promise_none(tmp_path):
    without = {name for name in FAIRNESS if BOUNDS[name] is None}
    assert {"fifo", "lcf"} <= without < set(FAIRNESS)
    policies = [word for name in FAIRNESS for word in ("--policy", name)]
    found = figures("--trace", write_trace(tmp_path, 120), "--price", "extend", *policies)
    assert {name for name, run_ in found.items() if run_["difference_bound"] is None} == without
    for run_ in found.values():
        assert run_["difference_max"] <= (run_["difference_bound"] or float("inf"))
        assert run_["served"] == 120 + 15 + 3


def test_weights_share_by_weight(trace, tmp_path):
    path = tmp_path / "two.csv"
    rows = [f"{client},{number / 20},100,100\n" for number in range(400) for client in ("heavy", "light")]
    path.write_text("client,arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))
    (tmp_path / "weights").write_text("# by contract\nheavy=3\n\n")
    typed = figures("--trace", path, "--weights", "heavy=3")["vtc"]
    assert typed == figures("--trace", path, "--weights", tmp_path / "weights")["vtc"]
    assert typed["tenants"]["heavy"]["weight"] == 3
    assert typed["tenants"]["heavy"]["ttft_p50_s"] < typed["tenants"]["light"]["ttft_p50_s"] / 2
    assert typed["jain"] > 0.98


def test_a_configuration_gives_policies_tenants_and_limits_as_in_the_gateway(trace, tmp_path):
    (tmp_path / "fairlead.yaml").write_text(
        "auth: {mode: keys}\n"
        "tenants: {loud: {requests_per_minute_max: 60}, quiet: {tier: gold}}\n"
        "tiers: {gold: {weight: 4}}\n"
        "scheduling: {fairness: {policy: drr, quantum_service: 300}}\n"
        "pools: {special: {scheduling: {fairness: lcf}}}\n"
    )
    found = figures("--trace", trace, "--config", "fairlead.yaml")
    assert list(found) == ["drr"]
    assert found["drr"]["tenants"]["loud"]["refused"] == {"rate_limited": 240 - 60}
    assert found["drr"]["tenants"]["quiet"]["refused"] == {}
    assert list(figures("--trace", trace, "--config", "fairlead.yaml", "--pool", "special")) == ["lcf"]
    assert list(figures("--trace", trace, "--config", "fairlead.yaml", "--policy", "vtc")) == ["vtc"]


def test_a_limit_per_minute_holds_for_every_tenant(trace):
    found = figures("--trace", trace, "--policy", "fifo", "--requests-per-minute", "20")["fifo"]
    assert {name: tenant["served"] for name, tenant in found["tenants"].items()} == {
        "loud": 20,
        "quiet": 20,
        HOSTILE: 6,
    }
    assert found["refused"] == {"rate_limited": 220 + 10}


def test_more_engines_and_faster_traces_do_what_they_say(trace):
    one = figures("--trace", trace)["vtc"]
    assert figures("--trace", trace, "--engines", "3")["vtc"]["ttft_p99_s"] < one["ttft_p99_s"] / 2
    assert figures("--trace", trace, "--speed", "0.1")["vtc"]["duration_s"] > 290
    smaller = figures("--trace", trace, "--kv-tokens", "2000")["vtc"]
    assert smaller["throughput_tokens_per_s"] < one["throughput_tokens_per_s"]
    other = figures("--trace", trace, "--batching", "separate-prefill")["vtc"]
    assert other["throughput_tokens_per_s"] != one["throughput_tokens_per_s"]


def test_prefixes_that_come_again_are_found_in_the_cache(tmp_path):
    path = tmp_path / "mooncake.jsonl"
    lines = [
        {
            "timestamp": 2000 * number,
            "input_length": 2048,
            "output_length": 5,
            "hash_ids": [0, number % 3, 9, number + 10],
        }
        for number in range(20)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    blocks_of_the_trace = figures("--trace", path, "--engine", "a800-llama3.1-8b")["vtc"]
    small_blocks = figures("--trace", path, "--engine", "a800-llama3.1-8b", "--block-tokens", "16")["vtc"]
    # Of 4 blocks 3 are found again in all but the first few calls.
    for found in (blocks_of_the_trace, small_blocks):
        assert found["hit_ratio"] == pytest.approx((1 + 1 + 17 * 3) / 80, abs=0.03)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(report, tmp_path):
    draw(str(report.parent / "trace.jsonl"), tmp_path / "again")
    again = files(tmp_path / "again")
    assert again == {name: body for name, body in files(report).items() if name != "notes.txt"}
    plots = {f"vtc-{plot}.svg" for plot in ("service", "difference", "ttft", "occupancy")}
    assert set(again) == {"index.html", "findings.json"} | plots
    csv = tmp_path / "untold.csv"
    csv.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:46.68,374,44\n" * 60)
    one, same, other = (figures("--trace", csv, "--policy", "fifo", "--seed", seed) for seed in (1, 1, 2))
    assert one == same != other


class Page(HTMLParser):
    """Tags and links of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.links, self.text = set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]

    def handle_data(self, data):
        self.text += data


def test_the_report_needs_nothing_else_and_no_name_becomes_markup(report):
    page = Page((report / "index.html").read_text())
    assert page.tags >= {"table", "svg"}
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert all(link.startswith("#") for link in page.links)
    assert page.text.count(HOSTILE) >= 3  # in the table and in two legends, as it is
    assert not re.search(r"url\((?!#)|@import", page.text)


def test_a_trace_of_one_call_is_drawn_too(tmp_path):
    line = {"arrival_s": 7, "tenant": "_a", "prompt_tokens": 1, "output_tokens": 1}
    (tmp_path / "one.jsonl").write_text(json.dumps(line))
    assert run("--trace", "one.jsonl", "--policy", "fifo", "--report", "report").exit_code == 0
    assert "_a" in (tmp_path / "report/fifo-ttft.svg").read_text()


def test_a_report_takes_its_place_among_files_that_are_there(report):
    after = files(report)
    assert after["notes.txt"] == b"mine"
    assert after["index.html"].startswith(b"<!doctype html>")
    assert sorted(path.name for path in report.parent.iterdir()) == ["report", "trace.jsonl"]


def test_a_bad_line_writes_nothing_and_leaves_the_report_as_it_was(trace, tmp_path, report):
    before = files(report)
    with Path(trace).open("a") as file:
        file.write('{"arrival_s": 31, "tenant": "loud", "prompt_tokens": -5}\n')
    result = run("--trace", trace, "--policy", "vtc", "--policy", "fifo", "--report", report)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"{trace}:277: prompt_tokens must be a whole number from 1 to 10000000\n"
    assert files(report) == before
    assert sorted(path.name for path in report.parent.iterdir()) == ["report", "trace.jsonl"]
    assert run("--trace", trace, "--report", "another").exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "vct"], "fairness: must be one of vtc, "),
        (["--policy", "drr:quantum=3"], "fairness.quantum: 'drr' has no such parameter (it has: quantum_service)"),
        (["--policy", "drr:quantum_service=-3"], "fairness.quantum_service: must be more than 0"),
        (["--policy", "vtc:x=1"], "fairness.x: 'vtc' has no such parameter (it has none)"),
        (["--policy", "drr:quantum_service"], "fairness: 'drr:quantum_service' must be like NAME:PARAMETER=VALUE"),
        (["--policy", "vtc", "--policy", "vtc"], "vtc would be tried twice"),
        (["--prediction", "wizard"], "prediction: must be one of none, quantile"),
        (["--placement", "nowhere"], "placement: must be one of least-reserved"),
        (["--price", "free"], "price: must be one of linear"),
        (["--share-ratio", "0"], "share_ratio_max: must be more than 0"),
        (["--engine", "abacus"], "engine: there is no 'abacus' (there are: a10g-llama2-7b, "),
        (["--batching", "none"], "batching: there is no 'none' (there are: chunked-prefill, "),
        (["--tenants", "lottery"], "there is no rule 'lottery' for tenants (there are: column[:NAME]"),
        (["--weights", "loud=0"], "--weights: must be like TENANT=WEIGHT, with a weight above 0"),
        (["--weights", "nowhere"], "nowhere: No such file or directory"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: the file cannot be read"),
        (["--report", "trace.jsonl/report"], "trace.jsonl: "),
        (["--report", "trace.jsonl"], "trace.jsonl: is not a folder"),
        (["--kv-tokens", "16"], "the trace has no call that can be simulated"),
    ],
)
def test_what_there_is_not_is_answered_with_what_there_is(trace, arguments, complaint):
    result = run("--trace", trace, *arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_without_matplotlib_there_is_a_table_and_a_report_and_a_word_on_plots(trace, tmp_path, monkeypatch):
    def refuse(name, *arguments, **options):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named '{name}'", name="matplotlib")
        return imported(name, *arguments, **options)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "gateway.simulate.report.plots", raising=False)
    result = run("--trace", trace, "--report", "report")
    assert result.exit_code == 0, result.output
    assert "pip install 'fairlead[simulate]'" in result.stdout
    assert set(files(tmp_path / "report")) == {"index.html", "findings.json"}
    assert "pip install" in (tmp_path / "report/index.html").read_text()


def test_a_terminal_is_shown_a_bar_and_a_file_is_not(trace, tmp_path, monkeypatch, capsys):
    """The bar goes to standard error, where a pseudo terminal is."""
    monkeypatch.setenv("TERM", "xterm")
    command = ["simulate", "run", "--trace", trace]
    main, other = os.openpty()
    os.set_blocking(main, False)
    with os.fdopen(main, "rb") as shown, os.fdopen(other, "w") as terminal:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", terminal)
            app(command, standalone_mode=False)
        terminal.flush()
        bar = shown.read()
    assert b"vtc" in bar
    assert b"\x1b[" in bar
    table = capsys.readouterr().out
    with (tmp_path / "errors").open("w+") as errors, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", errors)
        app(command, standalone_mode=False)
        errors.seek(0)
        assert errors.read() == ""
    assert capsys.readouterr().out == table
    assert "\x1b[" not in table


def write_departments(folder: Path, count: int) -> str:
    """A department of five tenants, another of one, and a tenant of none: each tenant makes so many calls."""
    names = [*(f"many/{letter}" for letter in "abcde"), "few/f", "alone"]
    calls = [
        {"arrival_s": at / 8, "tenant": name, "prompt_tokens": 90, "output_tokens": 80}
        for at in range(count)
        for name in names
    ]
    path = folder / "departments.jsonl"
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    return str(path)


ENGINE = ("--requests-running-max", "8", "--speed", "4")


def test_a_groups_shares_are_shown_and_do_not_grow_with_its_tenants(tmp_path):
    (tmp_path / "short.yaml").write_text("queue: {wait_s_max: 20}\n")
    options = ("--trace", write_departments(tmp_path, 400), *ENGINE, "--config", "short.yaml")
    found = figures(*options, "--group-by", "name")["vtc"]["groups"]
    assert {name: group["tenants"] for name, group in found.items()} == {"many": 5, "few": 1, "(no group)": 1}
    assert sum(group["share"] for group in found.values()) == pytest.approx(1.0)
    assert found["few"]["share"] == pytest.approx(found["(no group)"]["share"], rel=0.1)
    assert found["many"]["share"] < 1.5 * found["few"]["share"], "five times as many tenants"
    write_departments(tmp_path, 10)
    assert "groups" not in figures(*options)["vtc"]
    shown = run(*options, "--group-by", "name:/").stdout
    assert "groups: 3, by the rule name:/" in shown
    assert re.search(r"^\| vtc: group +\|.*share", shown, re.MULTILINE)


def test_groups_are_those_of_the_configuration_unless_a_rule_says_otherwise(tmp_path):
    config = {
        "auth": {"mode": "keys", "secret": "0123456789abcdef"},
        "groups": {"red": {"weight": 3}},
        "tenants": {"many/a": {"group": "red"}, "many/b": {}},
    }
    (tmp_path / "groups.yaml").write_text(json.dumps(config))
    found = figures("--trace", write_departments(tmp_path, 10), *ENGINE, "--config", "groups.yaml")["vtc"]["groups"]
    assert (found["red"]["tenants"], found["red"]["weight"]) == (1, 3)


def test_a_rule_for_groups_that_there_is_not_is_an_error(trace):
    result = run("--trace", trace, "--group-by", "colour")
    assert result.exit_code == 1
    assert "there is no rule 'colour' for groups (there is: name[:SEPARATOR])" in result.stderr
