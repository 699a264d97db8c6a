"""Aliases by the API: versions, audit, what is refused, and that a change is in force for the next call."""

from admin_rig import admin, within
from gateway_rig import bearer, call, scripted

LIST = {"models": ["big", "small"]}


async def test_an_alias_has_versions_and_an_audit_log(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        made = await api.post("/aliases", {"id": "org/chat", **LIST})
        assert (made.status, made.headers["Location"]) == (201, "/admin/v1/aliases/org%2Fchat")
        assert made.json == {
            "id": "org/chat",
            "origin": "admin",
            **LIST,
            "split": {},
            "sticky": "call",
            "shadow": None,
        }
        etag = made.headers["ETag"]
        split = {"split": {"big": 95, "new.1": 5}}
        changed = await api.patch("/aliases/org%2Fchat", split, If_Match=etag)
        assert changed.json["split"] == {"big": 95, "new.1": 5}
        assert (await api.patch("/aliases/org%2Fchat", split, If_Match=etag)).status == 412
        less = await api.patch("/aliases/org%2Fchat", {"split": {"new.1": None}})
        assert less.json["split"] == {"big": 95}
        assert (await api.delete("/aliases/org%2Fchat", If_Match=less.headers["ETag"])).status == 204
        audit = (await api.get("/audit?kind=aliases")).json["items"]
        assert [(each["action"], each["name"]) for each in audit] == [
            ("delete", "org/chat"), ("update", "org/chat"), ("update", "org/chat"), ("create", "org/chat"),
        ]  # fmt: skip


async def test_chains_cycles_and_wrong_fields_are_refused(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend, aliases={"chat": LIST}) as api:
        chain = await api.post("/aliases", {"id": "talk", "models": ["chat"]})
        assert (chain.status, chain.json["errors"][0]["field"]) == (409, "body.models")
        weights = await api.post("/aliases", {"id": "talk", "models": ["big"], "split": {"big": 1, "chat": 0}})
        assert weights.status == 409
        other = await api.post("/aliases", {"id": "small", "models": ["big"]})
        assert other.status == 409, "chat stands for it"
        assert (await api.ask("PUT", "/aliases/chat", {"models": ["chat", "big"]})).status == 200, "its own name"
        for wrong in ({}, {"models": []}, {"models": ["a"], "sticky": "x"}, {"models": ["a"], "split": {"a": -1}}):
            assert (await api.post("/aliases", {"id": "talk", **wrong})).status == 422, wrong
        for wrong in ({"models": ["a", "a"]}, {"models": ["a"], "split": {"a": 0}}):
            assert (await api.post("/aliases", {"id": "talk", **wrong})).status == 409, wrong
        assert (await api.delete("/aliases/chat")).status == 204, "the file's is in force again"
        assert (await api.get("/aliases/chat")).json == {"id": "chat", "origin": "declared", **LIST} | {
            "split": {}, "sticky": "call", "shadow": None,
        }  # fmt: skip


async def test_a_change_is_in_force_for_the_next_call_and_keys_go_by_the_asked_name(tmp_path):
    async with (
        scripted(model="big") as big,
        scripted(model="small") as small,
        admin(tmp_path, big, small, aliases={"chat": {"models": ["big"]}}) as api,
    ):
        key = bearer(await api.key_for("declared", models=["chat"]))
        assert (await api.rig.post(call(model="chat"), headers=key)).status == 200
        assert (await api.rig.post(call(model="big"), headers=key)).status == 403
        assert [each["id"] for each in (await api.rig.get("/v1/models", headers=key)).json["data"]] == ["chat"]
        await api.patch("/aliases/chat", {"models": ["small"]})
        await api.rig.post(call(model="chat"), headers=key)
        assert (len(big.calls), len(small.calls)) == (1, 1)

        async def is_counted():
            rows = (await api.get("/usage")).json["items"]
            return sorted((row["model"], row["requests"]) for row in rows) == [("big", 1), ("small", 1)]

        await within(is_counted, 15)
        open_to_all = bearer(await api.key_for("declared"))
        await api.ask("PUT", "/aliases/talk", {"models": ["big"]})
        assert (await api.rig.post(call(model="talk"), headers=open_to_all)).status == 200
        assert (await api.rig.post(call(model="talk"), headers=key)).status == 403
        await api.delete("/aliases/talk")
        assert (await api.rig.post(call(model="talk"), headers=open_to_all)).status == 404
