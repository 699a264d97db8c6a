"""A collector of OpenTelemetry traces, as far as a gateway can tell: OTLP over HTTP or gRPC, spans as they came."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
from aiohttp import web
from listening import listening
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

KINDS = {Span.SPAN_KIND_SERVER: "SERVER", Span.SPAN_KIND_CLIENT: "CLIENT", Span.SPAN_KIND_INTERNAL: "INTERNAL"}


@dataclass(frozen=True)
class SeenSpan:
    """One span as it came."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, object]
    events: dict[str, dict[str, object]]
    started_ns: int
    ended_ns: int
    is_error: bool
    trace_state: str


@dataclass
class Collector:
    """What was posted to it."""

    url: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    resources: list[dict[str, object]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    status: int = 200
    delay_s: float = 0.0

    async def receive(self, request: web.Request) -> web.Response:
        self.bodies.append(body := await request.read())
        await asyncio.sleep(self.delay_s)
        if self.status == 200:
            self.take(ExportTraceServiceRequest.FromString(body))
        return web.Response(status=self.status)

    def take(self, message: ExportTraceServiceRequest) -> None:
        for of_resource in message.resource_spans:
            self.resources.append(values(of_resource.resource.attributes))
            self.spans += [seen(span) for scope in of_resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[SeenSpan]:
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.started_ns)

    def one(self, name: str) -> SeenSpan:
        (span,) = self.named(name)
        return span


def seen(span: Span) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=values(span.attributes),
        events={event.name: values(event.attributes) for event in span.events},
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        is_error=span.status.code == 2,
        trace_state=span.trace_state,
    )


def values(attributes) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.asynccontextmanager
async def otlp_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.receive)
    async with listening(app) as collector.url:
        yield collector


@contextlib.asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Takes connections and whatever is sent, and never says a word."""

    tasks: set[asyncio.Task[None]] = set()
    transports: list[asyncio.Transport] = []

    async def swallow(reader, writer):
        tasks.add(asyncio.current_task())
        transports.append(writer.transport)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        writer.transport.abort()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for transport in transports:
            transport.abort()
        await asyncio.gather(*tasks)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def grpc_collector() -> AsyncIterator[Collector]:
    """The same over gRPC."""
    collector = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        async def Export(self, request, context):  # noqa: N802 - as the protocol calls it
            collector.take(request)
            return ExportTraceServiceResponse()

    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
