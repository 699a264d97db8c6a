"""The same decisions: what a live gateway told its Scheduler, told again without a clock, gives the same actions.

The judges of the simulation watch the live run as well: a driver that lost or invented a fact would break its books.
"""

import asyncio
import io
import random

from gateway_rig import call, engine, gateway, until

from policies.facts import Cancelled, Finished, LoadChanged, Submitted
from policies.scheduler import Scheduler
from policies.types import Dispatch, Outcome
from tests.simulation.checkers import InFlightLimits, RunWatch
from tests.simulation.recording import Polled, Recorder, read_from, replay, write_to
from tests.simulation.run_accounts import RunAccounts

SEATS = 4
TENANTS = 5
REQUESTS = 60


async def converse(rig, rng, number):
    """One call of a random tenant and length; every fifth client goes away before the end."""
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    body = call(max_tokens=rng.randint(1, 120), stream=rng.random() < 0.7)
    headers = {"X-Api-Key": f"key-{rng.randrange(TENANTS)}"}
    patience_s = rng.uniform(0.02, 0.3) if number % 5 == 0 else None
    try:
        async with asyncio.timeout(patience_s):
            reply = await rig.post(body, headers=headers)
            assert reply.status == 200
    except TimeoutError:
        assert patience_s is not None


async def record_a_busy_second(sink):
    """Five tenants overload two engines, and some leave; the recording goes to `sink`, the books come back."""
    rng = random.Random(11)
    watches = []

    def wrap(_pool, scheduler):
        accounts = RunAccounts(tenants=())
        watches.append((accounts, scheduler))
        return Recorder(scheduler, RunWatch(accounts, [write_to(sink), InFlightLimits(accounts)]))

    async with engine(speed=0.3) as one, engine(speed=0.3) as two:
        backends = [
            {"name": f"b{number}", "url": server.url, "pool": "only", "requests_running_max": SEATS}
            for number, server in enumerate((one, two))
        ]
        async with gateway(*backends, wrap_scheduler=wrap) as rig:
            await asyncio.gather(*(converse(rig, rng, number) for number in range(REQUESTS)))
            await until(rig.idle)
    ((accounts, scheduler),) = watches
    return accounts, scheduler


async def test_a_recorded_live_run_replayed_gives_the_same_actions():
    sink = io.BytesIO()
    accounts, scheduler = await record_a_busy_second(sink)
    entries = list(read_from(sink.getvalue().splitlines()))
    dispatched = [a for e in entries if isinstance(e, Polled) for a in e.actions if isinstance(a, Dispatch)]
    left_early = [e for e in entries if isinstance(e, Cancelled)]
    left_late = [e for e in entries if isinstance(e, Finished) and e.outcome is Outcome.CLIENT_DISCONNECTED]
    submitted = [e for e in entries if isinstance(e, Submitted)]
    assert len(dispatched) + len(left_early) == len(submitted) > REQUESTS * 0.8
    assert left_early or left_late
    assert {action.backend_id for action in dispatched} == {"b0", "b1"}
    assert any(isinstance(entry, LoadChanged) for entry in entries)
    accounts.conclude(scheduler.snapshot(entries[-1].now))
    assert list(replay(entries, Scheduler())) == []
