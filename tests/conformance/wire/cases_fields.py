"""What clients may not use to be served sooner, or elsewhere, or unseen: vLLM obeys, the gateway passes nothing on."""

import json

from case import Case, differs, same
from cases_chat import BASE, PATH
from cases_responses import MESSAGE, MESSAGES
from exchange import Ask, Got, post

STREAM_INTERVAL_MAX = 16
LONG_STREAM = {**BASE, "max_tokens": 40, "ignore_eos": True, "stream": True, "stream_interval": 1000}
# The answer is the same, whatever became of the field on its way.
PASSED_OVER = {
    "priority": {"priority": -100},
    "vllm_xargs of the gateway": {"vllm_xargs": {"tenant": "other", "slo_ttft_ms": 1, "x": 1}},
    "transfers of the cache": {"kv_transfer_params": {"do_remote_decode": True, "remote_host": "example.com"}},
    "a rank in the body": {"data_parallel_rank": 9},
    "a request id in the body": {"request_id": "abc"},
    "a session": {"session_id": "abc"},
}
HEADERS = {
    "x-vllm-priority": "-100",
    "x-data-parallel-rank": "0",
    "x-session-id": "abc",
    "x-tenant-id": "other",
    "x-llm-d-inference-fairness-id": "other",
    "authorization": "Bearer sk-test",
    "cookie": "a=b",
    "accept": "text/html",
    "accept-encoding": "gzip, br",
    "te": "trailers",
}


def load(ask: Ask) -> Case:
    """The load of the server, which is that of all tenants, is told by vLLM and not by the gateway."""

    def check(their: Got, our: Got) -> None:
        assert "endpoint-load-metrics" in dict(their.headers)
        assert "endpoint-load-metrics" not in dict(our.headers)
        assert our.status == 200

    return Case((ask,), differs=check)


def in_more_pieces(ask: Ask) -> Case:
    """The same text, in events of not too many tokens."""

    def texts(got: Got) -> list[str]:
        events = [event.removeprefix("data: ") for event in got.body.decode().split("\n\n") if event]
        choices = [json.loads(event)["choices"][0] for event in events[:-1]]
        return [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]

    def check(their: Got, our: Got) -> None:
        assert "".join(texts(our)) == "".join(texts(their))
        assert len(texts(their)) == 2
        # the first token alone, then as many as may be
        assert len(texts(our)) >= 1 + (40 - 1) // STREAM_INTERVAL_MAX

    return Case((ask,), differs=check)


CASES: dict[str, Case] = {
    "passed over: " + name: same(post(PATH, {**BASE, **fields})) for name, fields in PASSED_OVER.items()
}
CASES |= {f"header {name}": same(Ask("POST", PATH, BASE, {name: value})) for name, value in HEADERS.items()}
CASES |= {
    "passed over: priority of a message": same(post(MESSAGES, MESSAGE, x_vllm_priority="7")),
    "a priority that is none": differs(post(PATH, {**BASE, "priority": 1.5}), theirs=400, ours=200),
    "a rank that is none": differs(post(PATH, BASE, x_data_parallel_rank="7"), theirs=400, ours=200),
    "xargs that are no values": same(post(PATH, {**BASE, "vllm_xargs": {"a": {"b": 1}}})),
    "an empty salt": same(post(PATH, {**BASE, "cache_salt": ""})),
    "a stream_interval that is none": same(post(PATH, {**BASE, "stream": True, "stream_interval": 0})),
    "a stream_interval over the limit": in_more_pieces(post(PATH, LONG_STREAM)),
    "load in JSON": load(post(PATH, BASE, endpoint_load_metrics_format="JSON")),
    "load as text": load(post(PATH, BASE, endpoint_load_metrics_format="TEXT")),
    "a query behind the path": same(post(f"{PATH}?a=b&c", BASE)),
    "an escaped path": same(post("/v1/ch%61t/completions", BASE)),
}  # fmt: skip
