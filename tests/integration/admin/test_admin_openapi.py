"""The OpenAPI document is true: schemathesis asks a running gateway all that it says, and much that it denies."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from admin_rig import admin
from gateway_rig import scripted

from gateway.admin import server
from gateway.identity import throttle

SEED = 20261120
# Phases, and examples per operation: the short one has what the document shows and a made-up request, the long
# one all of its boundaries and sequences of calls, too, and with FAIRLEAD_ADMIN_EXAMPLES=1000 as many of each.
SHORT = ("examples,fuzzing", 1)
LONG = ("examples,coverage,fuzzing,stateful", int(os.environ.get("FAIRLEAD_ADMIN_EXAMPLES", "8")))
# A request that fits the document may still not go together with what is there, or be for another version of it.
CONFIG = '[checks.positive_data_acceptance]\nexpected-statuses = ["2xx", 401, 403, 404, 409, 412]\n'
SCHEMATHESIS = shutil.which("schemathesis", path=str(Path(sys.executable).parent))


class Forgetful(server.Repeats):
    """Knows of no request that it is sent again."""

    async def once(self, caller, key, request, run):
        return await run()


@pytest.fixture
async def api(tmp_path, monkeypatch):
    # It signs in wrongly over and over, to see that this is refused: that it is told to wait is tested elsewhere.
    monkeypatch.setattr(throttle, "FAILURES_BURST", 1e9)
    # It takes a few keys for all that it asks: that another request by a key is refused is tested elsewhere, too.
    monkeypatch.setattr(server, "Repeats", Forgetful)
    async with scripted() as backend, admin(tmp_path, backend, state=tmp_path / "state") as asker:
        await asker.post("/tiers", {"id": "gold"})
        await asker.post("/keys", {"tenant": "declared"})
        yield asker


@pytest.mark.parametrize(
    ("phases", "examples_max"),
    [pytest.param(*SHORT, id="short"), pytest.param(*LONG, id="long", marks=pytest.mark.long)],
)
async def test_schemathesis_finds_nothing(api, tmp_path, phases, examples_max):
    """Takes seconds: each route is asked what its schema allows and what it does not."""
    assert SCHEMATHESIS, "schemathesis is installed beside python"
    tmp_path.joinpath("schemathesis.toml").write_text(CONFIG)
    command = [
        SCHEMATHESIS, "--config-file", "schemathesis.toml", "run", f"{api.url}/admin/v1/openapi.json",
        "--header", f"Authorization: Bearer {api.key}", "--phases", phases,
        "--max-examples", str(examples_max), "--seed", str(SEED), "--checks", "all", "--no-color",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=dict(os.environ), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-20_000:]


async def test_every_path_and_method_of_the_document_is_served_and_no_other(api):
    document = (await api.get("/openapi.json")).json
    assert document["openapi"].startswith("3.1.")
    for path, operations in document["paths"].items():
        for method in ("get", "post", "put", "patch", "delete"):
            reply = await api.ask(method.upper(), path.replace("{id}", "nobody"), {})
            assert (reply.status == 405) == (method not in operations), (method, path, reply.body)
