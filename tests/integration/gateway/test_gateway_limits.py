"""Which calls are refused now: by keys, tenants, queues, rates, backends; and when to come back."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest
from gateway_rig import (
    MARKER,
    MODEL,
    assert_error,
    assert_untouched,
    bearer,
    call,
    engine,
    gateway,
    scripted,
    until,
)

from gateway.config.key_file import add_key
from gateway.scheduling import assembly
from policies.admission.bounded import BoundedQueues
from policies.types import Tenant

DROPPED = "x-llm-d-request-dropped-reason"
SECRET = "s" * 32


@pytest.fixture
def keyring(tmp_path):
    """A configuration in mode keys, and a key for each of its tenants and for one that it does not know."""
    keys_file = tmp_path / "keys"
    auth = {"mode": "keys", "secret": SECRET, "keys_file": keys_file}
    tenants = ("alice", "bob", "stranger")
    made = {
        name: add_key(keys_file, tenant=name, secret=SECRET.encode(), created_at="2026-01-01T00:00:00+00:00")
        for name in tenants
    }
    return {"auth": auth, "tenants": {"alice": {}, "bob": {}}}, made


async def test_a_wrong_key_is_a_401_before_the_body_is_looked_at(keyring):
    config, keys = keyring
    async with scripted() as backend, gateway(backend, **config) as rig:
        wrong = [{}, bearer(MARKER), bearer(""), bearer("x" * 5000), {"Authorization": f"Basic {keys['alice']}"}]
        for headers in wrong:
            for body in (call(), b"no json"):
                reply = await rig.post(body, headers=headers)
                assert_error(reply, 401, code="invalid_api_key")
                assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert (await rig.get("/v1/models", headers=headers)).status == 401
        assert_untouched(rig, backend)
        for headers in (bearer(keys["alice"]), {"X-Api-Key": keys["alice"]}):
            assert (await rig.post(headers=headers)).status == 200
        assert rig.service("alice") > 0
        assert rig.service("bob") == 0


async def test_a_key_of_a_tenant_that_is_gone_is_a_403(keyring):
    config, keys = keyring
    async with scripted() as backend, gateway(backend, **config) as rig:
        reply = await rig.post(headers=bearer(keys["stranger"]))
        assert_error(reply, 403, code="tenant_unknown")
        assert reply.headers[DROPPED] == "rejected-tenant-unknown"
        assert_untouched(rig, backend)


async def test_without_configuration_every_key_is_a_tenant_and_no_key_is_anonymous():
    async with scripted() as backend, gateway(backend) as rig:
        for headers in ({}, bearer("one"), bearer("two"), bearer("one"), {"X-Api-Key": "two"}):
            assert (await rig.post(headers=headers)).status == 200
        tenants = rig.snapshot().tenants
        assert len(tenants) == 3
        assert "anonymous" in tenants
        assert not any("one" in name or "two" in name for name in tenants)
        assert sorted(round(tenant.service / 15) for tenant in tenants.values()) == [1, 2, 2]


async def test_in_open_mode_an_idle_tenant_makes_room_for_a_new_one():
    async with scripted() as backend, gateway(backend) as rig:
        rig.gateway._handlers.tenants._open_tenants_max = 2
        for key in ("one", "two", "three", "one"):
            assert (await rig.post(headers=bearer(key))).status == 200
        assert len(rig.snapshot().tenants) == 2


@pytest.fixture
async def crowded():
    """A gateway whose one seat is taken, by a call that runs until it is cancelled."""

    async def make(stack, **config):
        server = await stack.enter_async_context(engine(speed=0.01))
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        rig = await stack.enter_async_context(gateway(entry, **config))
        tasks = [asyncio.create_task(rig.post(call(max_tokens=4000), headers=bearer("holder")))]
        await until(lambda: rig.snapshot().in_flight_requests == 1)

        def queue(body=None, key="one"):
            tasks.append(asyncio.create_task(rig.post(body, headers=bearer(key))))

        async def release():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(rig.idle)

        stack.push_async_callback(release)
        return rig, queue

    return make


def assert_turned_away(reply, status, *, dropped, kind):
    assert_error(reply, status)
    assert reply.headers[DROPPED] == dropped
    assert reply.error["type"] == kind
    assert 1 <= int(reply.headers["Retry-After"]) <= 3600


@pytest.fixture
async def stack():
    async with AsyncExitStack() as opened:
        yield opened


async def test_a_full_tenant_queue_is_a_429_of_that_tenant_only(stack, crowded):
    rig, queue = await crowded(stack, queue={"tenant_requests_max": 2})
    queue(), queue()
    await until(lambda: rig.snapshot().queued_requests == 2)
    reply = await rig.post(headers=bearer("one"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
    queue(key="two")
    await until(lambda: rig.snapshot().queued_requests == 3)


async def test_a_full_gateway_is_a_429_for_all_tenants(stack, crowded):
    rig, queue = await crowded(stack, queue={"requests_max": 2, "tenant_requests_max": 2})
    queue(key="one"), queue(key="two")
    await until(lambda: rig.snapshot().queued_requests == 2)
    reply = await rig.post(headers=bearer("three"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="overloaded_error")


async def test_a_tenants_queued_bytes_are_bounded(stack, crowded, monkeypatch):
    sizes = partial(BoundedQueues, tenant_bytes_max=2000, bytes_max=3000)
    monkeypatch.setattr(assembly, "BoundedQueues", sizes)
    rig, queue = await crowded(stack)
    large = call(messages=[{"role": "user", "content": "x" * 1200}])
    queue(large)
    await until(lambda: rig.snapshot().queued_requests == 1)
    reply = await rig.post(large, headers=bearer("one"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
    queue(large, key="two")
    await until(lambda: rig.snapshot().queued_requests == 2)
    reply = await rig.post(large, headers=bearer("three"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="overloaded_error")


async def test_who_waits_too_long_gets_a_429(stack, crowded):
    rig, _ = await crowded(stack, queue={"wait_s_max": 0.15})
    started = asyncio.get_running_loop().time()
    reply = await rig.post(headers=bearer("one"))
    assert_turned_away(reply, 429, dropped="rejected-ttl-expired", kind="overloaded_error")
    assert asyncio.get_running_loop().time() - started == pytest.approx(0.15, abs=0.1)
    assert rig.snapshot().queued_requests == 0


async def test_the_rate_limit_says_to_the_second_when_to_come_back(keyring):
    config, keys = keyring
    tenants = {"alice": {"requests_per_minute_max": 2}, "bob": {}}
    async with scripted() as backend, gateway(backend, **{**config, "tenants": tenants}) as rig:
        for _ in range(2):
            assert (await rig.post(headers=bearer(keys["alice"]))).status == 200
        reply = await rig.post(headers=bearer(keys["alice"]))
        assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
        assert reply.headers["Retry-After"] == "60"
        assert reply.headers["x-fairlead-limit"] == reply.error["limit"] == "requests"
        assert reply.error["message"] == "You are over your limit of requests per minute."
        assert (await rig.post(headers=bearer(keys["bob"]))).status == 200
        assert len(backend.calls) == 3


async def test_tokens_per_minute_are_settled_to_what_an_answer_used(keyring):
    config, keys = keyring
    tenants = {"alice": {"tokens_per_minute_max": 30}, "bob": {}}
    async with scripted() as backend, gateway(backend, **{**config, "tenants": tenants}) as rig:
        assert (await rig.post(headers=bearer(keys["alice"]))).status == 200
        dispatcher, _ = rig.gateway.pools.routes.find(MODEL)
        limits = dispatcher.rate_limits(Tenant("alice", tokens_per_minute_max=30))
        assert (limits.requests, limits.tokens.limit, limits.tokens.remaining) == (None, 30, 30 - 9 - 3)
        assert limits.tokens.reset_s == pytest.approx(60.0, abs=5.0)
        assert (await rig.post(headers=bearer(keys["alice"]))).status == 200
        reply = await rig.post(headers=bearer(keys["alice"]))
        assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
        assert 55 <= int(reply.headers["Retry-After"]) <= 60
        assert reply.headers["x-fairlead-limit"] == reply.error["limit"] == "tokens"
        assert (await rig.post(headers=bearer(keys["bob"]))).status == 200


async def test_a_prompt_over_the_limit_of_tokens_per_minute_is_a_400_that_no_client_retries(keyring):
    config, keys = keyring
    tenants = {"alice": {"tokens_per_minute_max": 30}, "bob": {}}
    async with scripted() as backend, gateway(backend, **{**config, "tenants": tenants}) as rig:
        long = [{"role": "user", "content": "many words " * 100}]
        reply = await rig.post(call(messages=long), headers=bearer(keys["alice"]))
        assert_error(reply, 400, code="request_too_large")
        assert reply.headers[DROPPED] == "rejected-request-too-large"
        assert "Retry-After" not in reply.headers
        assert backend.calls == []


async def test_no_backend_that_lives_in_time_is_a_503():
    async with scripted() as backend, gateway(backend, queue={"backend_wait_s_max": 0.1}) as rig:
        backend.healthy = False
        await until(lambda: not rig.gateway.pools.routes.any_available())
        reply = await rig.post()
        assert_turned_away(reply, 503, dropped="rejected-no-endpoints", kind="overloaded_error")
        assert (await rig.get("/readyz")).status == (await rig.get("/health")).status == 503
        assert (await rig.get("/livez")).status == 200
        backend.healthy = True
        await until(rig.gateway.pools.routes.any_available)
        assert (await rig.post()).status == 200


async def test_a_model_that_a_silent_backend_may_have_is_a_503_not_a_404():
    async with scripted() as backend:
        silent = {"name": "silent", "url": "http://127.0.0.1:9"}
        async with gateway(backend, silent) as rig:
            assert (await rig.post(call(model="other"))).status == 503
            assert (await rig.post()).status == 200


async def test_version_is_that_of_the_servers_behind_and_one_of_them_is_asked_once_in_a_while():
    async with engine() as server, gateway(server) as rig:
        replies = [await rig.get("/version") for _ in range(3)]
        async with rig.session.get(server.url + "/version") as direct:
            assert [reply.json for reply in replies] == [await direct.json()] * 3
