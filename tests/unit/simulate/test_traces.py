"""Traces of every format, line by line; and of one that is wrong: where and why."""

import gzip
import json
import random

import pytest

from gateway.simulate.trace import traces
from gateway.simulate.trace.formats import TraceCall
from gateway.simulate.trace.tenancy import tenant_rule
from gateway.simulate.trace.traces import REORDER_LINES_MAX, Trace, TraceError

VTC = "req_id,client,arrival_s,prompt_tokens,output_tokens\n0,c13,0.000000,13,199\n1,c2,0.207938,36,137\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 3000, "input_length": 512, "output_length": 6, "hash_ids": [7]}\n'
)
OWN = {"arrival_s": 1.5, "tenant": "a", "prompt_tokens": 10, "output_tokens": 20}


def read(path, rule=None):
    trace = Trace(path)
    return list(trace.calls(tenant_rule(rule or trace.format.tenants, seed=1)))


def written(tmp_path, text):
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def own(tmp_path, *lines):
    return written(tmp_path, "".join(json.dumps({**OWN, **line}) + "\n" for line in lines))


def complaint(tmp_path, text, rule=None):
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as error:
        read(path, rule)
    return str(error.value).removeprefix(str(path))


def test_the_csv_of_the_vtc_trace_names_its_tenants(tmp_path):
    assert read(written(tmp_path, VTC)) == [
        ("c13", TraceCall(0.0, 13, 199, tenant="c13")),
        ("c2", TraceCall(0.207938, 36, 137, tenant="c2")),
    ]


def test_a_csv_may_call_its_tenants_so(tmp_path):
    lines = "tenant,arrival_s,prompt_tokens,output_tokens\nx,0,1,2\n"
    assert read(written(tmp_path, lines)) == [("x", TraceCall(0.0, 1, 2, tenant="x"))]


def test_the_csv_of_azure_has_times_of_day_and_tenants_by_lot(tmp_path):
    (first, one), (_, other) = read(written(tmp_path, AZURE))
    assert first.startswith("random-")
    assert (one.prompt_tokens, one.output_tokens) == (374, 44)
    assert other.at_s - one.at_s == pytest.approx(4.314579, abs=1e-6)


def test_mooncake_counts_milliseconds_and_its_last_block_may_be_a_part_of_one(tmp_path):
    (_, one), (_, other) = read(written(tmp_path, MOONCAKE))
    assert (one.prefix, one.prefix_block_tokens, other.at_s, other.prefix) == ((0, 1), 512, 3.0, (7,))


def test_our_own_lines_say_everything_there_is(tmp_path):
    line = {
        "model": "m",
        "endpoint": "/v1/completions",
        "output_tokens_max": 64,
        "prefix": [2**64 - 1],
        "prefix_block_tokens": 4.5,
        "program": "agent",
        "tools": True,
        "patience_s": 9,
    }
    assert read(own(tmp_path, line)) == [
        (
            "a",
            TraceCall(
                at_s=1.5,
                prompt_tokens=10,
                output_tokens=20,
                output_tokens_max=64,
                tenant="a",
                model="m",
                endpoint="/v1/completions",
                program_id="agent",
                uses_tools=True,
                prefix=(2**64 - 1,),
                prefix_block_tokens=4.5,
                patience_s=9.0,
            ),
        )
    ]


def test_our_own_lines_are_brought_into_order_of_arrival(tmp_path):
    times = [float(number) for number in range(50)]
    random.Random(3).shuffle(times)
    calls = read(own(tmp_path, *({"arrival_s": at_s} for at_s in times)))
    assert [call.at_s for _, call in calls] == sorted(times)


def test_a_line_that_is_too_far_from_its_place_is_an_error(tmp_path):
    lines = [{"arrival_s": 1.0 + number} for number in range(REORDER_LINES_MAX + 1)]
    assert len(read(own(tmp_path, *lines, {"arrival_s": 1.5}))) == len(lines) + 1
    path = own(tmp_path, *lines, {"arrival_s": 0.5})
    with pytest.raises(TraceError, match=f":{len(lines) + 1}: .* sort the file"):
        read(path)


def test_reading_says_how_far_it_is(tmp_path):
    path, told = written(tmp_path, VTC * 1 + "2,c2,3.0,1,1\n" * 50_000), []
    trace = Trace(path)
    list(trace.calls(tenant_rule("column", seed=1), read_bytes=told.append))
    assert len(told) > 2
    assert sum(told) == path.stat().st_size


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2,c2,x,1,1", "arrival_s must be a number"),
        ("2,c2,inf,1,1", "arrival_s must be a number"),
        ("2,c2,0.1,1,1", "this call arrived before the one in the line above"),
        ("2,c2,1,0,1", "prompt_tokens must be a whole number from 1"),
        ("2,c2,1,1.5,1", "prompt_tokens must be a whole number"),
        ("2,c2,1,1,-1", "output_tokens must be a whole number from 0"),
        ("2,c2,1,1," + "9" * 5000, "output_tokens must be a whole number"),
        ("2,c2,1,1", "output_tokens is missing"),
        ("2,c2,1,1,1,1", "the line has more fields than the header"),
        ("2,,1,1,1", "the line names no tenant"),
        ("2,a\x00b,1,1,1", "client must be a name of 1 to 128 printable characters"),
        (f"2,{'x' * 129},1,1,1", "client must be a name"),
    ],
)
def test_a_bad_line_of_csv_is_named_with_its_reason(tmp_path, line, reason):
    assert complaint(tmp_path, f"{VTC}{line}\n").startswith(f":4: {reason}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arrival_s": None}, "arrival_s is missing"),
        ({"arrival_s": True}, "arrival_s must be a number"),
        ({"prompt_tokens": "ten"}, "prompt_tokens must be a whole number"),
        ({"prompt_tokens": True}, "prompt_tokens must be a whole number"),
        ({"tenant": ["a"]}, "tenant must be a name"),
        ({"tools": 1}, "tools must be true or false"),
        ({"prefix": [-1], "prefix_block_tokens": 4}, "prefix must hold whole numbers"),
        ({"prefix": "abc", "prefix_block_tokens": 4}, "prefix must be a list"),
        ({"prefix": [1]}, "prefix_block_tokens is missing"),
        ({"prefix": [1], "prefix_block_tokens": 0}, "prefix_block_tokens must be a number above 0"),
        ({"patience_s": 0}, "patience_s must be a number above 0"),
    ],
)
def test_a_bad_line_of_json_is_named_with_its_reason(tmp_path, change, reason):
    lines = "".join(json.dumps(line) + "\n" for line in (OWN, {**OWN, **change}))
    assert complaint(tmp_path, lines).startswith(f":2: {reason}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ":1: the trace is empty"),
        ("a,b,c\n", ":1: no known format has these fields (needed are, for csv: arrival_s"),
        ('{"a": 1}\n', ":1: no known format has these fields (needed are, for jsonl: arrival_s"),
        ("{nonsense\n", ":1: this is not JSON"),
        (json.dumps(OWN) + "\n\n[1]\n", ":3: this is not a JSON object"),
        (json.dumps(OWN) + "\n{\n", ":2: this is not JSON"),
        (json.dumps(OWN).encode() + b"\n\xff\xfe\n", ":2: this is not UTF-8"),
        (MOONCAKE.replace("3000", "-1"), ":2: this call arrived before"),
        (AZURE.replace("2023-11-16 18:15:50", "soon"), ":3: TIMESTAMP must be a time"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where_and_why(tmp_path, text, reason):
    assert complaint(tmp_path, text).startswith(reason)


def test_a_trace_may_be_compressed(tmp_path):
    plain = read(written(tmp_path, VTC))
    path, told = written(tmp_path, gzip.compress(VTC.encode())), []
    trace = Trace(path)
    assert list(trace.calls(tenant_rule("column", seed=1), read_bytes=told.append)) == plain
    assert sum(told) == path.stat().st_size
    broken = gzip.compress((VTC + "2,c2,1,1,1\n" * 9999).encode())[:-20]
    assert complaint(tmp_path, broken).startswith(": is not whole")


def test_a_mark_of_byte_order_before_the_header_is_no_part_of_it(tmp_path):
    text = "arrival_s,tenant,prompt_tokens,output_tokens\n0,a,1,2\n".encode("utf-8-sig")
    assert read(written(tmp_path, text)) == [("a", TraceCall(0.0, 1, 2, tenant="a"))]


def test_more_tenants_than_memory_is_meant_for_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "TENANTS_MAX", 2)
    assert complaint(tmp_path, VTC + "2,c3,1,1,1\n") == ":4: this is tenant number 3, and 2 are the most"


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        Trace(tmp_path / "none")


def test_tenants_come_from_any_column(tmp_path):
    assert [tenant for tenant, _ in read(written(tmp_path, VTC), "column:req_id")] == ["0", "1"]
    assert complaint(tmp_path, VTC, "column:team") == ":2: team is missing"


def test_tenants_by_lot_are_the_same_for_the_same_seed_and_as_many_as_said():
    call = TraceCall(0.0, 1, 1)

    def draw(rule, seed):
        named = tenant_rule(rule, seed=seed)
        return [named({}, call) for _ in range(3000)]

    assert draw("random:3", 1) == draw("random:3", 1) != draw("random:3", 2)
    assert {"random-1", "random-2", "random-3"} == set(draw("random:3", 1))
    by_zipf = draw("random:3:zipf", 1)
    counts = [by_zipf.count(f"random-{rank}") for rank in (1, 2, 3)]
    assert counts == pytest.approx([3000 * 6 / 11, 3000 * 3 / 11, 3000 * 2 / 11], rel=0.1)


def test_calls_that_share_a_block_are_of_one_tenant():
    def named(rule, *prefixes):
        tenant = tenant_rule(rule, seed=1)
        return [tenant({}, TraceCall(0.0, 9999, 1, prefix=prefix)) for prefix in prefixes]

    one, other, same, short, none = named("block:2", (0, 1), (0, 2), (0, 1, 5), (0,), ())
    assert one == same
    assert len({one, other, short, none}) == 4
    of_three = named("block:2:3:zipf", *((0, number) for number in range(3000)))
    counts = [of_three.count(f"block-{rank}") for rank in (1, 2, 3)]
    assert counts == pytest.approx([3000 * 6 / 11, 3000 * 3 / 11, 3000 * 2 / 11], rel=0.1)


@pytest.mark.parametrize(
    "rule",
    ["", "first", "random", "random:0", "random:x", "random:3:pareto", "block", "block:0", "block:1:2:3", "column:a:b"],
)
def test_a_rule_that_does_not_exist_is_answered_with_those_that_do(rule):
    with pytest.raises(ValueError, match=r"there are: column\[:NAME\], block:K\[:N\[:zipf\]\] or random:N\[:zipf\]"):
        tenant_rule(rule, seed=1)


def turn(number, **fields):
    return {"program": "s", "turn": number, **fields}


def test_a_turn_waits_for_the_end_of_the_one_before_and_has_its_time(tmp_path):
    lines = [
        {**OWN, **turn(1), "shared_tokens": 7},
        {**OWN, "arrival_s": 3.0},
        {"tenant": "a", "prompt_tokens": 40, "output_tokens": 5, **turn(2, gap_s=0.5, final=True)},
        {"tenant": "a", "prompt_tokens": 9, "output_tokens": 5, "program": "t", "turn": 1, "after": "s", "gap_s": 2},
    ]
    trace = written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))
    calls = [call for _, call in read(trace)]
    assert [(call.at_s, call.number, call.waited_for, call.think_s) for call in calls] == [
        (1.5, 1, None, 0.0), (1.5, 2, 1, 0.5), (1.5, 3, 2, 2.0), (3.0, None, None, 0.0),
    ]  # fmt: skip
    assert calls[0].shared_tokens == 7
    assert [call.ends_session for call in calls] == [False, True, False, False]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (turn(2, gap_s=1.0), "no line above is of session 's', which gap_s needs"),
        (turn(1, gap_s=1.0, after="t"), "no line above is of session 't', which gap_s needs"),
        ({"gap_s": 1.0}, "program is missing: turn and gap_s are of a session"),
        (turn(1, gap_s=-1.0), "gap_s must be a number of at least 0"),
        (turn(-1), "turn must be a whole number from 0 to 10000000"),
    ],
)
def test_a_turn_that_waits_for_nothing_is_wrong(tmp_path, line, reason):
    assert complaint(tmp_path, json.dumps({**OWN, **line})) == f":1: {reason}"


def test_a_session_of_another_tenant_is_another(tmp_path):
    lines = json.dumps({**OWN, **turn(1)}) + "\n" + json.dumps({**OWN, **turn(2, gap_s=1.0), "tenant": "b"})
    assert complaint(tmp_path, lines) == ":2: no line above is of session 's', which gap_s needs"
