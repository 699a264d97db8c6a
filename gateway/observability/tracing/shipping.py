"""SpanShipper: sends spans to a collector, which may be slow or down; a counter has the spans that were lost.

The event loop only appends to a bounded queue. A thread sends the queued spans, in batches so small that encoding never
holds the interpreter lock for long, and drops the spans that it cannot send. No call waits for it; at shutdown it has
CLOSE_S_MAX for the rest. OpenTelemetry's own batch processor does the same, but does not count the lost spans, and its
shutdown waits for the collector.
"""

import logging
import threading
from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

SPANS_MAX = 4096  # that wait to be sent
BATCH_SPANS_MAX = 64
INTERVAL_S = 1.0
CLOSE_S_MAX = 2.0

log = logging.getLogger(__name__)


class SpanShipper(SpanProcessor):
    """A sender of ended spans, in a thread of its own. Mutable; `shutdown` sends the rest, within CLOSE_S_MAX."""

    def __init__(self, exporter: SpanExporter, *, spans_max: int = SPANS_MAX, interval_s: float = INTERVAL_S) -> None:
        self._exporter = exporter
        self._spans: deque[ReadableSpan] = deque()
        self._spans_max = spans_max
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._not_taken = 0  # dropped because the queue was full; written by the loop
        self._not_sent = 0  # dropped because sending failed; written by the thread
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """The number of spans that no collector has received; only this shows a collector that does not answer."""
        return self._not_taken + self._not_sent

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        return

    def on_end(self, span: ReadableSpan) -> None:
        if len(self._spans) >= self._spans_max:
            self._not_taken += 1
        else:
            self._spans.append(span)

    def shutdown(self) -> None:
        """Send the rest; spans that take longer than CLOSE_S_MAX are lost."""
        self._closing.set()
        self._thread.join(CLOSE_S_MAX)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._spans:
            # Only this thread removes spans, so as many as were counted are still there.
            batch = [self._spans.popleft() for _ in range(min(len(self._spans), BATCH_SPANS_MAX))]
            if not self._send(batch):
                self._not_sent += len(batch)

    def _send(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - of a library, in a thread that must go on
            log.debug("spans were not sent: %r", error)
            return False
