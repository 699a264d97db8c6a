"""Gateways of one process that share a Redis server."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from gateway_rig import gateway, until

from gateway.config.key_file import add_key
from gateway.config.state import StateSection
from gateway.store.assembly import make_store

SECRET = "0123456789abcdef"


@asynccontextmanager
async def joined(folder, redis_url, count, *backends, **tenants):
    """Rigs of so many gateways, and the API key of each tenant; `tenants` has the settings of each."""
    async with AsyncExitStack() as stack:
        keys_file = folder / "keys"
        made = {"secret": SECRET.encode(), "created_at": "2026-11-20T00:00:00+00:00"}
        keys = {name: add_key(keys_file, tenant=name, **made) for name in tenants}

        def serving(number):
            state = {"file": folder / f"{number}.db", "redis": {"url": redis_url, "timeout_ms": 400}}
            config = {
                "auth": {"mode": "keys", "secret": SECRET, "keys_file": keys_file},
                "tenants": tenants,
                "state": state,
            }
            store = make_store(StateSection(**state), None)
            return stack.enter_async_context(gateway(*backends, store=store, **config))

        rigs = await asyncio.gather(*(serving(number) for number in range(count)))
        await until(lambda: all(is_together(rig, count) for rig in rigs), 30)
        for rig in rigs:
            async with asyncio.timeout(30):
                while (await rig.get("/readyz")).status != 200:  # noqa: ASYNC110 - until its backends are known
                    await asyncio.sleep(0.02)
        yield rigs, keys


def is_together(rig, count):
    """Whether the gateway follows a leader, or leads, with so many members."""
    view = rig.gateway.order.cluster_view()
    return view.leader is not None and len(view.members) == count
