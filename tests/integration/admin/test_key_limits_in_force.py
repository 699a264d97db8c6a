"""Limits of a key, as its administrator sets them and its program meets them: per minute and in flight."""

import asyncio

from admin_rig import admin, within
from gateway_rig import bearer, call, engine, running, scripted, until


async def made(api, **limits):
    reply = await api.post("/keys", {"tenant": "declared", **limits})
    assert reply.status == 201, reply.body
    return reply.json


def rate(reply, what="requests"):
    return {each: reply.headers.get(f"x-ratelimit-{each}-{what}") for each in ("limit", "remaining")}


async def test_limits_of_a_key_are_made_changed_inherited_and_in_the_audit_log(tmp_path):
    limits = {"in_flight_max": 2, "requests_per_minute_max": 30, "tokens_per_minute_max": 4_000}
    async with admin(tmp_path) as api:
        key = await made(api, **limits)
        assert {name: key[name] for name in limits} == limits
        changed = await api.patch(f"/keys/{key['id']}", {"in_flight_max": 3, "tokens_per_minute_max": None})
        assert (changed.json["in_flight_max"], changed.json["tokens_per_minute_max"]) == (3, None)
        new = (await api.post(f"/keys/{key['id']}/rotate", {})).json
        assert (new["in_flight_max"], new["requests_per_minute_max"]) == (3, 30)
        assert (await api.patch(f"/keys/{key['id']}", {"in_flight_max": -1})).status == 422
        log = (await api.get("/audit?kind=keys")).json["items"]
        first = next(each for each in reversed(log) if each["action"] == "update")
        assert (first["before"]["in_flight_max"], first["after"]["in_flight_max"]) == (2, 3)


async def test_a_key_over_its_requests_per_minute_gets_429_and_other_keys_of_its_tenant_do_not(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        tight, other = await made(api, requests_per_minute_max=2), await made(api)
        replies = [await api.rig.post(headers=bearer(tight["secret"])) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert [rate(reply) for reply in replies] == [
            {"limit": "2", "remaining": left} for left in ("1", "0", "0")
        ]  # fmt: skip
        refused = replies[-1]
        assert (refused.error["reason"], refused.headers["x-fairlead-limit"]) == ("rate_limit_exceeded", "requests")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        spared = await api.rig.post(headers=bearer(other["secret"]))
        assert (spared.status, rate(spared)) == (200, {"limit": None, "remaining": None})
        await api.patch(f"/keys/{tight['id']}", {"requests_per_minute_max": 9})
        assert (await api.rig.post(headers=bearer(tight["secret"]))).status == 200, "in force at once"


async def test_an_answer_shows_the_tightest_limit_of_key_tenant_and_group(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        await api.post("/groups", {"id": "all", "requests_per_minute_max": 4})
        await api.patch("/tenants/declared", {"group": "all"})
        tight, wide = await made(api, requests_per_minute_max=3), await made(api)
        assert rate(await api.rig.post(headers=bearer(tight["secret"]))) == {"limit": "3", "remaining": "2"}
        assert rate(await api.rig.post(headers=bearer(wide["secret"]))) == {"limit": "4", "remaining": "2"}
        assert rate(await api.rig.post(headers=bearer(wide["secret"]))) == {"limit": "4", "remaining": "1"}
        assert rate(await api.rig.post(headers=bearer(tight["secret"]))) == {"limit": "4", "remaining": "0"}
        assert (await api.rig.post(headers=bearer(tight["secret"]))).status == 429


async def test_a_call_that_is_not_queued_counts_for_its_key(tmp_path):
    async with engine() as server, admin(tmp_path, server) as api:
        key = await made(api, requests_per_minute_max=2)
        body = {"model": "tiny", "prompt": "hello"}
        statuses = [
            (await api.rig.post(body, "/tokenize", headers=bearer(key["secret"]))).status for _ in range(3)
        ]  # fmt: skip
        assert statuses == [200, 200, 429]


async def test_a_key_at_its_in_flight_limit_waits_and_says_so(tmp_path):
    async with engine(speed=0.01) as server, admin(tmp_path, server) as api:
        tight, other = await made(api, in_flight_max=1), await made(api)

        def send(key):
            return asyncio.create_task(api.rig.post(call(max_tokens=4_000), headers=bearer(key["secret"])))

        tasks = [send(tight), send(tight), send(other)]
        try:
            await until(lambda: running(server) == 2)

            async def waits():
                rows = (await api.get("/requests")).json["items"]
                return [each["waits"]["reason"] for each in rows if each["state"] == "queued"] == ["key_limit"]

            await within(waits)
            assert running(server) == 2
            await api.patch(f"/keys/{tight['id']}", {"in_flight_max": None})
            await until(lambda: running(server) == 3)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
