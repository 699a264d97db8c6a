"""Tenants of weights 1, 2 and 4 that all wait get 1/7, 2/7 and 4/7 of the service."""

import asyncio

from gateway_rig import bearer, call, engine, gateway, until

from gateway.config.key_file import add_key

SECRET = "s" * 32
WEIGHTS = {"one": 1, "two": 2, "four": 4}
SERVICE = 30_000  # in which one request is a thousandth
ERROR_MAX = 0.03


async def test_three_that_wait_are_served_by_their_weights(tmp_path, figure):
    auth = {"mode": "keys", "secret": SECRET, "keys_file": tmp_path / "keys"}
    made = {"secret": SECRET.encode(), "created_at": "2026-01-01T00:00:00+00:00"}
    keys = {name: add_key(auth["keys_file"], tenant=name, **made) for name in WEIGHTS}
    tenants = {name: {"weight": weight} for name, weight in WEIGHTS.items()}
    async with engine() as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 8}
        async with gateway(entry, auth=auth, tenants=tenants) as rig:

            async def call_on(name):
                while True:
                    await rig.post(call(max_tokens=16), headers=bearer(keys[name]))

            tasks = [asyncio.create_task(call_on(name)) for name in WEIGHTS for _ in range(24)]
            await until(lambda: all(rig.service(name) > 500 for name in WEIGHTS))
            before = {name: rig.service(name) for name in WEIGHTS}

            def gained():
                return {name: rig.service(name) - before[name] for name in WEIGHTS}

            await until(lambda: sum(gained().values()) > SERVICE, 60)
            found = gained()
            assert all(rig.tenant(name).queued_requests for name in WEIGHTS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    for name, weight in WEIGHTS.items():
        error = found[name] / sum(found.values()) / (weight / 7) - 1
        figure(6, f"share of tokens relative to its share of the weights, {weight}/7", 1 + error, target="within 3 %")
        assert abs(error) <= ERROR_MAX
