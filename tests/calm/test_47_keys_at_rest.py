"""A key that was made and used is nowhere as it is: database, Redis, logs, metrics, admin API. Revoked, it ends."""

import asyncio
import json

import redis
from gateway_process import serving
from gateway_rig import scripted
from redis_server import RedisServer

from tests.calm.rig import Watch


def test_the_key_is_found_nowhere_and_ends_within_2_s(tmp_path, figure):
    asyncio.run(search(tmp_path, figure))


async def search(tmp_path, figure):
    where, home = tmp_path / "redis", tmp_path / "home"
    where.mkdir()
    home.mkdir()
    log = home / "access.log"
    with RedisServer(where) as server:
        settings = {
            "auth": {"mode": "keys", "secret": "0123456789abcdef"},
            "log": {"level": "debug"},
            "access_log": {"enabled": True, "path": str(log)},
            "state": {"redis": {"url": server.url}},
        }
        async with scripted() as backend, serving(home, backend, settings=settings) as process:
            assert (await process.admin("POST", "/admin/v1/tenants", {"id": "alice"}))[0] == 201
            status, made = await process.admin("POST", "/admin/v1/keys", {"tenant": "alice"})
            assert status == 201
            key = made["secret"]
            assert await process.ask(key) == 200
            said = [json.dumps((await process.admin("GET", path))[1]) for path in (
                "/admin/v1/keys", f"/admin/v1/keys/{made['id']}", "/admin/v1/audit", "/admin/v1/usage", "/metrics",
                "/admin/v1/tenants", "/admin/v1/state",
            )]  # fmt: skip
            dumped = dump(server.port)
            watch = Watch()
            status, changed = await process.admin("PATCH", f"/admin/v1/keys/{made['id']}", {"revoked": True})
            assert status == 200, changed
            while await process.ask(key) != 401:
                assert watch.s < 10
            revoked_s = watch.s
            said.append(await process.end(15))
        files = b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file() and file.name != "admin-key")
        places = {"files": files, "Redis": dumped, "what it said": "".join(said).encode()}
        assert all(len(content) > 100 for content in places.values())
        hits = sum(secret.encode() in content for secret in (key, key[8:]) for content in places.values())
        figure(47, "places with the key", hits, f"of {len(places)}", target="0")
        figure(47, "time until a revoked key is rejected", revoked_s, "s", target="<= 2")
        assert hits == 0
        assert key[-4:].encode() in places["what it said"], "its last four characters name it"
        assert revoked_s <= 2


def dump(port):
    """All that Redis holds."""
    client = redis.Redis(port=port)
    return b"".join(name + (client.dump(name) or b"") for name in client.scan_iter())
