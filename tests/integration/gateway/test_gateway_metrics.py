"""/metrics of a gateway that serves: it says what the schedulers know, and holds no call up while it does."""

import asyncio
import time

import pytest
from admin_rig import admin
from gateway_rig import (
    MODEL,
    SLOW,
    bearer,
    call,
    engine,
    gateway,
    gateway_and_engine,
    scripted,
    stream,
    until,
)
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.metrics import page as metrics_module
from gateway.observability.metrics import scheduler_metrics as checkpoint
from gateway.observability.metrics.call_counts import MODELS_MAX
from gateway.observability.metrics.instruments import FAMILIES
from gateway.observability.metrics.service_gap import gap_bound_of
from gateway.observability.telemetry import CallTrace
from policies.types import NO_USAGE, Outcome, Request, SloEnvelope, Tenant, Timing, Usage

STALL_S_MAX = 0.005
STALL_SHARE = 1 / 40  # of the whole: as much on a machine that writes it in 0.2 s, more on a slower one
TRIES = 5
WAIT_S = 0.3


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(metrics_module, "AGE_S_MAX", 0.0)


async def read(rig):
    """All samples, by name and labels."""
    text = (await rig.gateway.metrics.exposition()).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(samples, name, **labels):
    return samples.get((name, frozenset(labels.items())))


async def test_the_pause_of_a_stream_that_lost_its_backend_is_what_its_client_waited():
    async with engine(cut_stream_after_tokens=4) as bad, engine() as good:
        backends = [{"name": "bad", "url": bad.url}, {"name": "good", "url": good.url}]
        async with gateway(*backends) as rig:
            rig.gateway.backends.drain("good", draining=True)
            asked = asyncio.create_task(rig.post(call(stream=True, max_tokens=8)))
            await until(lambda: rig.snapshot().interruptions)
            await asyncio.sleep(WAIT_S)
            rig.gateway.backends.drain("good", draining=False)
            assert (await asked).events[-1] == "[DONE]"
            await until(rig.idle)
            samples, name = await read(rig), "fairlead_interruption_pause_seconds"
            assert of(samples, f"{name}_count", tier="default", cause="failed") == 1
            assert of(samples, f"{name}_sum", tier="default", cause="failed") >= WAIT_S
            assert of(samples, "fairlead_pool_interruptions_total", pool=MODEL, cause="failed") == 1


async def test_a_stream_that_is_cut_after_its_role_pauses_and_is_no_interruption():
    """No token was cut: it begins anew (docs/reference/metrics.md). Its client has waited all the same."""
    body = call(stream=True, max_tokens=4)
    async with engine() as good:
        async with gateway(good) as rig:
            role, *_ = (await rig.post({**body, "return_token_ids": True})).body.split(b"\n\n")
        cut = stream(role + b"\n\n", end=False)
        async with scripted(cut) as backend, gateway({"name": "b0", "url": backend.url, "kind": "vllm"}, good) as rig:
            while not backend.calls:  # some calls begin at the good one
                assert (await rig.post(body)).events[-1] == "[DONE]"
            await until(rig.idle)
            samples = await read(rig)
            assert of(samples, "fairlead_interruption_pause_seconds_count", tier="default", cause="failed") == 1
            assert of(samples, "fairlead_pool_interruptions_total", pool=MODEL, cause="failed") == 0


async def test_metrics_say_what_the_schedulers_books_say():
    tiers = {"tiers": {"gold": {"weight": 2}}, "tenants": {"anonymous": {"tier": "gold"}}}
    async with gateway_and_engine(tiers) as (rig, _):
        for number in range(4):
            assert (await rig.post(call(stream=number % 2 == 0))).status == 200
        await until(rig.idle)
        samples, view = await read(rig), rig.tenant()
        about = {"pool": MODEL, "tenant": "anonymous"}
        assert of(samples, "fairlead_tenant_service_total", **about) == view.service > 0
        assert of(samples, "fairlead_pool_service_total", pool=MODEL) == view.service
        assert of(samples, "fairlead_tenant_in_flight_requests", **about) == 0
        assert of(samples, "fairlead_tenant_tokens_total", tenant="anonymous", type="output") == 4 * 8
        assert of(samples, "fairlead_tenant_requests_total", tenant="anonymous", outcome="completed") == 4
        assert of(samples, "fairlead_backend_available", pool=MODEL, backend="b0") == 1
        labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": MODEL, "tier": "gold"}
        assert of(samples, "gen_ai_server_time_to_first_token_seconds_count", **labels) == 2
        assert of(samples, "gen_ai_server_request_duration_seconds_count", **labels, error_type="") == 4


async def test_what_waits_and_runs_now_is_seen_now():
    async with engine(**SLOW) as server:
        backend = {"name": "b0", "url": server.url, "requests_running_max": 2}
        async with gateway(backend) as rig:
            calls = [asyncio.ensure_future(rig.post(call(max_tokens=40))) for _ in range(5)]
            await until(lambda: (rig.snapshot().queued_requests, rig.snapshot().in_flight_requests) == (3, 2))
            samples = await read(rig)
            assert of(samples, "fairlead_pool_queued_requests", pool=MODEL) == 3
            assert of(samples, "fairlead_tenant_queued_requests", pool=MODEL, tenant="anonymous") == 3
            assert of(samples, "fairlead_pool_tenants_waiting", pool=MODEL) == 1
            assert of(samples, "fairlead_backend_in_flight_requests", pool=MODEL, backend="b0") == 2
            assert of(samples, "fairlead_backend_limit_requests", pool=MODEL, backend="b0") == 2
            assert of(samples, "fairlead_backend_reserved_tokens", pool=MODEL, backend="b0") > 0
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_the_gap_of_two_that_wait_side_by_side_is_there_with_its_bound_and_within_it(monkeypatch):
    monkeypatch.setattr(checkpoint, "WINDOWS_S", (0.0,))  # from one look to the next
    config = {"tenants": {"a": {}, "b": {}}, "auth": {"trusted_proxies": ["127.0.0.1/32"]}}
    async with engine(**SLOW) as server:
        backend = {"name": "b0", "url": server.url, "requests_running_max": 2}
        async with gateway(backend, **config) as rig:
            calls = [
                asyncio.ensure_future(
                    rig.post(call(max_tokens=20), headers={"x-llm-d-inference-fairness-id": "ab"[number % 2]})
                )
                for number in range(16)
            ]
            await until(lambda: rig.snapshot().queued_requests >= 10)
            await read(rig)
            before = rig.service("a"), rig.service("b")
            await until(lambda: rig.service("a") - before[0] > 40 and rig.service("b") - before[1] > 40)
            samples = await read(rig)
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    about = {"pool": MODEL, "tier": "default"}
    gap, bound = (of(samples, f"fairlead_pool_service_gap{end}", **about) for end in ("", "_bound"))
    assert 0 <= gap <= bound
    assert 0.5 < of(samples, "fairlead_pool_jain_index", **about) <= 1


@pytest.mark.parametrize(
    ("scheduling", "is_promised"),
    [("vtc", True), ("slack", True), ("dlpm", True), ("fifo", False), ("lcf", False), ("drr", False)],
)
async def test_there_is_a_bound_where_the_policy_promises_one(scheduling, is_promised):
    async with scripted() as backend, gateway(backend, scheduling={"fairness": scheduling}) as rig:
        promise = gap_bound_of(rig.gateway._config.scheduling_of(MODEL))
        assert (promise is not None and promise.is_lasting) == is_promised


async def test_refusals_have_their_reasons_and_unknown_keys_no_tenant():
    async with scripted() as backend, gateway(backend) as rig:
        await rig.post(b"{", headers=bearer("alice"))
        await rig.post(call(model="no-such"), headers=bearer("alice"))
        samples = await read(rig)
    refusals = {dict(labels)["reason"]: value for (name, labels), value in samples.items() if "refusals" in name}
    assert refusals == {"bad_request": 1, "model_not_found": 1}


async def test_a_tenant_that_is_forgotten_takes_its_series_along():
    async with gateway_and_engine() as (rig, _):
        await rig.post(headers=bearer("alice"))
        await until(rig.idle)
        (tenant_id,) = rig.snapshot().tenants
        assert any(tenant_id in dict(labels).values() for _, labels in await read(rig))
        assert rig.gateway.pools.settings.forget_if_idle(tenant_id)
        samples = await read(rig)
        assert not any(tenant_id in dict(labels).values() for _, labels in samples)
        assert of(samples, "fairlead_pool_service_total", pool=MODEL) > 0, "the pool's throughput stays"


async def test_metrics_are_at_the_admin_port_for_every_key_and_a_deleted_tenant_is_gone_from_them(tmp_path):
    async with engine() as server, admin(tmp_path, server) as api:
        await api.post("/tenants", {"id": "acme", "weight": 2})
        key = await api.key_for("acme")
        assert (await api.rig.post(headers=bearer(key))).status == 200
        page = await api.get("/metrics")
        assert page.status == 200
        assert page.headers["Content-Type"].startswith("text/plain")
        assert b'tenant="acme"' in page.body
        assert (await api.get("/metrics", key="nonsense")).status == 401
        assert (await api.get("/metrics", key=key)).status == 403
        assert (await api.delete("/tenants/acme")).status == 204
        await until(api.rig.idle)
        assert b'tenant="acme"' not in (await api.get("/metrics")).body


PROMISED = {
    "tiers": {"gold": {"envelope": {"ttft_ms": 5000, "tpot_ms": 1000}}},
    "tenants": {"anonymous": {"tier": "gold"}},
}
# base_ms, token_us, context_token_ns and request_us of an engine that is SLOW.
KNOWN = {"base_ms": 19, "token_us": 180, "context_token_ns": 1, "request_us": 700}


def tenants_attained(samples, tenant):
    """What has been counted of what this tenant was promised, by name and target."""
    return {
        (name.removeprefix("fairlead_tenant_slo_"), dict(labels).get("target")): value
        for (name, labels), value in samples.items()
        if "tenant_slo" in name and dict(labels)["tenant"] == tenant
    }


async def test_attainment_is_told_by_tenant_and_tier_for_both_readings_of_tpot_and_token_by_token():
    async with gateway_and_engine(PROMISED) as (rig, _):
        await rig.post(call(stream=True))
        # Due at once, and late for that: a client may ask for less than it was given.
        await rig.post(call(stream=True), headers={"x-llm-d-slo-ttft-ms": "1", "x-llm-d-slo-tpot-ms": "1"})
        await until(rig.idle)
        samples, counted = await read(rig), rig.snapshot().attainment["gold"]
    told = tenants_attained(samples, "anonymous")
    assert told == {
        ("requests_total", None): 2,
        ("requests_kept_total", "ttft"): counted.ttft_met,
        ("requests_kept_total", "tpot"): counted.tpot_met,
        ("requests_kept_total", "tpot_envelope"): counted.tpot_envelope_met,
        ("requests_kept_total", "all"): counted.met,
        ("tokens_total", None): counted.tokens,
        ("tokens_in_time_total", None): counted.tokens_in_time,
        ("refused_total", None): 0,
    }
    assert 1 <= counted.met < 2 * counted.tokens_in_time
    of_tier = {
        (name.removeprefix("fairlead_tier_slo_"), dict(labels).get("target")): value
        for (name, labels), value in samples.items()
        if "tier_slo" in name and dict(labels)["tier"] == "gold"
    }
    assert of_tier == told


async def test_attainment_goes_with_its_tenant_stays_with_its_tier_and_no_counter_of_the_others_falls():
    config = {"auth": {"trusted_proxies": ["127.0.0.1/32"]}, "metrics": {"tenants_max": 1}, "tiers": PROMISED["tiers"]}
    config["tenants"] = {name: {"tier": "gold"} for name in "abc"}
    async with gateway_and_engine(config) as (rig, _):
        for name in "abbc":
            await rig.post(call(), headers={"x-llm-d-inference-fairness-id": name})
        await until(rig.idle)
        samples = await read(rig)
        assert tenants_attained(samples, "a")["requests_total", None] == 1
        assert tenants_attained(samples, "other")["requests_total", None] == 3
        assert rig.gateway.pools.settings.forget_if_idle("a")
        assert rig.gateway.pools.settings.forget_if_idle("b")
        samples = await read(rig)
        assert tenants_attained(samples, "a") == {}
        assert tenants_attained(samples, "other")["requests_total", None] == 3
        assert of(samples, "fairlead_tier_slo_requests_total", pool=MODEL, tier="gold") == 4


async def test_a_backends_steps_are_told_with_their_limit_and_how_sure_that_is():
    async with engine(**SLOW) as server:
        backend = {"name": "b0", "url": server.url, "requests_running_max": 2, "step_time": KNOWN}
        async with gateway(backend, **PROMISED) as rig:
            running = asyncio.ensure_future(rig.post(call(max_tokens=200)))
            await until(lambda: rig.snapshot().in_flight_requests == 1)
            samples, about = await read(rig), {"pool": MODEL, "backend": "b0"}
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    told = {name: of(samples, f"fairlead_backend_{name}", **about) for name in STEPS}
    assert all(value is not None for value in told.values())
    assert 0.019 < told["step_seconds"] < 0.03
    assert told["limit_step_seconds"] == 1.0, "the tightest target of what runs"
    assert (told["step_time_error_ratio"], told["step_time_sure"]) == (0.2, 1)
    assert told["prefill_budget_tokens"] > 0
    name = "fairlead_backend_step_time_coefficient_seconds"
    coefficients = {each: of(samples, name, **about, coefficient=each) for each in ("base", "token", "request")}
    assert coefficients == pytest.approx({"base": 0.019, "token": 180e-6, "request": 700e-6})


STEPS = (
    "step_seconds", "limit_step_seconds", "prefill_seconds", "prefill_budget_tokens",
    "step_time_error_ratio", "step_time_sure",
)  # fmt: skip


async def test_of_a_backend_that_counts_no_steps_nothing_is_told_of_them():
    async with scripted() as backend, gateway(backend) as rig:
        await until(lambda: rig.gateway.pools.routes.find(MODEL))
        names = {name for name, _ in await read(rig)}
    assert "fairlead_backend_in_flight_requests" in names
    assert not any("step" in name or "prefill" in name for name in names)


async def test_service_that_was_given_back_makes_no_counter_fall():
    async with scripted() as backend, gateway(backend) as rig:
        await until(lambda: rig.gateway.pools.routes.find(MODEL))
        dispatcher, _ = rig.gateway.pools.routes.find(MODEL)
        dispatcher.spent(Tenant("a"), Usage(100, 0, 0))
        name, about = "fairlead_tenant_service_total", {"pool": MODEL, "tenant": "a"}
        assert of(await read(rig), name, **about) == 100
        dispatcher._scheduler._ledger._served["a"].add(-60, NO_USAGE)
        assert of(await read(rig), name, **about) == 100
        dispatcher.spent(Tenant("a"), Usage(70, 0, 0))
        assert of(await read(rig), name, **about) == 110


async def test_only_so_many_tenants_have_series_and_the_others_are_one():
    async with scripted() as backend, gateway(backend, metrics={"tenants_max": 3}) as rig:
        await until(lambda: rig.gateway.pools.routes.find(MODEL))
        dispatcher, _ = rig.gateway.pools.routes.find(MODEL)
        for number in range(20):
            dispatcher.spent(Tenant(f"t{number:02}"), Usage(1000 + number, 0, 0))
        samples = await read(rig)
        services = {
            dict(labels)["tenant"]: value for (name, labels), value in samples.items() if "tenant_service" in name
        }
        assert len(services) == 4
        assert sum(services.values()) == of(samples, "fairlead_pool_service_total", pool=MODEL)
        assert of(samples, "fairlead_tenants") == 20
        assert of(samples, "fairlead_tenant_series") == 3


async def test_a_thousand_tenants_hold_up_the_event_loop_for_at_most_5_ms():
    async with scripted() as backend, gateway(backend, metrics={"tenants_max": 1000}) as rig:
        await until(lambda: rig.gateway.pools.routes.find(MODEL))
        dispatcher, _ = rig.gateway.pools.routes.find(MODEL)
        for number in range(1000):
            tenant = Tenant(f"tenant-{number}")
            await answer(dispatcher, tenant)
            for outcome in Outcome:
                rig.gateway.metrics.calls.ended(ended_call(tenant, outcome, f"model-{number % MODELS_MAX}"))
        # In CPU time, and the least of a few: what other processes of the machine take is not ours.
        tries = []
        while not any(held_up_shortly(*each) for each in tries) and len(tries) < TRIES:
            tries.append(await stall_while(rig.gateway.metrics.exposition()))
    assert any(held_up_shortly(*each) for each in tries), tries


def held_up_shortly(longest_s, whole_s):
    return longest_s <= max(STALL_S_MAX, STALL_SHARE * whole_s)


async def answer(dispatcher, tenant):
    """It has service, and kept what it was promised."""
    request = Request(tenant.id, tenant.id, MODEL, dispatcher.now(), 100, 10, envelope=SloEnvelope(1.0, 0.1))
    async with dispatcher.lease(request, tenant) as lease:
        lease.tokens(Usage(100, 0, 10))
        lease.timing = Timing(0.1, 0.01, 0.01, 10, 10)


def ended_call(tenant, outcome, model):
    trace = CallTrace("/v1/chat/completions", tenant_id=tenant.id, tier_id="default", model=model, outcome=outcome)
    trace.request, trace.status = Request("r", tenant.id, MODEL, 0.0, 10, 10), 200
    trace.queued_s = trace.dispatched_s = trace.started_s
    trace.usage = Usage(10, 1, 8)
    return trace


async def stall_while(exposition):
    """The longest that the loop was kept from turning, and the whole, in seconds of this process's CPU time."""
    longest, last = 0.0, (began := time.process_time())
    writing = asyncio.ensure_future(exposition)
    while not writing.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    assert b'fairlead_tenant_slo_tokens_total{pool="tiny",tenant="tenant-999"} 10.0' in await writing
    return longest, last - began


async def test_the_text_has_every_family_once_and_is_what_prometheus_reads():
    async with gateway_and_engine() as (rig, _):
        await rig.post()
        page = await rig.gateway.metrics.page()
    lines = page.body.decode().splitlines()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert {family.name for family in FAMILIES} <= set(types)
    assert page.content_type == "text/plain"
