"""SpanShipper: sends spans to a collector, which may be slow or down; a counter has the spans that were lost.

A thread sends the queued spans (gateway/observability/batches.py), in batches so small that encoding never holds the
interpreter lock for long. No call waits for it; at shutdown it has two seconds for the rest. OpenTelemetry's own batch
processor does the same, but does not count the lost spans, and its shutdown waits for the collector.
"""

import logging

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.observability.batches import Batches

SPANS_MAX = 4096  # that wait to be sent
BATCH_SPANS_MAX = 64
INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class SpanShipper(Batches[ReadableSpan], SpanProcessor):
    """The sender of ended spans to the collector, in a thread of its own. `shutdown` sends the rest. If the collector
    does not answer, only the number of `lost` spans shows it.
    """

    def __init__(self, exporter: SpanExporter, *, spans_max: int = SPANS_MAX, interval_s: float = INTERVAL_S) -> None:
        self._exporter = exporter
        super().__init__("traces", records_max=spans_max, interval_s=interval_s, batch_max=BATCH_SPANS_MAX)

    def on_end(self, span: ReadableSpan) -> None:
        self.write(span)

    def shutdown(self) -> None:
        """Send the rest, as `close` does."""
        self.close()
        self._exporter.shutdown()

    def handle(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - of a library, in a thread that must go on
            log.debug("spans were not sent: %r", error)
            return False
