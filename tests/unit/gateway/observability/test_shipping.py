"""Spans on their way out: sent in batches, lost only when counted."""

import threading

from opentelemetry.sdk.trace.export import SpanExportResult

from gateway.observability import batches
from gateway.observability.tracing.shipping import BATCH_SPANS_MAX, SpanShipper


class Exporter:
    """Keeps what it is given; does what `act` does."""

    def __init__(self, act=lambda: SpanExportResult.SUCCESS):
        self.batches = []
        self.act = act
        self.is_shut_down = False

    def export(self, spans):
        self.batches.append(len(spans))
        return self.act()

    def shutdown(self):
        self.is_shut_down = True


def ship(exporter, spans, **options):
    shipper = SpanShipper(exporter, interval_s=60.0, **options)
    for number in range(spans):
        shipper.on_end(number)
    return shipper


def test_what_is_left_is_sent_at_the_end_in_small_batches():
    exporter = Exporter()
    shipper = ship(exporter, 2 * BATCH_SPANS_MAX + 1)
    shipper.shutdown()
    assert exporter.batches == [BATCH_SPANS_MAX, BATCH_SPANS_MAX, 1]
    assert shipper.lost == 0
    assert exporter.is_shut_down


def test_what_the_queue_has_no_room_for_is_lost_and_counted():
    shipper = ship(exporter := Exporter(), 15, spans_max=10)
    shipper.shutdown()
    assert (shipper.lost, exporter.batches) == (5, [10])


def test_what_is_not_taken_is_lost_and_counted_whether_it_fails_or_raises():
    def fall():
        raise OSError

    for act in (lambda: SpanExportResult.FAILURE, fall):
        shipper = ship(Exporter(act), 7)
        shipper.shutdown()
        assert shipper.lost == 7


def test_the_end_does_not_wait_for_a_collector_that_takes_for_ever(monkeypatch):
    monkeypatch.setattr(batches, "CLOSE_S_MAX", 0.05)
    never = threading.Event()
    shipper = ship(Exporter(lambda: never.wait(20) and SpanExportResult.SUCCESS), 1)
    shipper.shutdown()
    assert shipper._thread.is_alive()
    never.set()
    shipper._thread.join(5)
    assert not shipper._thread.is_alive()
