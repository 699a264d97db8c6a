"""What the Dispatcher tells its Scheduler, and when."""

from gateway.scheduling.dispatcher import Dispatcher
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Request, Tenant, Usage


async def test_a_measurement_is_told_after_the_tokens_that_it_measures():
    """Otherwise the KV tokens of quiet answers look like those of others, and the pool gets smaller by them."""
    dispatcher = Dispatcher(Scheduler(prediction=Oracle()))
    load = BackendLoad("gpu", kv_tokens_max=1000, kv_used_ratio=0.15, requests_running=1)
    dispatcher.load_changed((load,))
    request = Request("r", "a", "m", dispatcher.now(), 100, 200)
    async with dispatcher.lease(request, Tenant("a")) as lease:
        lease.tokens(Usage(100, 0, 1))
        assert lease.quiet_tokens == 200
        lease.passed = lambda: Usage(100, 0, 50)
        for _ in range(3):
            dispatcher.load_changed((load,))
        assert dispatcher.snapshot().backends["gpu"].foreign_tokens == 0
