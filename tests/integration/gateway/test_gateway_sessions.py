"""Agents' sessions by way of a gateway: what it knows of them, says of them, and when it lets them wait."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from admin_rig import admin
from gateway_rig import bearer, call, engine

pytestmark = pytest.mark.jumping


def turn(number: int) -> dict:
    return call(max_tokens=4, messages=[{"role": "user", "content": "word " * (40 + 10 * number)}])


@asynccontextmanager
async def agents(tmp_path, **scheduling):
    async with (
        engine() as server,
        admin(
            tmp_path,
            {"name": "gpu", "url": server.url, "kv_tokens_max": 4096},
            listen={"port": 0, "show_backend": True},
            scheduling=scheduling,
        ) as api,
    ):
        await api.post("/tenants", {"id": "alice"})
        yield api, bearer(await api.key_for("alice"))


async def seen(api, condition):
    """The pool in the live document, once the sessions there are as they should be."""
    while True:
        (pool,) = (await api.get("/live")).json["pools"].values()
        if condition(pool["tenants"].get("alice", {}).get("sessions", [])):
            return pool
        await asyncio.sleep(0.2)


async def test_a_session_goes_from_a_clients_header_to_the_live_document(tmp_path):
    async with agents(tmp_path) as (api, alice):
        headers = {**alice, "x-session-id": "one"}
        first = await api.rig.post(turn(1), headers=headers)
        assert "x-fairlead-expected-cached-tokens" not in first.headers
        second = await api.rig.post(turn(2), headers={**headers, "x-parent-session-id": "root"})
        assert int(second.headers["x-fairlead-expected-cached-tokens"]) > 40
        pool = await seen(api, lambda shown: [each["turns"] for each in shown] == [2])
        (session,) = pool["tenants"]["alice"]["sessions"]
        assert (session["state"], session["turns"], session["backend"]) == ("idle", 2, "gpu")
        assert session["context_tokens"] > 60
        working_set = pool["backends"]["gpu"]["working_set"]
        assert working_set["tokens"] == session["context_tokens"]
        assert (working_set["pool_tokens"], working_set["tokens_max"]) == (4096, int(0.7 * 4096))
        assert (pool["sessions"]["holding"], pool["sessions"]["idle"]) == (False, 1)
        await api.rig.post(turn(3), headers={**headers, "x-dynamo-session-final": "true"})
        pool = await seen(api, lambda shown: not shown)
        assert pool["backends"]["gpu"]["working_set"]["tokens"] == 0


async def test_sessions_are_not_known_where_they_are_not_to_be_held(tmp_path):
    async with agents(tmp_path, hold_sessions=False) as (api, alice):
        for number in (1, 2):
            reply = await api.rig.post(turn(number), headers={**alice, "x-session-id": "one"})
            assert "x-fairlead-expected-cached-tokens" not in reply.headers
        (pool,) = (await api.get("/live")).json["pools"].values()
        assert pool.get("sessions") is None
