"""`fairlead export` and `import`: what the API has made, taken out of one state and into another."""

import asyncio
import json

import pytest
from redis_server import RedisServer
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config import load_config
from gateway.config.state import StateSection
from gateway.registry.entries import declared_by
from gateway.registry.registry import Registry
from gateway.store.assembly import make_store

KEY = {"hmac": "cd" * 32, "last_four": "wxyz", "created_at": "2026-11-20T10:00:00Z", "tenant": "bob"}
CONFIG = """
auth: {mode: open, trusted_proxies: [10.0.0.0/8]}
tenants: {alice: {weight: 2}}
"""


def configured(tmp_path, name, state="{}"):
    folder = tmp_path / name
    folder.mkdir()
    path = folder / "fairlead.yaml"
    path.write_text(f"{CONFIG}state: {state}\n")
    return path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


async def serving(path):
    """The registry of a gateway that runs with this configuration."""
    config = load_config(path)
    registry = Registry(make_store(config.state, path), declared_by(config, []))
    await registry.start()
    return registry


async def fill(registry):
    await registry.changes.create("tiers", "gold", {"weight": 4}, actor="ann")
    await registry.changes.create("tenants", "bob", {"tier": "gold"}, actor="ann")
    await registry.changes.create("keys", "k1", KEY, actor="ann")
    await registry.changes.patch("tenants", "alice", {"weight": 9}, actor="ann")
    await registry.changes.create("pools", "a/model", {"scheduling": {"fairness": "drr"}}, actor="ann")
    await registry.changes.create("backends", "b1", {"url": "http://vllm-1:8000", "draining": True}, actor="ann")


def bodies(registry):
    kinds = ("tiers", "tenants", "keys", "backends", "pools")
    return {(entry.kind, entry.name): dict(entry.body) for kind in kinds for entry in registry.entries(kind)}


async def test_what_was_exported_is_in_force_where_it_is_imported_while_both_gateways_run(tmp_path):
    one, two = (configured(tmp_path, name) for name in ("one", "two"))
    first, second = await serving(one), await serving(two)
    await fill(first)
    text = await asyncio.to_thread(run, "export", "--config", one)
    assert "alice" in json.loads(text)["tenants"], "what the API says of a declared tenant is the API's"
    export = tmp_path / "export.json"
    export.write_text(text)
    assert "6 made or changed" in await asyncio.to_thread(run, "import", export, "--config", two)
    await second.refresh()
    assert bodies(second) == bodies(first)
    assert {entry.actor for entry in await second.audit_log.entries()} == {"fairlead import"}
    assert "0 made or changed" in await asyncio.to_thread(run, "import", export, "--config", two)
    await first.stop()
    await second.stop()


async def test_state_in_redis_is_exported_and_imported_there(tmp_path):
    with RedisServer(tmp_path) as server:
        paths = [
            configured(tmp_path, prefix, json.dumps({"redis": {"url": server.url, "prefix": prefix}}))
            for prefix in ("one", "two")
        ]
        first, second = [await serving(path) for path in paths]
        await fill(first)
        export = tmp_path / "export.json"
        export.write_text(await asyncio.to_thread(run, "export", "--config", paths[0]))
        await asyncio.to_thread(run, "import", export, "--config", paths[1])
        for _ in range(100):
            if bodies(second) == bodies(first):
                break
            await asyncio.sleep(0.02)
        assert bodies(second) == bodies(first)
        await first.stop()
        await second.stop()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not an export"),
        ('{"fairlead_export": 2}', "not an export"),
        ('{"fairlead_export": 1, "planets": {}}', "planets"),
        ('{"fairlead_export": 1, "tenants": []}', "tenants"),
        ('{"fairlead_export": 1, "tenants": {"bob": {"weight": -1}}}', "tenants.bob.weight"),
        ('{"fairlead_export": 1, "tiers": {"gold": {}}, "tenants": {"bob": {"tier": "none"}}}', "none"),
    ],
)
async def test_an_import_that_is_wrong_says_why_and_makes_nothing(tmp_path, text, said):
    path = configured(tmp_path, "one")
    registry = await serving(path)
    before = bodies(registry)
    export = tmp_path / "export.json"
    export.write_text(text)
    assert said in await asyncio.to_thread(run, "import", export, "--config", path, code=1)
    await registry.refresh()
    assert bodies(registry) == before
    await registry.stop()


def test_where_nothing_is_kept_nothing_is_exported(tmp_path):
    assert "state.file" in run("export", code=1)
    assert "no state file" in run("export", "--config", configured(tmp_path, "one"), code=1)
    assert StateSection() == load_config(configured(tmp_path, "two")).state
