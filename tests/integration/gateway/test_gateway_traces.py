"""Traces: which spans there are, of which calls, and that nothing happens when no collector takes them."""

import asyncio
import re
import socket
import time

import pytest
from gateway_rig import (
    CHAT,
    PATIENCE_S,
    SLOW,
    bearer,
    call,
    engine,
    gateway,
    gateway_and_engine,
    scripted,
    until,
    whole,
)
from otlp_collector import black_hole, grpc_collector, otlp_collector

from gateway.observability import batches
from gateway.observability.metrics import page as metrics
from gateway.observability.tracing import shipping
from tests.calm.rig import Watch, own_s

SERVER = f"POST {CHAT}"
CLIENT = "chat tiny"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "the-secret-of-the-prompt"


def said(caplog):
    """The log, but for the backend's size, which a scripted one does not tell."""
    return [record for record in caplog.records if "--max-num-seqs is not known" not in record.getMessage()]


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(shipping.SpanShipper.__init__, "__kwdefaults__", {"spans_max": 4096, "interval_s": 0.02})
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")


def tracing(collector_url):
    return {"tracing": {"endpoint": collector_url}}


async def test_a_call_is_a_server_span_with_a_wait_and_a_call_of_its_backend_below_it():
    async with otlp_collector() as collector, gateway_and_engine(tracing(collector.url)) as (rig, _):
        assert (await rig.post(call(stream=True))).status == 200
        await until(lambda: len(collector.spans) == 3)
    server, queue, client = collector.one(SERVER), collector.one("queue"), collector.one(CLIENT)
    assert (server.kind, queue.kind, client.kind) == ("SERVER", "INTERNAL", "CLIENT")
    assert server.trace_id == queue.trace_id == client.trace_id
    assert server.parent_id == ""
    assert queue.parent_id == client.parent_id == server.span_id
    assert server.started_ns <= queue.started_ns <= queue.ended_ns <= client.started_ns < client.ended_ns
    assert abs(server.started_ns / 1e9 - time.time()) < PATIENCE_S
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["fairlead.outcome"] == "completed"
    assert client.attributes["gen_ai.operation.name"] == "chat"
    assert client.attributes["gen_ai.request.model"] == "tiny"
    assert client.attributes["gen_ai.usage.output_tokens"] == 8
    assert client.attributes["fairlead.backend"] == "b0"
    assert "fairlead.first_token" in client.events
    assert collector.resources[0]["service.name"] == "fairlead"


async def test_the_backend_is_told_the_span_that_it_is_called_from():
    async with otlp_collector() as collector, scripted() as backend, gateway(backend, **tracing(collector.url)) as rig:
        await rig.post(headers={"traceparent": CALLER, "tracestate": "vendor=1"})
        await until(lambda: len(collector.spans) == 3)
    server, client = collector.one(SERVER), collector.one(CLIENT)
    assert (server.trace_id, server.parent_id) == tuple(CALLER.split("-")[1:3])
    assert server.trace_state == "vendor=1"
    assert backend.calls[0].headers["traceparent"] == f"00-{client.trace_id}-{client.span_id}-01"
    assert backend.calls[0].headers["tracestate"] == "vendor=1"


async def test_there_is_never_a_prompt_an_answer_or_a_key_in_a_span():
    messages = [{"role": "user", "content": SECRET}]
    answer = {"choices": [{"message": {"content": SECRET}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    async def act(reader, writer):
        writer.write(whole(answer))
        return True

    async with (
        otlp_collector() as collector,
        scripted(act) as backend,
        gateway(backend, **tracing(collector.url)) as rig,
    ):
        await rig.post(call(messages=messages, user=SECRET), headers=bearer(SECRET))
        await rig.post(call(messages=messages, model=SECRET + "!"), headers=bearer(SECRET))
        await until(lambda: len(collector.named(SERVER)) == 2)
    assert SECRET.encode() not in b"".join(collector.bodies)


async def test_a_call_that_waits_says_why_and_one_that_is_refused_says_so():
    config = {
        "tenants": {"anonymous": {"in_flight_max": 1}},
        "queue": {"wait_s_max": 0.3},
    }
    async with (
        otlp_collector() as collector,
        engine(**SLOW) as server,
        gateway(server, **tracing(collector.url), **config) as rig,
    ):
        running = asyncio.ensure_future(rig.post(call(max_tokens=30)))
        await until(lambda: rig.snapshot().in_flight_requests == 1)
        assert (await rig.post()).status in (429, 503)
        await running
        await until(lambda: len(collector.named("queue")) == 2)
    at_once, waited = collector.named("queue")
    assert at_once.attributes["fairlead.queue.wait_reason"] == "none"
    assert waited.attributes["fairlead.queue.wait_reason"] == "tenant_limit"
    assert waited.events["fairlead.shed"] == {"fairlead.reason": "queue_timeout"}
    assert len(collector.named(CLIENT)) == 1


async def test_a_call_that_a_busy_backend_sends_back_waits_twice_and_is_sent_twice():
    busy = b'{"error": {"message": "The engine is overloaded", "type": "x", "code": 503}}'

    async def refuse(reader, writer):
        writer.write(b"HTTP/1.1 503 X\r\ncontent-length: %d\r\n\r\n%b" % (len(busy), busy))
        return True

    async with (
        otlp_collector() as collector,
        scripted(None, refuse) as backend,
        gateway(backend, **tracing(collector.url)) as rig,
    ):
        assert (await rig.post()).status == 200
        await until(lambda: len(collector.spans) == 5)
    first, second = collector.named(CLIENT)
    assert first.events.keys() == {"fairlead.requeue"}
    assert first.is_error
    assert not second.is_error
    assert collector.named("queue")[1].attributes["fairlead.queue.wait_reason"] == "backends_held"
    told = [asked.headers["traceparent"].split("-")[2] for asked in backend.calls]
    assert told == [first.span_id, second.span_id]


async def test_a_tenant_that_comes_back_is_seen_to_be_lifted():
    config = {"tenants": {"busy": {}, "late": {}}, "auth": {"trusted_proxies": ["127.0.0.1/32"]}}

    def of(tenant):
        return {"x-llm-d-inference-fairness-id": tenant}

    backend_entry = {"requests_running_max": 1}
    async with (
        otlp_collector() as collector,
        engine(**SLOW) as server,
        gateway({"name": "b0", "url": server.url, **backend_entry}, **tracing(collector.url), **config) as rig,
    ):
        await rig.post(call(max_tokens=20), headers=of("busy"))
        calls = [asyncio.ensure_future(rig.post(call(max_tokens=5), headers=of("busy"))) for _ in range(3)]
        await until(lambda: rig.snapshot().queued_requests == 2)
        await rig.post(headers=of("late"))
        await asyncio.gather(*calls)
        await until(lambda: len(collector.named(SERVER)) == 5)
    of_late = [span.span_id for span in collector.named(SERVER) if span.attributes["fairlead.tenant"] == "late"]
    (queue,) = [span for span in collector.named("queue") if span.parent_id in of_late]
    assert queue.events["fairlead.lift"]["fairlead.lift.service"] > 0


@pytest.mark.parametrize(
    ("sampler", "traceparent", "is_sampled"),
    [
        ("parentbased_always_off", CALLER, True),
        ("parentbased_always_on", CALLER[:-1] + "0", False),
        ("parentbased_always_off", None, False),
        ("always_off", CALLER, False),
        ("always_on", CALLER[:-1] + "0", True),
        ("always_on", "00-nonsense", True),
    ],
)
async def test_what_is_not_sampled_is_not_sampled_by_the_backend_either(sampler, traceparent, is_sampled, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    headers = {"traceparent": traceparent} if traceparent else {}
    async with (
        otlp_collector() as collector,
        scripted() as backend,
        gateway(backend, **tracing(collector.url)) as rig,
    ):
        await rig.post(headers=headers)
        if is_sampled:
            await until(lambda: len(collector.spans) == 3)
        else:
            await asyncio.sleep(0.1)
    told = backend.calls[0].headers["traceparent"]
    assert told.endswith("-01" if is_sampled else "-00")
    assert bool(collector.spans) == is_sampled
    if traceparent in (CALLER, CALLER[:-1] + "0"):
        assert told.split("-")[1] == CALLER.split("-")[1]


async def test_without_an_endpoint_there_are_no_traces_and_the_variable_of_opentelemetry_is_one(monkeypatch):
    async with otlp_collector() as collector, scripted() as backend:
        async with gateway(backend) as rig:
            await rig.post()
            assert rig.gateway._logs.tracing is None
        assert "traceparent" not in backend.calls[0].headers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with gateway(backend) as rig:
            await rig.post()
        assert len(collector.spans) == 3  # sent by the time that the gateway has ended


async def test_spans_go_over_grpc_too(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    async with (
        grpc_collector() as collector,
        scripted() as backend,
        gateway(backend, **tracing(collector.url)) as rig,
    ):
        assert (await rig.post()).status == 200
        await until(lambda: len(collector.spans) == 3)
    assert collector.one(CLIENT).parent_id == collector.one(SERVER).span_id


def closed_port() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


async def spans_lost(rig):
    """As the metrics say it."""
    text = (await rig.gateway.metrics.exposition()).decode()
    return float(re.search(r"^fairlead_trace_spans_lost_total (.*)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("fault", ["down", "refuses", "fails", "never answers"])
async def test_a_collector_that_takes_nothing_moves_one_counter_and_nothing_else(fault, caplog, capfd, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.setattr(metrics, "AGE_S_MAX", 0.0)
    async with otlp_collector() as collector, black_hole() as hole, scripted() as backend:
        collector.status = {"refuses": 400, "fails": 503}.get(fault, 200)
        url = {"down": closed_port(), "never answers": hole}.get(fault, collector.url)
        async with gateway(backend, **tracing(url)) as rig:
            assert (await rig.post()).status == 200
            await until(lambda: rig.gateway._logs.tracing.shipper.lost == 3)
            assert await spans_lost(rig) == 3
    assert not said(caplog)
    assert capfd.readouterr() == ("", "")


async def test_a_slow_collector_gets_everything_later_and_makes_no_call_slow():
    async with otlp_collector() as collector, scripted() as backend, gateway(backend, **tracing(collector.url)) as rig:
        collector.delay_s = 0.3
        calls = Watch(own_s)
        for _ in range(5):
            assert (await rig.post()).status == 200
        assert calls.s < 2 * collector.delay_s
        await until(lambda: len(collector.spans) == 15)
        assert rig.gateway._logs.tracing.shipper.lost == 0


async def test_a_collector_that_never_answers_holds_up_neither_calls_nor_the_end(monkeypatch, caplog, capfd):
    monkeypatch.setattr(batches, "CLOSE_S_MAX", 0.3)
    async with black_hole() as url, scripted() as backend:
        async with gateway(backend, **tracing(url)) as rig:
            await rig.post()
            await asyncio.sleep(0.1)  # by now the thread waits for an answer
            calls = Watch(own_s)
            replies = await asyncio.gather(*(rig.post() for _ in range(50)))
            assert calls.s < 2
            assert {reply.status for reply in replies} == {200}
            ending = Watch(own_s)
        assert ending.s < 2
    assert not said(caplog)
    assert capfd.readouterr() == ("", "")
