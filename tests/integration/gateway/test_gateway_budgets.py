"""Token budgets of a running gateway: refused as OpenAI refuses, kept over restarts, changed while it runs."""

import asyncio
import re
import time

import anthropic
import openai
import pytest
from admin_rig import admin, within
from gateway_rig import CHAT, MODEL, PATIENCE_S, answer, bearer, call, gateway, scripted, until

from gateway.store.sqlite import SqliteStore

DROPPED = "x-llm-d-request-dropped-reason"
USED = 12  # by one answer of a scripted backend


def seconds_to_midnight():
    return 86_400 - time.time() % 86_400


async def made(api, **budget):
    assert (await api.post("/tenants", {"id": "alice", **budget})).status == 201
    return await api.key_for("alice")


async def budgets(api):
    return {
        (each["tenant"], each["period"]): (each["used"], each["remaining"], each["reserved"])
        for each in (await api.get("/state/budgets")).json["items"]
    }


async def refusals(api):
    """Calls that were refused for a budget."""
    page = (await api.get("/metrics")).body.decode()
    return sum(map(float, re.findall(r'refusals_total\{reason="budget_spent",tenant="[^"]*"\} (.*)', page)))


async def test_over_its_budget_a_tenant_is_refused_as_openai_refuses_until_midnight(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        key = await made(api, tokens_per_day_max=20)
        other = await api.key_for("declared")
        assert (await api.rig.post(headers=bearer(key))).status == 200
        before = seconds_to_midnight()
        reply = await api.rig.post(headers=bearer(key))
        assert reply.status == 429
        assert (reply.error["reason"], reply.error["type"]) == ("insufficient_quota", "insufficient_quota")
        assert reply.headers[DROPPED] == "rejected-budget-spent"
        assert reply.headers["x-fairlead-limit"] == reply.error["limit"] == "day"
        assert seconds_to_midnight() - 1 <= int(reply.headers["Retry-After"]) <= before + 1
        assert len(backend.calls) == 1
        assert (await api.rig.post(headers=bearer(other))).status == 200
        assert await refusals(api) == 1
        assert await budgets(api) == {("alice", "day"): (USED, 20 - USED, 0)}


async def test_client_libraries_know_the_refusal_and_do_not_try_again(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        key = await made(api, tokens_per_month_max=1)
        async with openai.AsyncOpenAI(base_url=f"{api.rig.url}/v1", api_key=key, max_retries=2) as client:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(**call())
            assert refused.value.body["reason"] == "insufficient_quota"
        async with anthropic.AsyncAnthropic(base_url=api.rig.url, api_key=key, max_retries=2) as client:
            with pytest.raises(anthropic.RateLimitError):
                await client.messages.create(**call())
        assert await refusals(api) == 2, "each asked once"
        assert backend.calls == []


async def test_what_was_used_counts_after_a_restart(tmp_path):
    config = {"state": tmp_path / "state"}
    async with scripted() as backend:
        async with admin(tmp_path, backend, **config) as api:
            key = await made(api, tokens_per_day_max=20, tokens_per_month_max=1_000)
            assert (await api.rig.post(headers=bearer(key))).status == 200
        async with admin(tmp_path, backend, **config) as api:
            assert await budgets(api) == {("alice", "day"): (USED, 8, 0), ("alice", "month"): (USED, 988, 0)}
            assert (await api.rig.post(headers=bearer(key))).status == 429


async def test_a_budget_is_set_and_lifted_while_the_gateway_runs(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        key = await made(api)
        assert (await api.rig.post(headers=bearer(key))).status == 200
        patched = await api.patch("/tenants/alice", {"tokens_per_day_max": 5, "weight": 2})
        assert (patched.json["tokens_per_day_max"], patched.json["tokens_per_month_max"]) == (5, None)
        assert (await api.rig.post(headers=bearer(key))).status == 429, "what was used before it was set counts"
        await api.patch("/tenants/alice", {"tokens_per_day_max": None})
        assert (await api.rig.post(headers=bearer(key))).status == 200


async def test_a_key_has_a_budget_within_its_tenants(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        await api.post("/tenants", {"id": "alice"})
        limited, free = await api.key_for("alice", tokens_per_day_max=5), await api.key_for("alice")
        assert (await api.rig.post(headers=bearer(limited))).status == 429
        assert (await api.rig.post(headers=bearer(free))).status == 200
        key_id = (await api.get("/state/budgets")).json["items"][0]["key"]
        await api.patch(f"/keys/{key_id}", {"tokens_per_day_max": 100})
        assert (await api.rig.post(headers=bearer(limited))).status == 200
        assert (await api.get(f"/keys/{key_id}")).json["tokens_per_day_max"] == 100
        rotated = await api.post(f"/keys/{key_id}/rotate", {})
        assert rotated.json["tokens_per_day_max"] == 100


async def test_what_is_not_served_gives_its_reservation_back(tmp_path):
    async with scripted(answer({"error": {}}, status=400)) as backend, admin(tmp_path, backend) as api:
        key = await made(api, tokens_per_day_max=300)
        for _ in range(5):
            assert (await api.rig.post(call(max_tokens=200), headers=bearer(key))).status == 400
        assert await budgets(api) == {("alice", "day"): (0, 300, 0)}


async def test_what_runs_is_reserved_against_others_of_its_tenant(tmp_path):
    async def silent(reader, _writer):
        await reader.read()
        return False

    async with scripted(silent) as backend, admin(tmp_path, backend) as api:
        key = await made(api, tokens_per_day_max=300)
        task = asyncio.create_task(api.rig.post(call(max_tokens=2_000), headers=bearer(key)))
        await until(lambda: backend.calls)
        used, _, reserved = (await budgets(api))["alice", "day"]
        assert used == 0
        assert reserved > 256
        longer = call(messages=[{"role": "user", "content": "word " * 60}])
        assert (await api.rig.post(longer, headers=bearer(key))).status == 429
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(api.rig.idle)
        assert (await budgets(api))["alice", "day"][2] == 0


async def test_a_declared_budget_needs_no_admin_port(tmp_path):
    tenants = {"anonymous": {"tokens_per_day_max": 20}}
    async with scripted() as backend, gateway(backend, store=SqliteStore(None), tenants=tenants) as rig:
        assert [(await rig.post(path=CHAT)).status for _ in range(2)] == [200, 429]


# -- money ------------------------------------------------------------------------------------------------------------


def prices(per_token):
    """A price list of the scripted backends' model, of so much per token."""
    return {"currency": "EUR", "periods": [{"prompt": per_token * 10**6, "output": per_token * 10**6}]}


async def costs(api):
    return {
        (each["unit"], each["period"]): (each["used"], each["remaining"])
        for each in (await api.get("/state/budgets")).json["items"]
    }


async def test_over_its_budget_in_money_a_tenant_is_refused_until_its_price_is_corrected(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend, prices={MODEL: prices(1)}) as api:
        key = await made(api, cost_per_day_max="20.5", tokens_per_month_max=1_000)
        assert (await api.rig.post(headers=bearer(key))).status == 200
        assert await costs(api) == {("cost", "day"): ("12.00", "8.50"), ("tokens", "month"): (USED, 988)}
        reply = await api.rig.post(headers=bearer(key))
        assert (reply.status, reply.error["reason"], reply.error["limit"]) == (429, "insufficient_quota", "cost_day")
        assert len(backend.calls) == 1
        cheaper = {"currency": "EUR", "periods": [{"prompt": "0.5", "output": "0.5"}]}
        assert (await api.ask("PUT", f"/prices/{MODEL}", cheaper)).status == 200

        async def is_corrected():
            return (await costs(api))["cost", "day"][0] == "0.000006"

        await within(is_corrected, PATIENCE_S)
        assert (await api.rig.post(headers=bearer(key))).status == 200


async def test_what_was_spent_in_money_counts_after_a_restart(tmp_path):
    config = {"state": tmp_path / "state", "prices": {MODEL: prices(1)}}
    async with scripted() as backend:
        async with admin(tmp_path, backend, **config) as api:
            key = await made(api, cost_per_day_max=20, cost_per_month_max="999999999.999999")
            assert (await api.rig.post(headers=bearer(key))).status == 200
        async with admin(tmp_path, backend, **config) as api:
            assert await costs(api) == {
                ("cost", "day"): ("12.00", "8.00"),
                ("cost", "month"): ("12.00", "999999987.999999"),
            }
            assert (await api.rig.post(headers=bearer(key))).status == 429


async def test_a_key_has_a_budget_in_money_and_a_key_in_its_place_has_it_too(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend, prices={MODEL: prices(1)}) as api:
        await api.post("/tenants", {"id": "alice"})
        limited = await api.key_for("alice", cost_per_day_max="5.00")
        assert (await api.rig.post(headers=bearer(limited))).status == 429
        key_id = (await api.get("/state/budgets")).json["items"][0]["key"]
        changed = await api.patch(f"/keys/{key_id}", {"cost_per_day_max": "50.00", "label": "x"})
        assert changed.json["cost_per_day_max"] == "50.00"
        assert (await api.post(f"/keys/{key_id}/rotate", {})).json["cost_per_day_max"] == "50.00"
        assert (await api.rig.post(headers=bearer(limited))).status == 200


async def test_a_declared_budget_in_money_needs_no_admin_port(tmp_path):
    tenants = {"anonymous": {"cost_per_day_max": 20}}
    given = {"tenants": tenants, "prices": {MODEL: prices(1)}}
    async with scripted() as backend, gateway(backend, store=SqliteStore(None), **given) as rig:
        assert [(await rig.post(path=CHAT)).status for _ in range(2)] == [200, 429]
