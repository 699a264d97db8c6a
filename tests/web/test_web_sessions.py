"""Agents' sessions: those of a tenant, why one is held and until when, and the working set beside the KV pool."""

import asyncio
import re

import aiohttp
import pytest
from playwright.sync_api import expect
from web_rig import MODEL, Callers, serving, start_engines

POOL, AGENTS = 8192, 14
HELD_MS_MAX = 90_000  # until sessions are held: the engine has to have been busy for the most part of 10 s


async def call_as_agents(url):
    """Agents whose contexts together exceed the KV pool, each of which sends all of its session with every turn."""

    async def agent(session, name):
        number = 0
        while True:
            number += 1
            messages = [{"role": "user", "content": f"{name}-{number} " * 400}]
            headers = {"X-Tenant-Id": "coder", "x-session-id": f"{name}-{number}", "x-parent-session-id": "planner"}
            for _ in range(8):
                body = {"model": MODEL, "messages": messages, "max_tokens": 8}
                async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                    reply = await answer.json()
                messages += [reply["choices"][0]["message"], {"role": "user", "content": f"and {number} " * 20}]
                await asyncio.sleep(0.05)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for number in range(AGENTS):
            group.create_task(agent(session, f"a{number}"))


@pytest.fixture(scope="module")
def gateway(background, tmp_path_factory):
    """Its tenant `coder` has agents, and `chat` has none."""
    options = {"kv_tokens_max": POOL, "block_tokens": 16, "speed": 0.1, "prompt_tokens_details": True}
    (engine,) = background.run(start_engines(1, **options))
    backends = [{"name": "gpu", "url": engine.url, "kv_tokens_max": POOL, "requests_running_max": 16}]
    with serving(tmp_path_factory.mktemp("sessions"), backends, tenants={"chat": {}}) as served:
        yield served
    background.run(engine.stop())


def test_sessions_are_seen_from_how_to_name_them_to_why_one_is_held(visit, background, gateway):
    page = visit(gateway).sign_in(gateway.key, "#/engines")
    sets = page.get_by_role("region", name="Working sets")
    expect(page.locator("main")).to_contain_text("A call names its session with the header x-session-id")
    expect(sets.get_by_role("row").filter(has_text="gpu")).to_contain_text("0 of 5,734")
    stop = background.start(call_as_agents(gateway.url))
    try:
        expect(page.locator("main")).to_contain_text(
            "turns are held until their contexts have room", timeout=HELD_MS_MAX
        )
        expect(page.locator("main")).to_contain_text(
            re.compile(r"Sessions: \d+ running, \d+ idle, [1-9]\d* held, \d+ paused")
        )
        row = sets.get_by_role("row").filter(has_text="gpu")
        expect(row).to_contain_text(re.compile(r"of [\d,]+.*[3-8]\d(\.\d)? % of 8,192"))
        page.goto("/#/tenant/coder")
        expect(page.get_by_role("heading", name=re.compile("^Sessions"))).to_contain_text(re.compile(r"[1-9]\d* held"))
        first = page.get_by_role("region", name="Sessions").locator("tbody tr").first
        expect(first).to_contain_text(re.compile(r"[0-9a-f]{16} of [0-9a-f]{16}"))
        expect(first).to_contain_text(re.compile(r"held for [\d.]+ m?s"))
        expect(first).to_contain_text(
            re.compile(r"its [\d,]+ tokens have no room in .*; until about \d\d:\d\d:\d\d at the latest")
        )
    finally:
        stop()


def test_a_tenant_without_sessions_says_how_to_name_them(visit, background, gateway):
    background.run(Callers(gateway.url).call_once_each(["chat"]))
    page = visit(gateway).sign_in(gateway.key, "#/tenant/chat")
    expect(page.locator("main")).to_contain_text(
        "No session of an agent is known. A call names its session with the header"
    )


def test_a_what_if_of_agents_asks_what_differs_and_says_what_became_of_sessions(visit, loaded, keys):
    """By an answer that is made up: no agent calls here."""
    tenants = {"chat": {"service": 1, "ttft_p50_s": 1.0}}
    run = {"requests": 30, "served": 30, "throughput_tokens_per_s": 9, "ttft_p50_s": 1.0, "tenants": tenants}
    sessions = {
        "sessions": 24, "turns": 288, "turn_wait_p50_s": 0.002, "turn_wait_p99_s": 21.0, "turn_wait_max_s": 22.0,
        "session_p50_s": 48.0, "session_p90_s": 60.0, "held_turns": 17, "held_mean_s": 11.0, "held_max": 19,
        "paused_max": 44, "pauses": 70, "yields": 5, "etas": {"engine-1": 0.81},
    }  # fmt: skip
    answer = {
        "id": "one", "state": "done", "progress": 1, "weights": {}, "trust": None, "closed_loop_calls": 21,
        "happened": run | {"sessions": None}, "replayed": run | {"sessions": sessions},
        "instead": run | {"sessions": sessions},
    }  # fmt: skip
    asked = []

    def begin(route):
        asked.append(route.request.post_data_json)
        route.fulfill(status=202, json=answer)

    page = visit(loaded).sign_in(keys["operator"], "#/what-if")
    page.route("**/admin/v1/what-ifs", begin)
    page.route("**/admin/v1/what-ifs/one", lambda route: route.fulfill(json=answer))
    page.get_by_role("button", name="Play it").click()
    expect(page.get_by_role("region", name="All together")).to_be_visible()
    assert "sessions" not in asked[0]
    page.get_by_text("Agents and KV cache").click()
    page.get_by_label("KV cache of each engine, times").fill("2")
    page.get_by_label("Turns of agents").select_option("never wait for room")
    page.get_by_label("Part of the KV cache for contexts").fill("0.5")
    page.get_by_role("button", name="Play it").click()
    rows = page.get_by_role("region", name="All together")
    for told in ("19 / 44", "17 (11 s)", "70 (5)", "0.81"):
        expect(rows).to_contain_text(told)
    assert asked[1]["sessions"] == {"kv_scale": 2, "held": False, "room_ratio": 0.5}
    page.goto("/#/now")
    page.goto("/#/what-if")
    with page.expect_response("**/admin/v1/what-ifs"):  # the answer before may still be there
        page.get_by_role("button", name="Play it").click()
    expect(rows).to_be_visible()
    assert "sessions" not in asked[2], "the form is new"
