"""One model by its name: models of backends, with slashes too, and aliases, as far as the caller's key may use them."""

from urllib.parse import quote

import pytest
from admin_rig import admin
from gateway_rig import bearer, gateway, scripted

SLASHED = "meta-llama/Llama-3"


@pytest.mark.parametrize("name", [SLASHED, quote(SLASHED, safe="")])
async def test_a_model_is_found_by_its_name_as_it_is_listed(name):
    async with scripted(model=SLASHED) as backend, gateway(backend) as rig:
        (listed,) = (await rig.get("/v1/models")).json["data"]
        found = await rig.get(f"/v1/models/{name}")
        assert (found.status, found.json) == (200, listed)
        assert found.json["id"] == SLASHED


async def test_an_alias_is_found_as_it_is_listed_and_takes_the_place_of_a_model_of_its_name():
    aliases = {"team/chat": {"models": ["big"]}, "small": {"models": ["big"]}}
    async with (
        scripted(model="big") as big,
        scripted(model="small") as small,
        gateway(big, small, aliases=aliases) as rig,
    ):
        listed = {each["id"]: each for each in (await rig.get("/v1/models")).json["data"]}
        assert listed.keys() == {"big", "small", "team/chat"}
        for name, entry in listed.items():
            assert (await rig.get(f"/v1/models/{name}")).json == entry
        assert listed["small"]["owned_by"] == "fairlead"


async def test_a_model_that_is_not_there_and_one_that_the_key_may_not_use_get_the_same_404(tmp_path):
    aliases = {"chat": {"models": ["tiny"]}}
    async with scripted() as backend, admin(tmp_path, backend, aliases=aliases) as api:
        key = bearer(await api.key_for("declared", models=["chat"]))
        listed = (await api.rig.get("/v1/models", headers=key)).json["data"]
        assert [each["id"] for each in listed] == ["chat"]
        assert (await api.rig.get("/v1/models/chat", headers=key)).status == 200
        hidden, nowhere = [await api.rig.get(f"/v1/models/{name}", headers=key) for name in ("tiny", "none/such")]
        assert hidden.status == nowhere.status == 404
        assert hidden.json == nowhere.json
        assert (hidden.error["type"], hidden.error["param"]) == ("invalid_request_error", "model")
        assert (await api.rig.get("/v1/models/chat")).status == 401


async def test_other_methods_and_paths_are_what_they_are_elsewhere():
    async with scripted() as backend, gateway(backend) as rig:
        for method in ("POST", "PUT", "DELETE"):
            async with rig.session.request(method, f"{rig.url}/v1/models/tiny") as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET")
        moved = await rig.get("/v1/models/a%20b%25/", allow_redirects=False)
        assert (moved.status, moved.headers["Location"]) == (307, "/v1/models/a%20b%25")
        assert (await rig.get("/v1/models/", allow_redirects=False)).headers["Location"] == "/v1/models"
        assert backend.calls == []
