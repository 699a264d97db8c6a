"""The configuration changes, backends come and go: it takes effect at once, and what runs is unharmed."""

import asyncio
import contextlib
import os
import signal
import socket
from urllib.parse import urlsplit

import aiohttp
import yaml
from forked import FAIRLEAD, fork
from gateway_rig import CHAT, MODEL, SLOW, answer, bearer, call, engine, gateway, scripted, snapshots_of, until

from backends.discovery import Dns
from gateway.config.key_file import add_key
from gateway.config.load import load_config
from gateway.config.reloading import Reloading
from gateway.store.sqlite import SqliteStore
from policies.facts import PolicyChanged

SECRET = "0123456789abcdef"


class File:
    """A configuration file, and a gateway's watch on it."""

    def __init__(self, folder, **sections):
        self.path = folder / "fairlead.yaml"
        (folder / "keys").touch()
        auth = {"mode": "keys", "secret": SECRET, "keys_file": str(folder / "keys")}
        as_the_rig = {
            "listen": {"port": 0},
            "access_log": {"enabled": False},
            "health": {"idle_s": 0.1, "busy_s": 0.05},
            "shutdown": {"lame_duck_s": 0.0, "drain_s": 5.0},
        }
        self.sections = {**as_the_rig, "auth": auth, "tenants": {"alice": {}, "bob": {}}, **sections}
        self.write()

    def write(self, **sections):
        self.sections |= sections
        self.path.write_text(yaml.safe_dump(self.sections))

    def key(self, tenant):
        return add_key(
            self.path.parent / "keys", tenant=tenant, secret=SECRET.encode(), created_at="2026-01-01T00:00:00+00:00"
        )

    @contextlib.asynccontextmanager
    async def served(self, *backends):
        entries = [{"name": f"b{number}", "url": backend.url} for number, backend in enumerate(backends)]
        self.write(backends=entries)
        sections = {name: section for name, section in self.sections.items() if name != "backends"}
        config = load_config(self.path)
        async with gateway(*entries, store=SqliteStore(None), folder=self.path.parent, **sections) as rig:
            reloading = Reloading(self.path, config, look_s=0.02)
            task = asyncio.create_task(rig.gateway.watch(reloading))
            try:
                yield rig, reloading
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def metrics(rig):
    return (await rig.gateway.metrics.page()).text or ""


def serves(rig, backend_id):
    """Whether the scheduler would send to it."""
    views = [each.backends.get(backend_id) for each in snapshots_of(rig.gateway.pools).values()]
    return any(view is not None and view.available for view in views)


async def test_tenants_and_keys_of_the_file_are_served_as_soon_as_it_says_so(tmp_path):
    file = File(tmp_path)
    async with engine() as server, file.served(server) as (rig, _):
        key = file.key("alice")  # a new key alone is news too

        async def is_known(wanted):
            return (await rig.post(headers=bearer(wanted))).status == 200

        async def until_served(wanted):
            async with asyncio.timeout(5):
                while not await is_known(wanted):  # noqa: ASYNC110 - it is asked over HTTP
                    await asyncio.sleep(0.02)

        await until_served(key)
        carol = file.key("carol")
        file.write(tenants={"carol": {"weight": 3}})
        await until_served(carol)
        assert not await is_known(key), "alice is in the file no more"


async def test_what_streams_goes_on_while_backends_and_weights_change(tmp_path):
    file = File(tmp_path)
    key = file.key("alice")
    async with engine(**SLOW) as one, engine() as two, file.served(one) as (rig, _):
        stream = asyncio.create_task(rig.post(call(stream=True, max_tokens=40), headers=bearer(key)))
        await until(lambda: rig.snapshot().in_flight_requests == 1)
        file.write(tenants={"alice": {"weight": 2}}, backends=[{"name": "b1", "url": two.url}])
        await until(lambda: rig.gateway.backends.backend_ids() == ["b1"])
        await until(lambda: serves(rig, "b1"))
        assert (await rig.post(headers=bearer(key))).status == 200
        reply = await stream
        assert (reply.status, reply.events[-1]) == (200, "[DONE]")
        await until(lambda: "b0" not in rig.gateway.backends.states(), 5)


async def test_an_invalid_file_changes_nothing_and_says_what_is_wrong(tmp_path, caplog):
    file = File(tmp_path)
    key = file.key("alice")
    async with engine() as server, file.served(server) as (rig, reloading):
        await until(lambda: rig.gateway.backends.states() == {"b0": "healthy"})
        for wrong in ({"tenants": {"alice": {"weight": -1}}}, {"tennants": {}}, {"backends": [{"url": "ftp://x"}]}):
            kept = dict(file.sections)
            caplog.clear()
            file.write(**wrong)
            await until(lambda: "is not valid" in caplog.text)
            assert str(file.path) in caplog.text
            assert "fairlead_config_reload_failed 1.0" in await metrics(rig)
            file.sections = kept
        assert (await rig.post(headers=bearer(key))).status == 200
        caplog.clear()
        file.path.unlink()
        await until(lambda: "is not valid" in caplog.text)
        assert (await rig.post(headers=bearer(key))).status == 200
        file.write()
        await until(lambda: not reloading.has_failed)
        assert "fairlead_config_reload_failed 0.0" in await metrics(rig)


async def test_what_cannot_change_while_it_runs_is_said_and_waits(tmp_path, caplog):
    caplog.set_level("INFO")
    file = File(tmp_path)
    async with engine() as server, file.served(server) as (_, reloading):
        file.write(queue={"wait_s_max": 7}, scheduling={"fairness": "drr", "share_ratio_max": 0.8})
        await until(lambda: "waits for the next start: queue.wait_s_max, scheduling.share_ratio_max" in caplog.text)
        caplog.clear()
        reloading.ask()  # nothing is different from what is asked for, and it is read all the same
        await until(lambda: "is in force" in caplog.text)


async def test_what_waits_for_the_next_start_is_said_whenever_the_file_is_read_and_is_not_shown_as_in_force(
    tmp_path, caplog
):
    caplog.set_level("INFO")
    file = File(tmp_path)
    async with engine() as server, file.served(server) as (rig, reloading):
        before = rig.gateway._management.scheduling_of(MODEL)
        pool = {"scheduling": {"fairness": "drr", "preempt_service": 9}}
        file.write(listen={"port": 0, "show_backend": True}, scheduling={"share_ratio_max": 0.8}, pools={MODEL: pool})
        late = f"listen.show_backend, pools.{MODEL}.scheduling.preempt_service, scheduling.share_ratio_max"
        await until(lambda: f"next start: {late}" in caplog.text)
        now = rig.gateway._management.scheduling_of(MODEL)
        assert now.fairness.policy == "drr"
        assert (now.share_ratio_max, now.preempt_service) == (before.share_ratio_max, before.preempt_service)
        caplog.clear()
        reloading.ask()
        await until(lambda: f"next start: {late}" in caplog.text)
        caplog.clear()
        file.write(listen={"port": 0}, scheduling={}, pools={})
        await until(lambda: "the configuration is in force" in caplog.text)
        assert "next start" not in caplog.text, "it is as it was at the start"


async def test_the_order_of_a_running_pool_follows_the_file(tmp_path):
    file = File(tmp_path)
    async with engine() as server, file.served(server) as (rig, _):
        await until(lambda: rig.gateway.pools.dispatchers)
        (dispatcher,) = rig.gateway.pools.dispatchers.values()
        changes = []
        told = dispatcher.told
        dispatcher.told = lambda fact: (isinstance(fact, PolicyChanged) and changes.append(fact), told(fact))
        file.write(scheduling={"fairness": "drr"})
        await until(lambda: changes)
        assert changes[0].fairness.name == "drr"
        file.write(tenants={"alice": {"weight": 5}, "bob": {}})
        await asyncio.sleep(0.2)
        assert len(changes) == 1, "an order starts anew when it is another one, not whenever the file is read"


async def test_servers_behind_a_name_are_backends_while_the_name_has_them(monkeypatch):
    addresses = ["127.0.0.1"]

    lookup = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host, port, **options):
        if host != "vllm.llm.svc":
            return await lookup(host, port, **options)
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in addresses]

    async with scripted(answer()) as backend:
        port = urlsplit(backend.url).port
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        monkeypatch.setitem(Dns.__init__.__kwdefaults__, "every_s", 0.02)
        source = {"dns": "vllm.llm.svc", "port": port, "backend": {"requests_running_max": 3}}
        async with gateway(store=SqliteStore(None), discovery=[source], tiers={"gold": {}}) as rig:
            registry = rig.gateway._management.registry
            gold = registry.get("tiers", "gold")
            found = f"127.0.0.1:{port}"
            await until(lambda: serves(rig, found))
            assert (await rig.post()).status == 200
            assert rig.snapshot().backends[found].requests_limit == 3
            addresses[:] = ["127.0.0.2"]  # nothing listens there
            await until(lambda: rig.gateway.backends.backend_ids() == [f"127.0.0.2:{port}"])
            assert registry.get("tiers", "gold") is gold, "discovery looks at nothing but backends"
            assert (await rig.post()).status == 503
            addresses[:] = ["127.0.0.1", "127.0.0.2"]
            await until(lambda: serves(rig, found))
            assert (await rig.post()).status == 200


async def line_with(process, text):
    while text not in (line := await process.stderr.readline()):
        assert line, "the process has ended"
    return line


async def test_at_sighup_a_process_reads_everything_again_and_serves_on(tmp_path):
    """The file is as it was, so it would not be read again; what it names is not there any more."""
    (tmp_path / "backend-key").write_text("secret")
    async with scripted() as backend:
        file = File(tmp_path, listen={"port": 0}, backends=[{"url": backend.url, "api_key_file": "backend-key"}])
        key = file.key("alice")
        command = ("serve", "-c", str(file.path))
        process = await fork(FAIRLEAD, *command, folder=tmp_path, environment=dict(os.environ))
        try:
            async with asyncio.timeout(60), aiohttp.ClientSession() as session:
                url = (await line_with(process, b"fairlead serves")).decode().split()[2].rstrip(".")
                (tmp_path / "backend-key").unlink()
                process.send_signal(signal.SIGHUP)
                await line_with(process, b"is not valid, and the last one that was stays in force")
                async with session.post(url + CHAT, json=call(), headers=bearer(key)) as response:
                    assert response.status == 200
                process.send_signal(signal.SIGTERM)
                await process.communicate()
                assert process.returncode == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
