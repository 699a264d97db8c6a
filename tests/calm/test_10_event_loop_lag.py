"""The gateway's event loop is never held up for long: 500 streams, and metrics of 1,000 tenants read beside them."""

import asyncio

import pytest
from gateway_process import serving

from tests.calm.streams import numbered, port_of, run_streams

TENANTS = 1_000
STREAMS = 500
LAG = "fairlead_event_loop_lag_seconds_bucket"
P99_S_MAX, S_MAX = 1.0, 2.0  # asserted; the targets are 0.02 and 0.2 on idle cores


def lag(before, after):
    """Upper bounds of the 99th percentile and of the most, from the buckets."""
    counts = sorted(
        (float(labels.partition('le="')[2].rstrip('"')), after[labels] - before[labels]) for labels in after
    )
    total = counts[-1][1]
    return total, *(next(le for le, count in counts if count >= share * total) for share in (0.99, 1.0))


@pytest.mark.alone
async def test_the_loop_is_not_held_up(tmp_path, figure):
    streams, serves = numbered(events=64, pause_s=0.1)
    async with serves as backend:
        streams.backend = backend
        async with serving(
            tmp_path, backend, requests_running_max=STREAMS, settings={"metrics": {"tenants_max": TENANTS}}
        ) as process:
            for start in range(0, TENANTS, 50):
                await asyncio.gather(*(process.ask(f"tenant-{start + each}") for each in range(50)))
            before, pages = await process.metric(LAG), 0

            async def scrape():
                nonlocal pages
                while True:
                    _, page = await process.admin("GET", "/metrics")
                    assert page.count('tenant="') >= TENANTS
                    pages += 1
                    await asyncio.sleep(1)

            scraping = asyncio.create_task(scrape())
            await run_streams(port_of(process.url), streams, STREAMS)
            assert not scraping.done()
            scraping.cancel()
            looks, p99, most = lag(before, await process.metric(LAG))
    figure(10, "looks at the lag", looks)
    figure(10, "pages of 1,000 tenants read", pages)
    figure(10, "p99 of the lag, at most", 1e3 * p99, "ms", target="<= 20")
    figure(10, "longest lag, at most", 1e3 * most, "ms", target="<= 200")
    assert pages
    assert p99 <= P99_S_MAX
    assert most <= S_MAX
