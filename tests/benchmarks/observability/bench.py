"""What do traces and metrics cost, per call and per look? In CPU time, beside the same with both off.

    python tests/benchmarks/observability/bench.py

    calls    one that is not sampled, one in a hundred sampled, all sampled; counted for metrics
    /metrics with a thousand tenants: CPU time in all, and the longest that the event loop is kept from turning, which
             a call would have to wait

Other processes of the machine do not count: CPU time of this one, the least of several runs.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from random import Random

import uvloop
from multidict import CIMultiDict
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

if __name__ == "__main__":  # before the rest of the imports, which take seconds
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

sys.path[:0] = [str(Path(__file__).parents[2] / "integration")]
from gateway_rig import MODEL, gateway, scripted, until  # noqa: E402

from gateway.observability.metrics.call_counts import CallMeter  # noqa: E402
from gateway.observability.metrics.instruments import Histograms  # noqa: E402
from gateway.observability.telemetry import CallTrace, Telemetry  # noqa: E402
from gateway.observability.tracing.sampling import Sampling  # noqa: E402
from gateway.observability.tracing.tracing import Tracing  # noqa: E402
from gateway.serve import _spare_collections  # noqa: E402
from policies.types import Outcome, Request, SloEnvelope, Tenant, Timing, Usage  # noqa: E402

CALLS = 20_000
RUNS = 7
TENANTS = 1000
HEADERS = CIMultiDict({"host": "gateway", "content-type": "application/json", "user-agent": "bench"})
NOT_SAMPLED = CIMultiDict(HEADERS, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


class Nowhere(SpanExporter):
    """Takes spans and forgets them."""

    def export(self, spans):
        return SpanExportResult.SUCCESS


def one_call(telemetry, headers, request):
    trace = CallTrace("/v1/chat/completions", tenant_id="a", tier_id="default", model=MODEL, stream=True, status=200)
    if telemetry.tracer is not None:
        telemetry.tracer.begin(trace, "POST", headers)
    trace.request, trace.outcome, trace.usage = request, Outcome.COMPLETED, Usage(10, 1, 8)
    trace.queued_s = trace.dispatched_s = trace.first_token_s = trace.started_s
    if trace.spans is not None:
        trace.spans.queued()
        trace.spans.sent("b0", "vllm")
    trace.propagate({})
    telemetry.ended(trace)


def call_us(telemetry, headers=HEADERS):
    request, least = Request("r", "a", MODEL, 0.0, 10, 10), float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(CALLS):
            one_call(telemetry, headers, request)
        least = min(least, time.process_time() - began)
    return least / CALLS * 1e6


def tracing(sampler, ratio):
    return Tracing(Sampling(sampler, ratio, Random(1)), Nowhere(), version="0")


def bench_calls():
    off = call_us(Telemetry(None))
    print(f"{'off':<44}{off:7.2f} us a call")
    for name, telemetry, headers in (
        ("metrics", Telemetry(None, meters=[CallMeter(Histograms(), 200)]), HEADERS),
        (
            "traces, not sampled by its client",
            Telemetry(None, tracer=tracing("parentbased_always_on", 1.0)),
            NOT_SAMPLED,
        ),
        ("traces, a root that is not sampled", Telemetry(None, tracer=tracing("traceidratio", 0.0)), HEADERS),
        ("traces, one root in a hundred is sampled", Telemetry(None, tracer=tracing("traceidratio", 0.01)), HEADERS),
        ("traces, all sampled", Telemetry(None, tracer=tracing("always_on", 1.0)), HEADERS),
    ):
        print(f"{name:<44}{call_us(telemetry, headers) - off:+7.2f} us")


async def bench_metrics():
    async with scripted() as backend, gateway(backend, metrics={"tenants_max": TENANTS}) as rig:
        await until(lambda: rig.gateway.pools.routes.find(MODEL))
        dispatcher, _ = rig.gateway.pools.routes.find(MODEL)
        meter = Telemetry(None, meters=[rig.gateway.metrics.calls])
        for number in range(TENANTS):
            tenant = Tenant(f"tenant-{number}")
            await answer(dispatcher, tenant)
            for outcome in Outcome:
                trace = CallTrace("/v1/chat/completions", tenant_id=tenant.id, tier_id="default", model=MODEL)
                trace.request, trace.outcome, trace.status = Request("r", tenant.id, MODEL, 0.0, 1, 1), outcome, 200
                trace.queued_s = trace.dispatched_s = trace.started_s
                trace.usage = Usage(10, 1, 8)
                meter.ended(trace)
        _spare_collections()  # as `fairlead serve` does
        found = []
        for _ in range(RUNS):
            await asyncio.sleep(0.6)  # the next look is a new one
            found.append(await written(rig.gateway.metrics.exposition()))
    size, cpu_s, stall_s = min(found, key=lambda each: each[2])
    print(f"\n/metrics of {TENANTS} tenants: {size / 1e6:.2f} MB, {cpu_s * 1e3:.0f} ms of CPU time")
    worst_ms = max(each[2] for each in found) * 1e3
    print(f"the event loop waits for at most {stall_s * 1e3:.1f} ms (worst of {RUNS}: {worst_ms:.1f})")


async def answer(dispatcher, tenant):
    """It has service, and kept what it was promised."""
    request = Request(tenant.id, tenant.id, MODEL, dispatcher.now(), 100, 10, envelope=SloEnvelope(1.0, 0.1))
    async with dispatcher.lease(request, tenant) as lease:
        lease.tokens(Usage(100, 0, 10))
        lease.timing = Timing(0.1, 0.01, 0.01, 10, 10)


async def written(exposition):
    """Bytes, CPU seconds, and the longest that the loop did not turn."""
    longest, last, began = 0.0, time.process_time(), time.process_time()
    writing = asyncio.ensure_future(exposition)
    while not writing.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return len(await writing), last - began, longest


if __name__ == "__main__":
    bench_calls()
    uvloop.run(bench_metrics())
