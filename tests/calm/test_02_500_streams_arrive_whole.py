"""500 streams at once: every byte is the backend's, and what the gateway adds to the time of an event is small."""

import pytest
from gateway_process import serving

from tests.calm.rig import percentile
from tests.calm.streams import numbered, port_of, run_streams

STREAMS = 500
EVENTS = 64
PAUSE_S = 0.1
ADDED_S_MAX = 1.0  # asserted; the target is 0.01 on two idle cores


@pytest.mark.alone
async def test_every_byte_and_little_delay(tmp_path, figure):
    streams, serves = numbered(events=EVENTS, pause_s=PAUSE_S)
    async with serves as backend:
        streams.backend = backend
        _, direct = await run_streams(port_of(backend.url), streams, STREAMS)
        streams.sent.clear()
        streams.sent_at.clear()
        async with serving(tmp_path, backend, requests_running_max=STREAMS) as process:
            clients, through = await run_streams(port_of(process.url), streams, STREAMS)
    whole = sum(client.body == b"".join(streams.sent[client.number]) for client in clients)
    added = [percentile(through, share) - percentile(direct, share) for share in (0.5, 0.99)]
    figure(2, "streams whose bytes are the backend's, of 500", whole, target="all")
    figure(2, "p50 added per event", 1e3 * added[0], "ms")
    figure(2, "p99 added per event", 1e3 * added[1], "ms", target="<= 10")
    assert whole == STREAMS
    assert len(through) == STREAMS * (EVENTS + 1)
    assert added[1] <= ADDED_S_MAX
