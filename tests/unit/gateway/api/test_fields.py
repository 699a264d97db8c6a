"""Every row of the table of client fields: what is forwarded in place of what was sent."""

import json

import orjson
import pytest
from multidict import CIMultiDict

from gateway.api.bodies import read_json
from gateway.api.calls import CallLimits, parse_call
from gateway.api.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from gateway.api.fields import (
    BODY_FIELDS,
    LEFT_OUT,
    RESERVED_XARGS,
    STREAM_INTERVAL_MAX,
    CacheSalts,
    changes,
)
from gateway.api.headers import upstream_headers
from tests.unit.gateway.api.documented import by_name

RESERVED = set(RESERVED_XARGS)
LIMITS = CallLimits(choices_max=4, prompts_max=3, inputs_max=5, output_tokens_max=1000, logprobs_max=20)
PLAIN = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
    EMBEDDINGS: {"input": "hello"},
}
LEFT_OUT_ALWAYS = {
    "priority", "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
    "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "id_slot", "request_id", "rid",
}  # fmt: skip


def forwarded(endpoint=CHAT, salt=None, **fields):
    """What the backend reads of a call with these fields."""
    body = read_json(orjson.dumps(PLAIN[endpoint] | fields))
    return json.loads(parse_call(endpoint, body, LIMITS, salt=salt).body.asking(usage=True, continuous=True))


def test_every_row_is_tested_here():
    assert set(BODY_FIELDS) == LEFT_OUT_ALWAYS | {"vllm_xargs", "nvext", "stream_interval"}


@pytest.mark.parametrize("endpoint", PLAIN, ids=lambda endpoint: endpoint.path)
@pytest.mark.parametrize("name", sorted(LEFT_OUT_ALWAYS))
@pytest.mark.parametrize("value", [-5, "x", {"do_remote_decode": True}, [1], None, 0])
def test_what_overtakes_places_or_collides_is_left_out_and_nothing_else(endpoint, name, value):
    assert forwarded(endpoint, **{name: value, "temperature": 0.5}) == PLAIN[endpoint] | {"temperature": 0.5}


def test_a_field_that_comes_twice_is_left_out_twice():
    body = read_json(b'{"priority":-1,"prompt":"x","priority":-2,"\\u0070riority":-3}')
    sent = parse_call(COMPLETIONS, body, LIMITS).body.asking(usage=True, continuous=True)
    assert sent == b'{"prompt":"x"}'


def test_only_what_is_written_at_the_top_is_a_field():
    inner = {"metadata": {"priority": -5, "request_id": "a"}}
    assert forwarded(**inner) == PLAIN[CHAT] | inner


@pytest.mark.parametrize(
    "name",
    [
        "slo_ttft_ms", "slo_anything", "tenant", "tier", "tenant_id", "priority", "fairlead_x",
        "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "session_id",
    ],
)  # fmt: skip
def test_the_engines_scheduler_is_not_told_by_a_client_what_we_tell_it(name):
    assert forwarded(vllm_xargs={name: 1, "mine": "a"})["vllm_xargs"] == {"mine": "a"}
    assert "vllm_xargs" not in forwarded(vllm_xargs={name: 1})


@pytest.mark.parametrize("value", [{}, {"mine": [1, "a"]}, {"slow": 1, "tenants": 2}, None, "text", 7, []])
def test_other_arguments_of_the_engine_pass(value):
    assert forwarded(vllm_xargs=value) == PLAIN[CHAT] | {"vllm_xargs": value}


@pytest.mark.parametrize(
    "name",
    [
        "agent_hints",
        "backend_instance_id",
        "decode_worker_id",
        "dp_rank",
        "token_data",
        "session_control",
        "cache_salt",
    ],
)
def test_dynamo_is_not_told_by_a_client_what_is_urgent_and_where_it_runs(name):
    assert forwarded(nvext={name: {"priority": 5}, "greed_sampling": True})["nvext"] == {"greed_sampling": True}
    assert "nvext" not in forwarded(nvext={name: 7})


@pytest.mark.parametrize("value", [{}, {"annotations": ["a"]}, None, "text", 7, []])
def test_other_extensions_of_dynamo_pass(value):
    assert forwarded(nvext=value) == PLAIN[CHAT] | {"nvext": value}


@pytest.mark.parametrize("name", ["Priority", "PRIORITY", "priority ", "prioritY", "x-priority", "extra_body"])
def test_what_no_server_reads_passes(name):
    assert forwarded(**{name: {"priority": -5}}) == PLAIN[CHAT] | {name: {"priority": -5}}


def test_an_operator_can_list_the_arguments_of_the_engine_that_clients_may_give():
    allowed = frozenset({"mine", "kv_transfer_params"})
    given = {"mine": 1, "another": 2, "kv_transfer_params": "x"}
    assert changes({"vllm_xargs": given}, salted=False, xargs_allowed=allowed) == {"vllm_xargs": {"mine": 1}}
    assert changes({"vllm_xargs": {"mine": 1}}, salted=False, xargs_allowed=allowed) == {}
    assert changes({"vllm_xargs": {"mine": 1}}, salted=False, xargs_allowed=frozenset()) == {"vllm_xargs": LEFT_OUT}
    limits = CallLimits(
        choices_max=1, prompts_max=1, inputs_max=1, output_tokens_max=9, logprobs_max=9, xargs_allowed=allowed
    )
    parsed = parse_call(CHAT, read_json(orjson.dumps(PLAIN[CHAT] | {"vllm_xargs": given})), limits)
    assert json.loads(parsed.body.asking(usage=False, continuous=False))["vllm_xargs"] == {"mine": 1}


@pytest.mark.parametrize("value", ['{"kv_transfer_params": NaN}', '{"priority": 1, "a": Infinity}'])
def test_a_form_is_read_as_vllm_reads_it_which_takes_more_than_json(value):
    assert not RESERVED & json.loads(forwarded_xargs(value)).keys()
    assert forwarded_xargs("[" * 100_000 + "]" * 100_000) == "{}"


def forwarded_xargs(value):
    found = changes({"vllm_xargs": value}, salted=False).get("vllm_xargs", value)
    return "{}" if found is LEFT_OUT else found


def test_arguments_of_the_engine_in_a_form_are_a_string_and_stay_one():
    given = {"vllm_xargs": '{"tenant": "gold", "mine": 1}'}
    assert json.loads(changes(given, salted=False)["vllm_xargs"]) == {"mine": 1}
    assert changes({"vllm_xargs": '{"tenant": "gold"}'}, salted=False) == {"vllm_xargs": LEFT_OUT}
    assert changes({"vllm_xargs": "no json"}, salted=False) == {}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [(1, 1), (STREAM_INTERVAL_MAX, STREAM_INTERVAL_MAX), (10**9, STREAM_INTERVAL_MAX), (1e9, STREAM_INTERVAL_MAX)],
)
def test_a_chunk_of_a_stream_holds_no_more_tokens_than_may_lag(asked, sent):
    assert forwarded(stream_interval=asked, stream=True)["stream_interval"] == sent


def test_an_interval_that_is_a_string_is_a_number_as_vllm_reads_it():
    assert forwarded(stream_interval="1000")["stream_interval"] == STREAM_INTERVAL_MAX
    assert forwarded(stream_interval="no")["stream_interval"] == "no"


def test_a_body_that_no_rule_concerns_is_the_same_bytes():
    raw = b' {"prompt" : "priority", "temperature":0.10,"unknown":{"request_id":1}}\n'
    assert parse_call(COMPLETIONS, read_json(raw), LIMITS).body.asking(usage=True, continuous=True) is raw


# -- salts -------------------------------------------------------------------------------------------------------


def salt(isolation="tenant", tenant_id="alice", tier_id="gold", own=None, secret=b"s" * 32):
    return CacheSalts(isolation, secret).salt(tenant_id=tenant_id, tier_id=tier_id, own=own)


def test_without_isolation_a_clients_own_salt_passes():
    assert salt("none") is None
    assert forwarded(cache_salt="mine")["cache_salt"] == "mine"


def test_tenants_have_salts_of_their_own_and_those_of_a_tier_share_where_that_is_the_scope():
    assert salt("tenant") != salt("tenant", tenant_id="bob")
    assert salt("tier") == salt("tier", tenant_id="bob")
    assert salt("tier") != salt("tier", tier_id="silver")
    assert salt("tenant", tenant_id="gold") != salt("tier", tier_id="gold")


def test_a_clients_own_salt_parts_its_prefixes_further_and_gets_it_into_no_others():
    salts = {salt(own=None), salt(own="a"), salt(own="b"), salt(own=7), salt(own="7"), salt(own=salt(tenant_id="bob"))}
    assert len(salts | {salt(tenant_id="bob")}) == 7
    assert salt(own="a") == salt(own="a")


def test_a_salt_cannot_be_made_without_the_secret_and_is_one_that_vllm_takes():
    assert salt() != salt(secret=b"t" * 32)
    assert len(salt()) == 43
    assert salt().replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("endpoint", PLAIN, ids=lambda endpoint: endpoint.path)
def test_the_salt_that_is_sent_is_ours_whatever_the_client_sent(endpoint):
    for own in ({}, {"cache_salt": "mine"}, {"cache_salt": None}, {"cache_salt": ["odd"]}):
        assert forwarded(endpoint, salt="ours", **own) == PLAIN[endpoint] | {"cache_salt": "ours"}
    streamed = forwarded(CHAT, salt="ours", stream=True)
    assert (streamed["cache_salt"], streamed["stream_options"]["include_usage"]) == ("ours", True)


def test_prompts_of_two_salts_have_no_prefix_in_common():
    body = read_json(orjson.dumps({"prompt": "x" * 3000}))
    prefixes = [parse_call(COMPLETIONS, body, LIMITS, salt=each).prefix for each in (None, "a", "b")]
    assert len(prefixes[0]) == 2
    assert len({prefix[0] for prefix in prefixes}) == 3


# -- headers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", by_name("Headers"))
def test_no_header_of_the_table_reaches_a_backend_as_its_client_sent_it(name):
    sent = upstream_headers(CIMultiDict({name: "SENTINEL"}), request_id="r", content_type="a/b", credentials={})
    assert "SENTINEL" not in sent.values()
    assert sent["x-vllm-priority"] == "0"
