"""A disk that is full, or cannot sync: the admin port says so, no client notices, and nothing counts twice."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest
from admin_rig import within
from gateway_process import serving
from gateway_rig import PATIENCE_S, engine
from preloading import compile_shim

SHIM = Path(__file__).with_name("failing_disk.c")
CALLS = 12


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return compile_shim(SHIM, tmp_path_factory.mktemp("shim"))


async def make(process, name):
    status, _ = await process.admin("POST", "/admin/v1/tenants", {"id": name})
    return status


async def names(process):
    _, said = await process.admin("GET", "/admin/v1/tenants")
    return {entry["id"] for entry in said["items"]}


async def all_are_counted(process):
    _, said = await process.admin("GET", "/admin/v1/usage")
    return sum(row["requests"] for row in said["items"]) == CALLS


@pytest.mark.parametrize("fault", ["fsync", "full"])
async def test_while_the_disk_fails_changes_are_refused_and_calls_go_on(tmp_path, shim, fault):
    failing = tmp_path / fault
    environment = {"LD_PRELOAD": str(shim), "FAILING_DISK": str(tmp_path)}
    async with engine() as server:
        async with serving(tmp_path, server, environment=environment) as process:
            assert await make(process, "before") == 201
            failing.touch()
            for name in ("during", "again"):
                assert await make(process, name) == 503
            assert await asyncio.gather(*(process.ask("alice") for _ in range(CALLS))) == [200] * CALLS
            assert "during" not in await names(process)
            failing.unlink()
            assert await make(process, "after") == 201
            await within(partial(all_are_counted, process), PATIENCE_S)
            await process.end(signal.SIGKILL)
        async with serving(tmp_path, server) as process:
            assert {"before", "after"} <= await names(process)
            assert not {"during", "again"} & await names(process)
            assert await all_are_counted(process)
