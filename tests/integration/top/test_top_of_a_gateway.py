"""`fairlead top` beside a gateway that is a process of its own, while two tenants send more than the backend can do."""

import asyncio
import contextlib
import json
import os

from forked import FAIRLEAD, fork
from gateway_process import serving
from gateway_rig import engine
from terminal_rig import PATIENCE_S, terminal

SETTINGS = {
    "auth": {"trusted_proxies": ["127.0.0.1/32"]},
    "tiers": {"default": {}, "urgent": {"weight": 3}},
    "tenants": {"greedy": {}, "modest": {"tier": "urgent"}},
}
SLOTS = 4
TITLES = 3  # the line of them


@contextlib.asynccontextmanager
async def traffic(process, **callers):
    """So many callers of each tenant, one call after the other."""

    async def on(tenant):
        while True:
            await process.ask(tenant, max_tokens=32)

    tasks = [asyncio.create_task(on(tenant)) for tenant, count in callers.items() for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cell(shown, row, title):
    """What stands in this row below the title, which ends where its numbers end."""
    titles = shown.lines[TITLES] if title in shown.lines[TITLES] else title
    found = next((line for line in shown.lines if line.startswith(row)), "")
    return found[: titles.index(title) + len(title)].split(" ")[-1]


def number(shown, row, title):
    text = cell(shown, row, title).removesuffix("%")
    return float(text) if text.replace(".", "").isdigit() else 0.0


async def test_it_shows_what_is_served_and_what_waits(tmp_path):
    async with (
        engine(speed=0.02) as server,
        serving(tmp_path, server, requests_running_max=SLOTS, settings=SETTINGS) as process,
        traffic(process, greedy=12, modest=8),
        terminal("top", "--config", str(tmp_path / "fairlead.yaml"), "--url", process.admin_url, cwd=tmp_path) as shown,
    ):
        await shown.until(lambda: number(shown, "greedy", "QUEUED") and number(shown, "modest", "QUEUED"))
        await shown.until(lambda: number(shown, "modest", "SHARE") > 1.5 * number(shown, "greedy", "SHARE") > 0)
        await shown.until(lambda: abs(number(shown, "modest", "DUE") - 75) < 5)  # 3 of 4 by weights, and both wait
        shown.press("2")
        await shown.shows("urgent", "default", "BOUND")
        shown.press("3")
        await shown.until(lambda: cell(shown, "b0", "REQUESTS") == f"{SLOTS}/{SLOTS}")
        shown.press("4")
        await shown.until(lambda: shown.text.count("queued") > 3 and shown.text.count("running") > 3)
        await shown.shows("WHY IT WAITS", "fl-", "b0")
        shown.press("1", "\r")
        await shown.shows("output_tokens_per_s", "REQUEST", "fl-")
        shown.press("q")
        assert await shown.end() == 0


async def test_scripts_get_the_state_once(tmp_path):
    key = str(tmp_path / "admin-key")
    async with (
        engine(speed=0.02) as server,
        serving(tmp_path, server, requests_running_max=SLOTS, settings=SETTINGS) as process,
        traffic(process, greedy=12),
    ):
        async with asyncio.timeout(PATIENCE_S):
            pool = {}
            while not pool.get("tenants", {}).get("greedy", {}).get("queued"):
                command = ("top", "--once", "--json", "--url", process.admin_url, "--key-file", key)
                run = await fork(FAIRLEAD, *command, folder=tmp_path, environment=dict(os.environ))
                out, _ = await run.communicate()
                pool = json.loads(out)["pools"]["tiny"]
        assert pool["in_flight"] == SLOTS
        assert pool["backends"]["b0"]["bound_by"] == "slots"
        for form, has in (("wide", "WAITS FOR"), ("yaml", "pools:"), ("json", '"pools"')):
            command = ("top", "-o", form, "--url", process.admin_url, "--key-file", key)
            run = await fork(FAIRLEAD, *command, folder=tmp_path, environment=dict(os.environ))
            out, _ = await run.communicate()
            assert has in out.decode(), form
