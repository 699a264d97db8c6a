"""The history of a real gateway: what calls, waits and refusals leave in it, its events, and what each role sees."""

import asyncio
import time
from collections import Counter

from admin_rig import admin
from gateway_rig import FAST, PATIENCE_S, bearer, call, engine, until

from gateway.live.history import recorder

SETTINGS = {
    "tiers": {"gold": {"weight": 2}},
    "groups": {"red": {"tier": "gold"}, "blue": {"tier": "gold"}},
    "tenants": {"red/a": {"group": "red"}, "blue/b": {"group": "blue"}, "alone": {"tier": "gold"}},
    "prices": {"list": {"currency": "EUR", "models": {}}},
}


async def of(api, what, span="15m", key=None):
    answer = await api.get(f"/history?of={what.replace('/', '%2F')}&range={span}", key=key)
    return answer.json if answer.status == 200 else answer.status


def total(history, column):
    (pool,) = history["pools"].values()
    return sum(each or 0 for each in pool["values"][column])


async def test_what_was_served_is_in_it_with_its_events_and_roles_see_their_part(tmp_path, monkeypatch):
    """Takes seconds: a slot is one, and a minute six."""
    monkeypatch.setattr(recorder, "STEP_S", 1)  # a slot is a second here, and a minute six
    monkeypatch.setattr(recorder, "MINUTE_S", 6)
    monkeypatch.setattr("gateway.live.history.history.STEPS_OF", {"15m": (1, 90), "1h": (6, 60)})
    monkeypatch.setattr("gateway.live.history.history.MINUTE_S", 6)
    settings = {each: value for each, value in SETTINGS.items() if each != "prices"}
    async with engine(**FAST) as server, admin(tmp_path, {"name": "gpu", "url": server.url}, **settings) as api:
        keys = {name: bearer(await api.key_for(name)) for name in settings["tenants"]}
        lead = (await api.post("/keys", {"role": "group-admin", "group": "red"})).json["secret"]
        operator = (await api.post("/keys", {"role": "operator"})).json["secret"]
        viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
        await asyncio.sleep(2.5)  # the first look counts for nothing
        began = time.time()
        for name in ("red/a", "red/a", "blue/b"):
            await api.rig.post(call(max_tokens=20, stream=True), headers=keys[name])
        assert (await api.post("/notes", {"text": "deployed 1.2"}, key=viewer)).status == 403
        assert (await api.post("/notes", {"text": "deployed 1.2"}, key=lead)).status == 403
        assert (await api.post("/notes", {"text": "a\nb"}, key=operator)).status == 422
        assert (await api.post("/notes", {"text": "deployed 1.2"}, key=operator)).status == 204
        await api.patch("/tenants/red%2Fa", {"weight": 3})
        await api.patch("/tenants/blue%2Fb", {"weight": 4})

        found = {}

        async def is_there():
            for what in ("tenant:red/a", "tenant:blue/b", "group:red", "tier:gold", "backend:gpu"):
                found[what] = await of(api, what)
            pool = next(iter(found["tenant:red/a"]["pools"]), None)
            if pool is None or not found["tenant:blue/b"]["pools"]:
                return False
            found["pool"] = await of(api, f"pool:{pool}")
            return total(found["pool"], "tokens") >= 100

        while not await is_there():
            await asyncio.sleep(0.3)
            assert time.time() - began < PATIENCE_S
        a, b, pool = (total(found[each], "tokens") for each in ("tenant:red/a", "tenant:blue/b", "pool"))
        assert 0.75 < (a + b) / pool < 1.25
        assert total(found["group:red"], "tokens") == a
        assert 1.5 < a / b < 2.7
        assert total(found["tenant:red/a"], "ttft_s") > 0
        assert total(found["backend:gpu"], "available") > 0
        events = found["pool"]["events"]
        assert [(each["kind"], each["name"]) for each in events if each["kind"] == "note"] == [("note", "deployed 1.2")]
        assert {"tenants/red/a", "tenants/blue/b"} <= {each["name"] for each in events if each["kind"] == "change"}

        # A minute is there when it is over. The one of the calls may have their tenants, and the next one the tokens.
        # The one before has both, where the look that ends its last slot comes after the calls.
        async def served_in(minute):
            answer = (await api.get(f"/history/minute?at={minute}")).json
            return {each["name"]: each["values"]["tokens"] for each in answer["rows"] if each["kind"] == "tenant"}

        tokens, asked_since = Counter(), time.time()
        while not tokens.total() and time.time() - asked_since < PATIENCE_S:
            for minute in range(int(began // 6 * 6) - 6, int(time.time()), 6):
                tokens.update(await served_in(minute))
            await asyncio.sleep(0.3)
        assert tokens.keys() <= {"red/a", "blue/b"}
        assert tokens.total() > 0

        # The administrator of red sees red.
        assert (await of(api, "tenant:red/a", key=lead))["pools"].keys() == found["tenant:red/a"]["pools"].keys()
        assert (await of(api, "group:red", key=lead))["pools"]
        for hidden in ("tenant:blue/b", "tenant:none", "group:blue", "tier:gold", "backend:gpu", "pool:tiny"):
            assert await of(api, hidden, key=lead) == 404, hidden
        mine = await of(api, "tenant:red/a", key=lead)
        assert {each["name"] for each in mine["events"]} == {"tenants/red/a"}
        assert all(each["actor"] is None for each in mine["events"])
        answer = (await api.get(f"/history/minute?at={time.time() - 12}", key=lead)).json
        assert {each["name"] for each in answer["rows"]} <= {"red/a", "red"}
        for wrong in ("of=tenant:a&range=2h", "of=nothing:a", "of=tenant:", "range=1h"):
            assert (await api.get(f"/history?{wrong}")).status == 422, wrong
        audit = (await api.get("/audit?kind=notes")).json["items"]
        assert [(each["action"], each["name"]) for each in audit] == [("note", "deployed 1.2")]


async def test_a_lost_backend_is_an_event(tmp_path, monkeypatch):
    """Takes two seconds: a slot is one."""
    monkeypatch.setattr(recorder, "STEP_S", 1)
    async with engine(**FAST) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api:
        await asyncio.sleep(1.5)
        await server.stop()
        seen = api.rig.gateway.operators.history.recorder.events
        await until(lambda: any(each.what == "not_available" for each in seen))
        assert [(each.kind, each.name) for each in seen] == [("backend", "gpu")]
