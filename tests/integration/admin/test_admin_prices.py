"""Price lists by the API and by the file, and the cost of calls wherever it is told."""

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from admin_rig import admin, within
from gateway_rig import MODEL, PATIENCE_S, bearer, call, scripted, until

from gateway.config.prices import PriceSection

LIST = {"currency": "EUR", "periods": [{"prompt": "0.60", "cached_prompt": "0.15", "output": "2.40"}]}


def day(days=0):
    return (datetime.now(UTC) + timedelta(days=days)).date().isoformat()


async def usage(api):
    return (await api.get("/usage")).json["items"]


async def counted(api, requests=1):
    """The one row of usage, once so many calls are in it."""

    async def is_there():
        return sum(each["requests"] for each in await usage(api)) == requests

    await within(is_there, PATIENCE_S)
    (row,) = await usage(api)
    return row


async def samples(api, name):
    page = (await api.get("/metrics")).body.decode()
    return dict(re.findall(rf"^{name}{{(.*)}} (.*)$", page, re.MULTILINE))


async def test_a_price_list_has_versions_and_an_audit_log(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        made = await api.post("/prices", {"id": "org/llama", **LIST})
        assert (made.status, made.headers["Location"]) == (201, "/admin/v1/prices/org%2Fllama")
        assert made.json["periods"][0] == {**LIST["periods"][0], "valid_from": None}
        etag = made.headers["ETag"]
        dearer = {"periods": [{"prompt": "0.70", "output": 3}]}
        changed = await api.patch("/prices/org%2Fllama", dearer, If_Match=etag)
        assert changed.json["periods"][0]["output"] == "3"
        assert (await api.patch("/prices/org%2Fllama", dearer, If_Match=etag)).status == 412
        assert (await api.delete("/prices/org%2Fllama", If_Match=changed.headers["ETag"])).status == 204
        audit = (await api.get("/audit?kind=prices")).json["items"]
        assert [(each["action"], each["name"]) for each in audit] == [
            ("delete", "org/llama"), ("update", "org/llama"), ("create", "org/llama"),
        ]  # fmt: skip
        assert audit[1]["after"]["periods"][0]["prompt"] == "0.70"


async def test_a_list_in_another_currency_than_the_others_is_refused(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend, prices={"a": LIST}) as api:
        refused = await api.post("/prices", {"id": "b", **LIST, "currency": "USD"})
        assert (refused.status, refused.json["errors"][0]["field"]) == (409, "body.currency")
        assert (await api.ask("PUT", "/prices/a", LIST | {"currency": "USD"})).status == 200, "it is the only one"


async def test_prices_are_for_operators(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
        assert (await api.post("/prices", {"id": "a", **LIST}, key=viewer)).status == 403
        assert (await api.get("/prices", key=viewer)).status == 200


async def test_a_call_costs_what_its_tokens_cost_in_usage_metrics_and_access_log(tmp_path):
    log = tmp_path / "access.log"
    settings = {"prices": {MODEL: LIST}, "access_log": {"enabled": True, "path": str(log)}}
    async with scripted() as backend, admin(tmp_path, backend, **settings) as api:
        key = await api.key_for("declared")
        assert (await api.rig.post(headers=bearer(key))).status == 200
        row = await counted(api)
        fresh = row["prompt_tokens"] - row["cached_tokens"]
        picos = fresh * 600_000 + row["cached_tokens"] * 150_000 + row["output_tokens"] * 2_400_000
        assert row["currency"] == "EUR"
        assert row["cost"].replace(".", "") == f"{picos:013}".rstrip("0")
        of = await samples(api, "fairlead_tenant_cost_total")
        assert float(of['currency="EUR",tenant="declared"']) == picos / 10**12
        await until(lambda: log.exists() and log.read_text())
        record = json.loads(log.read_text().splitlines()[0])
        assert (record["cost"], record["currency"]) == (row["cost"], "EUR")
        (ended,) = (await api.get("/requests?state=ended")).json["items"]
        assert (ended["cost"], ended["currency"]) == (row["cost"], "EUR")


async def test_prices_of_a_reloaded_file_are_in_force_at_once(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend, prices={MODEL: LIST}) as api:
        key = await api.key_for("declared")
        assert (await api.rig.post(headers=bearer(key))).status == 200
        before = await counted(api)
        gateway, double = api.rig.gateway, [{"prompt": "1.2", "cached_prompt": "0.3", "output": "4.8"}]
        dearer = {MODEL: PriceSection.model_validate({"currency": "USD", "periods": double})}
        gateway.reload(gateway._config.model_copy(update={"prices": dearer}))
        (after,) = await usage(api)
        assert (Decimal(after["cost"]), after["currency"]) == (2 * Decimal(before["cost"]), "USD")


async def test_a_model_without_a_price_is_counted_as_tokens_without_one(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend, prices={"another": LIST}) as api:
        key = await api.key_for("declared")
        assert (await api.rig.post(headers=bearer(key))).status == 200
        row = await counted(api)
        assert (row["cost"], row["currency"]) == (None, None)
        of = await samples(api, "fairlead_tenant_unpriced_tokens_total")
        assert float(of['tenant="declared"']) == row["prompt_tokens"] + row["output_tokens"]
        assert await samples(api, "fairlead_tenant_cost_total") == {}


async def test_without_price_lists_no_cost_is_told_anywhere(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        key = await api.key_for("declared")
        assert (await api.rig.post(call(), headers=bearer(key))).status == 200
        assert (await counted(api))["cost"] is None
        assert await samples(api, "fairlead_tenant_unpriced_tokens_total") == {}


async def test_an_edit_of_a_period_that_has_begun_corrects_its_days_and_a_later_one_does_not(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        key = await api.key_for("declared")
        assert (await api.rig.post(headers=bearer(key))).status == 200
        row = await counted(api)
        output = {"prompt": 0, "output": 1}
        await api.ask("PUT", f"/prices/{MODEL}", {"currency": "EUR", "periods": [output]})
        first = (await usage(api))[0]["cost"]
        assert float(first) * 10**6 == row["output_tokens"]
        later = [output, {"valid_from": day(1), "prompt": 0, "output": 9}]
        await api.ask("PUT", f"/prices/{MODEL}", {"currency": "EUR", "periods": later})
        assert (await usage(api))[0]["cost"] == first
        await api.ask("PUT", f"/prices/{MODEL}", {"currency": "EUR", "periods": [{**output, "output": 2}]})
        assert float((await usage(api))[0]["cost"]) == 2 * float(first)
