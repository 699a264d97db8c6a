"""Backends come and go by the admin API: added, used, drained, taken away; and where they may not be."""

import asyncio

import pytest
from admin_rig import admin, within
from gateway_rig import SLOW, bearer, call, engine, running, scripted, until


@pytest.fixture
async def api(tmp_path):
    async with engine(**SLOW) as server, admin(tmp_path, server) as asker:
        asker.server = server
        yield asker


async def test_a_backend_is_added_used_drained_and_taken_away_while_it_runs(api):
    async with engine(**SLOW) as other:
        assert (await api.post("/backends", {"id": "other", "url": other.url})).status == 201
        assert (await api.post("/tenants", {"id": "alice"})).status == 201
        key = await api.key_for("alice")

        async def is_well():
            return (await api.get("/backends/other")).json["state"] == "healthy"

        await within(is_well)
        calls = [asyncio.ensure_future(api.rig.post(call(max_tokens=40), headers=bearer(key))) for _ in range(4)]
        await until(lambda: running(other) + running(api.server) == len(calls))
        at_other = running(other)
        assert at_other
        assert (await api.patch("/backends/other", {"draining": True})).json["draining"]
        calls += [asyncio.ensure_future(api.rig.post(call(max_tokens=4), headers=bearer(key))) for _ in range(4)]
        await asyncio.gather(*calls[4:])
        assert running(other) <= at_other
        assert (await api.delete("/backends/other")).status == 204
        replies = await asyncio.gather(*calls)
        assert [reply.status for reply in replies] == [200] * 8
        assert [reply.json["usage"]["completion_tokens"] for reply in replies] == [40] * 4 + [4] * 4
        await until(lambda: "other" not in api.rig.gateway._clients.by_id)
        assert (await api.get("/backends/other")).status == 404


async def test_a_backend_that_drains_is_sent_nothing_until_it_drains_no_more(tmp_path):
    async with scripted() as one, scripted() as other, admin(tmp_path, one, other) as api:
        key = bearer(await api.key_for("declared"))
        assert (await api.patch("/backends/b1", {"draining": True})).status == 200
        assert {(await api.rig.post(headers=key)).status for _ in range(6)} == {200}
        assert (len(one.calls), len(other.calls)) == (6, 0)
        await api.patch("/backends/b1", {"draining": False})
        await api.patch("/backends/b0", {"draining": True})
        assert {(await api.rig.post(headers=key)).status for _ in range(6)} == {200}
        assert (len(one.calls), len(other.calls)) == (6, 6)


async def test_a_backends_credential_is_that_of_the_variable_it_names_and_not_any_variable_may_be_named(
    api, monkeypatch
):
    monkeypatch.setenv("BACKEND_KEY_OTHER", "its-secret")
    async with scripted() as other:
        made = {"id": "other", "url": other.url}
        refused = await api.post("/backends", {**made, "api_key_env": "AWS_SECRET_ACCESS_KEY"})
        assert (refused.status, refused.json["errors"][0]["field"]) == (422, "body.api_key_env")
        assert (await api.post("/backends", {**made, "api_key_env": "BACKEND_KEY_OTHER"})).status == 201
        await until(lambda: other.polls)
        sent = {name.lower(): value for name, value in other.polls[0].headers.items()}
        assert sent["authorization"] == "Bearer its-secret"
        assert b"its-secret" not in (await api.get("/backends/other")).body + (await api.get("/audit")).body


async def test_a_name_is_free_for_another_backend_when_the_first_has_left(api):
    async with engine(**SLOW) as one, scripted() as two:
        await api.post("/backends", {"id": "x", "url": one.url})
        assert (await api.delete("/backends/x")).status == 204
        assert (await api.post("/backends", {"id": "x", "url": two.url})).status == 201

        async def is_well():
            shown = (await api.get("/backends/x")).json
            return shown["state"] == "healthy" and two.polls

        await within(is_well)


async def test_a_backend_that_is_made_anew_while_its_namesake_is_being_forgotten_comes_after_it(api):
    async with scripted() as one, scripted() as two:
        await api.post("/backends", {"id": "x", "url": one.url})
        backends, forgotten, gate = api.rig.gateway.backends, [], asyncio.Event()

        async def last_poll():
            try:
                await asyncio.Event().wait()
            finally:
                forgotten.append("x")
                await gate.wait()

        await until(lambda: backends._backends["x"].probe is not None)
        backends._backends["x"].probe = asyncio.create_task(last_poll())
        assert (await api.delete("/backends/x")).status == 204
        await until(lambda: forgotten)
        made = await api.post("/backends", {"id": "x", "url": two.url})
        gate.set()
        assert made.status == 201, made.body

        async def is_well():
            shown = (await api.get("/backends/x")).json
            return shown["state"] == "healthy" and two.polls

        await within(is_well)


async def test_one_backend_that_cannot_be_taken_away_keeps_no_other_and_is_told_of_once(api, caplog):
    async with scripted() as one, scripted() as two:
        for name, backend in (("stuck", one), ("other", two)):
            await api.post("/backends", {"id": name, "url": backend.url})
        backend_clients, view_of = api.rig.gateway._clients.by_id, api.rig.gateway.pools.backend_view
        asked = []

        def broken(backend_id):
            asked.append(backend_id)
            if backend_id == "stuck" and len(asked) < 6:
                raise RuntimeError("out of luck")
            return view_of(backend_id)

        api.rig.gateway.pools.backend_view = broken
        assert (await api.delete("/backends/stuck")).status == 204
        assert (await api.delete("/backends/other")).status == 204
        await until(lambda: "other" not in backend_clients)
        await until(lambda: "stuck" not in backend_clients)
    told = [record for record in caplog.records if "could not be taken away" in record.getMessage()]
    assert [(record.levelname, record.args) for record in told] == [("ERROR", ("stuck",))]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254", "http://[::ffff:169.254.169.254]", "http://8.8.8.8:80", "http://2852039166",
        "http://[fd00:ec2::254]",
    ],
)  # fmt: skip
async def test_a_backend_at_an_address_that_none_may_have_is_refused(api, url):
    assert (await api.post("/backends", {"id": "evil", "url": url})).status == 409


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://user:secret@vllm", "gopher://vllm", "http://vllm?x=1"])
async def test_a_backend_of_another_scheme_or_with_credentials_in_its_url_is_refused(api, url):
    assert (await api.post("/backends", {"id": "evil", "url": url})).status == 422


@pytest.mark.parametrize("url", ["http://127.0.0.1", "http://[::ffff:127.0.0.1]", "http://0x7f.1", "http://localhost"])
async def test_by_default_no_backend_may_be_on_this_machine(tmp_path, url):
    async with scripted() as backend, scripted() as internal:
        port = internal.url.rsplit(":", 1)[1]
        settings = {"enabled": True, "port": 0, "key_file": str(tmp_path / "admin-key")}
        async with admin(tmp_path, backend, admin=settings) as api:
            made = await api.post("/backends", {"id": "inside", "url": f"{url}:{port}"})
            if made.status == 201:  # a name: what it means is looked at when it is connected to
                await until(lambda: api.rig.gateway.backends["inside"].last_error)
                assert "networks" in (await api.get("/backends/inside")).json["trouble"]
            else:
                assert made.status == 409
            assert internal.polls == internal.calls == []


async def test_redirects_of_a_backend_are_not_followed(tmp_path):
    async def redirect(reader, writer):
        writer.write(b"HTTP/1.1 307 X\r\nlocation: %b/v1/models\r\ncontent-length: 0\r\n\r\n" % target.url.encode())
        return True

    async with scripted() as target, scripted(redirect) as backend, admin(tmp_path, backend) as api:
        await api.post("/tenants", {"id": "alice"})
        key = await api.key_for("alice")
        await api.rig.post(headers=bearer(key), allow_redirects=False)
        assert target.calls == target.polls == []


async def test_a_kept_response_goes_with_the_backend_that_keeps_it(api):
    async with engine(responses_stored=True) as other:
        await api.post("/tenants", {"id": "alice"})
        key = bearer(await api.key_for("alice"))
        await api.post("/backends", {"id": "other", "url": other.url})
        await until(lambda: api.rig.gateway.backends.states().get("other") == "healthy")
        await api.patch("/backends/b0", {"draining": True})
        asked = {"model": "tiny", "input": "hello", "max_output_tokens": 4}
        made = await api.rig.post(asked, "/v1/responses", headers=key)
        assert made.status == 200, made.body
        path = f"/v1/responses/{made.json['id']}"
        assert (await api.rig.get(path, headers=key)).status == 200
        await api.delete("/backends/other")
        await until(lambda: "other" not in api.rig.gateway._clients.by_id)
        assert (await api.rig.get(path, headers=key)).status == 404
