"""Agents' sessions by way of a gateway: what it knows of them, says of them, and when it lets them wait."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from admin_rig import admin
from gateway_rig import bearer, call, engine

from gateway.observability.metrics import scheduler_metrics

pytestmark = pytest.mark.jumping

LOOK_S = 0.25  # instead of a second


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
        await asyncio.sleep(0.05)


@pytest.mark.jumping(False)  # the wall clock does not
async def test_a_session_goes_from_a_clients_header_to_the_live_document(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler_metrics, "INTERVAL_S", LOOK_S)
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
        assert (working_set["eta"], working_set["recomputed_ratio"]) == (0.7, 0.0)
        assert 0.0 <= working_set["busy_ratio"] <= 1.0
        assert pool["tenants"]["alice"]["session_states"] == {"idle": 1}
        assert (pool["sessions"]["holding"], pool["sessions"]["idle"]) == (False, 1)
        assert session["since_at"] == pytest.approx(time.time(), abs=60.0)
        await asyncio.sleep(2.2 * LOOK_S)  # two more looks
        later = await seen(api, lambda shown: [each["turns"] for each in shown] == [2])
        assert later["tenants"]["alice"]["sessions"] == [session], "what stays is not sent again"
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


POOL, AGENTS, LASTS_S = 8192, 14, 30.0


async def agent(api, name, headers, until_s, done):
    """Turns of one session after another, each of which sends all before it."""
    loop, number = asyncio.get_running_loop(), 0
    while loop.time() < until_s:
        number += 1
        messages = [{"role": "user", "content": f"{name}-{number} " * 400}]
        for _ in range(8):
            body = call(max_tokens=8, messages=messages)
            reply = await api.rig.post(body, headers={**headers, "x-session-id": f"{name}-{number}"})
            assert reply.status == 200, reply
            done.append(reply.json["usage"])
            messages += [reply.json["choices"][0]["message"], {"role": "user", "content": f"and {number} " * 20}]
            await asyncio.sleep(0.05)


def folder(parent, name):
    (parent / name).mkdir()
    return parent / name


async def turns_of(tmp_path, *, hold):
    """What agents get done whose contexts exceed the engine's pool, and whether sessions were held."""
    async with (
        engine(kv_tokens_max=POOL, block_tokens=16, speed=0.1, prompt_tokens_details=True) as server,
        admin(
            tmp_path,
            {"name": "gpu", "url": server.url, "kv_tokens_max": POOL, "requests_running_max": 16},
            scheduling={"hold_sessions": hold},
        ) as api,
    ):
        await api.post("/tenants", {"id": "alice"})
        headers, done = bearer(await api.key_for("alice")), []
        until_s = asyncio.get_running_loop().time() + LASTS_S
        agents = [asyncio.ensure_future(agent(api, f"a{each}", headers, until_s, done)) for each in range(AGENTS)]
        await asyncio.sleep(LASTS_S)
        ledger = next(iter(api.rig.gateway.pools.dispatchers.values()))._scheduler._sessions
        held = ledger is not None and (ledger.ledger.pauses_total > 0 or ledger.is_on)
        for each in agents:
            each.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
        return len(done), held


@pytest.mark.long
async def test_agents_whose_contexts_do_not_fit_get_more_done_where_some_of_them_wait(tmp_path):
    (without, _), (with_, held) = [await turns_of(folder(tmp_path, str(hold)), hold=hold) for hold in (False, True)]
    assert held
    assert with_ > 1.3 * without, (with_, without)
