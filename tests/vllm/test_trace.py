"""One trace through the gateway and a real vLLM: vLLM's span is a child of the gateway's call of it."""

import asyncio

import pytest
from otlp_collector import Collector, otlp_collector
from processes import Gateway, Vllm
from wire import CHAT, fetch

ASKED = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Once upon a time"}],
    "max_tokens": 16,
    "stream": True,
    "ignore_eos": True,
}
PATIENCE_S = 30.0


@pytest.fixture
async def collector():
    async with otlp_collector() as collector:
        yield collector


def one(collector: Collector, name: str):
    (span,) = [span for span in collector.spans if span.name == name]
    return span


async def test_vllms_span_is_a_child_of_the_gateways(collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    vllm = Vllm(
        tmp_path / "vllm.log",
        f"--otlp-traces-endpoint={collector.url}/v1/traces",
        environment={"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": "vllm"},
    )
    traced = {"tracing": {"endpoint": collector.url}}
    gateway = Gateway(tmp_path, vllm, config=traced)
    try:
        await asyncio.to_thread(vllm.start)
        await asyncio.to_thread(gateway.start)
        collector.spans.clear()  # of the start
        status, _ = await asyncio.to_thread(fetch, gateway.url, CHAT, ASKED)
        assert status == 200
        async with asyncio.timeout(PATIENCE_S):
            while {"chat tiny", "llm_request"} - {span.name for span in collector.spans}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await asyncio.to_thread(gateway.stop)
        await asyncio.to_thread(vllm.stop)
    server, client = one(collector, f"POST {CHAT}"), one(collector, "chat tiny")
    engine = one(collector, "llm_request")
    print(tree(collector, server))  # noqa: T201 - for its reader
    assert engine.kind == "SERVER"
    assert engine.trace_id == client.trace_id == server.trace_id
    assert (engine.parent_id, client.parent_id) == (client.span_id, server.span_id)
    assert engine.attributes["gen_ai.usage.completion_tokens"] == client.attributes["gen_ai.usage.output_tokens"]
    assert engine.attributes["gen_ai.usage.prompt_tokens"] == client.attributes["gen_ai.usage.input_tokens"]
    assert client.started_ns <= engine.started_ns <= engine.ended_ns


def tree(collector: Collector, root, depth: int = 0) -> str:
    """The spans below this one, to be read."""
    lines = [f"{'  ' * depth}{root.name} ({root.kind}) {(root.ended_ns - root.started_ns) / 1e6:.1f} ms"]
    lines[0] += f" trace {root.trace_id} span {root.span_id}"
    about = {**root.attributes, **{f"event {name}": each for name, each in root.events.items()}}
    lines += [f"{'  ' * depth}    {name}: {value}" for name, value in sorted(about.items())]
    children = [span for span in collector.spans if span.parent_id == root.span_id]
    lines += [tree(collector, span, depth + 1) for span in sorted(children, key=lambda span: span.started_ns)]
    return "\n".join(lines)
