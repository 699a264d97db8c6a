"""A gateway that takes calls, and so says that it is ready, answers at every other port, too."""

import asyncio
import socket

from admin_rig import admin

from gateway.ports.listener import Listener


async def can_connect(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_the_admin_port_and_the_port_of_the_metrics_are_open_before_calls_are_taken(tmp_path, monkeypatch):
    metrics, start = free_port(), Listener.start
    port = free_port()
    open_before = {}

    async def look_and_start(listener):
        looked = [await can_connect(port), await can_connect(metrics)]
        url = await start(listener)
        open_before[url] = looked
        return url

    monkeypatch.setattr(Listener, "start", look_and_start)
    key_file = str(tmp_path / "admin-key")
    backend = {"name": "down", "url": f"http://127.0.0.1:{free_port()}"}
    ports = {"metrics": {"port": metrics}, "admin": {"enabled": True, "port": port, "key_file": key_file}}
    async with admin(tmp_path, backend, **ports) as operator:
        assert open_before[operator.rig.url] == [True, True]
