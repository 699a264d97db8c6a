"""What is seen of metrics that fail, which nobody waits for while the gateway runs."""

import asyncio
import gc

from gateway.observability.metrics.page import Metrics


class Broken:
    """A watch that fails with the first look."""

    async def looked(self):
        raise ValueError("a watch failed")


async def test_a_failure_of_the_looks_at_schedulers_is_logged_while_the_gateway_runs(caplog):
    metrics = Metrics({}, led=lambda: True, scheduling_of=lambda _: None, lost=dict, tenants_max=1, watches=[Broken()])
    metrics.start()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]
    await metrics.stop()
