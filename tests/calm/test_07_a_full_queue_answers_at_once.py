"""The request after the last that a queue holds is answered at once, and the queue never holds more than its limit."""

import asyncio

from gateway_rig import assert_error, bearer, call, engine, gateway, until

from tests.calm.rig import Watch, own_s, percentile, undisturbed

QUEUED_MAX = 50
REFUSED = 200
P99_S_MAX = 0.05


async def test_what_does_not_fit_is_told_so_at_once(figure):
    async with engine(speed=0.01) as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        queue = {"requests_max": QUEUED_MAX, "tenant_requests_max": QUEUED_MAX}
        async with gateway(entry, queue=queue) as rig:
            tasks = [asyncio.create_task(rig.post(call(max_tokens=4000), headers=bearer("holder")))]
            await until(lambda: rig.snapshot().in_flight_requests == 1)
            tasks += [asyncio.create_task(rig.post(headers=bearer(f"t{each}"))) for each in range(QUEUED_MAX)]
            await until(lambda: rig.snapshot().queued_requests == QUEUED_MAX)
            most = 0

            async def refusals():
                nonlocal most
                seconds = []
                for number in range(REFUSED):
                    watch = Watch(own_s)
                    reply = await rig.post(headers=bearer(f"late-{number % 7}"))
                    seconds.append(watch.s)
                    assert_error(reply, 429)
                    assert int(reply.headers["retry-after"]) >= 1
                    most = max(most, rig.snapshot().queued_requests)
                return percentile(seconds, 0.5), percentile(seconds, 0.99)

            p50, p99 = await undisturbed(refusals, lambda found: found[1] <= P99_S_MAX)
            many = await asyncio.gather(*(rig.post(headers=bearer("many")) for _ in range(REFUSED)))
            assert {reply.status for reply in many} == {429}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(rig.idle)
    figure(7, "p50 of the time to a 429, own time", 1e3 * p50, "ms")
    figure(7, "p99 of the time to a 429, own time", 1e3 * p99, "ms", target="<= 50")
    figure(7, "longest queue", most, target="<= 50")
    assert most == QUEUED_MAX
    assert p99 <= P99_S_MAX
