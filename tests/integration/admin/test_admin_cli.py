"""`fairlead admin` does from the shell what the API does."""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from admin_rig import admin
from gateway_rig import bearer, call, scripted, until
from typer.testing import CliRunner

from gateway.admin import server
from gateway.admin.command import asking, output
from gateway.cli import app
from gateway.config.sections import TenantSection


@dataclass
class Printed:
    text: str
    errors: str

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def lines(self):
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
async def shell(tmp_path):
    """Runs a command, and gives what it printed."""
    async with scripted() as backend, admin(tmp_path, backend) as api:

        async def run(*arguments, exit_code=0):
            given = ["admin", "--url", api.url, "--key-file", str(tmp_path / "admin-key"), *arguments]
            result = await asyncio.to_thread(CliRunner().invoke, app, given)
            assert result.exit_code == exit_code, result.output
            return Printed(result.stdout, result.stderr)

        run.api = api
        yield run


async def test_a_tenant_from_the_shell_from_its_making_to_its_end(shell):
    made = await shell("create", "tenants", "id=org/alice", "weight=2", "envelope.ttft_ms=500")
    assert made.json["envelope"] == {"ttft_ms": 500, "tpot_ms": None}
    shown = await shell("show", "tenants", "org/alice")
    etag = shown.errors.removeprefix("version: ").strip()
    changed = await shell("set", "tenants", "org/alice", "weight=3", "--if-match", etag)
    assert changed.json["weight"] == 3
    for command in (("delete", "tenants", "org/alice"), ("set", "tenants", "org/alice", "weight=4")):
        refused = await shell(*command, "--if-match", etag, exit_code=1)
        assert "changed" in refused.errors
    assert (await shell("show", "tenants", "org/alice")).json["weight"] == 3
    assert [each["id"] for each in (await shell("list", "tenants")).lines] == ["declared", "org/alice"]
    await shell("delete", "tenants", "org/alice")
    assert "no such tenant" in (await shell("show", "tenants", "org/alice", exit_code=1)).errors


async def test_put_makes_or_replaces_and_with_new_only_makes(shell):
    assert (await shell("put", "tenants", "a", "weight=2", "in_flight_max=3", "--new")).json["weight"] == 2
    assert "is there" in (await shell("put", "tenants", "a", "--new", exit_code=1)).errors
    replaced = (await shell("put", "tenants", "a", "weight=3")).json
    assert (replaced["weight"], replaced["in_flight_max"]) == (3, None)
    etag = (await shell("show", "tenants", "a")).errors.removeprefix("version: ").strip()
    assert (await shell("put", "tenants", "a", "--if-match", etag)).json["weight"] == 1
    assert "changed" in (await shell("put", "tenants", "a", "--if-match", etag, exit_code=1)).errors


async def test_a_create_that_is_repeated_by_its_key_is_done_once(shell):
    command = ("create", "keys", "tenant=declared", "--idempotency-key", "a-1")
    first, again = await shell(*command), await shell(*command)
    assert first.json == again.json
    command = ("rotate", first.json["id"], "--idempotency-key", "a-2")
    assert (await shell(*command)).json == (await shell(*command)).json
    assert len((await shell("list", "keys")).lines) == 2


async def test_what_is_wrong_is_said_field_by_field(shell):
    refused = await shell("create", "tenants", "id=a", "weight=-1", "speed=2", exit_code=1)
    assert refused.errors.splitlines() == [
        "weight: must be at least 1e-15",
        f"speed: there is no such field (there are: {', '.join([*TenantSection.model_fields, 'id'])})",
    ]
    assert "NAME=VALUE" in (await shell("create", "tenants", "alice", exit_code=1)).errors
    wrong = await shell("history", "nothing", exit_code=1)
    assert wrong.errors == "query.of: must be a pool, tier, group, tenant or backend, like tenant:chat\n"
    assert (await shell("note", " \t", exit_code=1)).errors.endswith("1 to 200 characters, and no control characters\n")


async def test_a_key_is_made_rotated_and_revoked(shell):
    made = (await shell("create", "keys", "tenant=declared")).json
    new = (await shell("rotate", made["id"], "--overlap-s", "0")).json
    rig = shell.api.rig
    assert (await rig.get("/v1/models", headers=bearer(made["secret"]))).status == 401
    assert (await rig.get("/v1/models", headers=bearer(new["secret"]))).status == 200
    await shell("set", "keys", new["id"], "revoked=true")
    assert (await rig.get("/v1/models", headers=bearer(new["secret"]))).status == 401
    assert [each["tenant"] for each in (await shell("list", "keys", "--tenant", "declared")).lines] == ["declared"] * 2


def run_with_full_output(*arguments):
    program = Path(sys.executable).with_name("fairlead")
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            [program, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_a_key_whose_secret_cannot_be_printed_is_named(shell, tmp_path, form):
    """Made or rotated: it is at the gateway already, and its secret is shown this once."""
    old = (await shell("create", "keys", "tenant=declared")).json["id"]
    known = {old}
    for command in (["create", "keys", "tenant=declared"], ["rotate", old]):
        given = ["admin", "--url", shell.api.url, "--key-file", str(tmp_path / "admin-key"), *command, "-o", form]
        result = await asyncio.to_thread(run_with_full_output, *given)
        keys = {each["id"] for each in (await shell("list", "keys")).lines}
        (new,) = keys - known
        known = keys
        assert result.returncode == 1
        assert result.stderr.splitlines() == [
            f"the key {new} was made, and its secret is lost: delete the key",
            "the output cannot be written: No space left on device",
        ]


async def test_a_backend_a_pool_usage_state_and_the_audit_log(shell):
    async with scripted() as other:
        await shell("create", "backends", "id=other", f"url={other.url}")
        await until(lambda: other.polls)
        assert (await shell("set", "backends", "other", "draining=true")).json["draining"]
    assert (await shell("set", "pools", "tiny", "fairness.policy=drr")).json["fairness"]["policy"] == "drr"
    key = (await shell("create", "keys", "tenant=declared")).json
    assert (await shell.api.rig.post(headers=bearer(key["secret"]))).status == 200
    assert (await shell("state")).json["pools"][0]["pool"] == "tiny"
    assert (await shell("cluster")).json["role"] == "leader"
    assert (await shell("state", "--tenants")).lines[0]["tenant"] == "declared"
    await asyncio.sleep(1)  # usage is written once a second
    (used,) = (await shell("usage", "--tenant", "declared")).lines
    assert (used["key"], used["model"], used["requests"], used["output_tokens"]) == (key["id"], "tiny", 1, 3)
    assert (await shell("audit", "--limit", "1")).lines[0]["kind"] == "keys"
    assert (await shell("openapi")).json["openapi"].startswith("3.1")


async def test_lists_go_on_after_a_page_and_stop_where_they_are_told(shell, monkeypatch):
    monkeypatch.setattr(asking, "PAGE_ROWS", 2)
    for number in range(4):
        await shell("create", "tenants", f"id=t{number}")
    assert [each["id"] for each in (await shell("list", "tenants")).lines] == ["declared", "t0", "t1", "t2", "t3"]
    assert [each["name"] for each in (await shell("audit", "--limit", "3")).lines] == ["t3", "t2", "t1"]
    assert len((await shell("audit")).lines) == 5  # the first says which secret the state is of


OF_OTHER_CLIENTS = {
    ("POST", "/sign-in"),  # the page, with a one-time link
    ("GET", "/me"),  # the page
    ("POST", "/preview"),  # the page
    ("POST", "/demo"),  # the page
    ("DELETE", "/demo"),  # the page
    ("DELETE", "/what-ifs/{id}"),  # `what-if` that is interrupted: test_what_ifs.py
    ("GET", "/live"),  # `fairlead top`
    ("GET", "/groups/{id}/live"),  # `fairlead top` of a group's administrator
}


async def test_amounts_of_money_are_sent_as_they_are_written(shell):
    await shell("create", "tenants", "id=alice", "cost_per_day_max=20.10", "cost_per_month_max=400")
    changed = await shell("set", "tenants", "alice", "cost_per_day_max=0.30")
    assert (changed.json["cost_per_day_max"], changed.json["cost_per_month_max"]) == ("0.30", "400")
    assert (await shell("set", "tenants", "alice", "cost_per_day_max=null")).json["cost_per_day_max"] is None
    periods = 'periods=[{"prompt": 0.10, "output": 2}]'
    made = await shell("create", "prices", "id=m", "currency=EUR", periods)
    assert made.json["periods"][0]["prompt"] == "0.10"


async def test_agents_sessions_are_listed_by_tenant_and_pool(shell):
    api = shell.api
    await api.post("/tenants", {"id": "alice"})
    headers = {**bearer(await api.key_for("alice")), "x-session-id": "one"}
    assert (await api.rig.post(call(), headers=headers)).status == 200
    found = []
    while not found:
        found = (await shell("sessions")).lines
        await asyncio.sleep(0.2)
    (session,) = found
    assert (session["tenant"], session["pool"], session["state"], session["turns"]) == ("alice", "tiny", "idle", 1)
    assert [each["id"] for each in (await shell("sessions", "--tenant", "alice", "--pool", "tiny")).lines] == [
        session["id"]
    ]
    assert (await shell("sessions", "--tenant", "declared")).lines == []
    assert (await shell("sessions", "--pool", "other")).lines == []


async def test_every_operation_of_the_api_has_a_command_and_every_parameter_an_option(shell, monkeypatch, tmp_path):
    asked = set()

    async def recorded(route, request):
        fields = set() if request.query is None else request.query.model_fields_set - {"limit", "cursor"}
        asked.update({(route.method, route.path), *((route.method, route.path, name) for name in fields)})
        return await run(route, request)

    run = server.run
    document = (await shell.api.get("/openapi.json")).json
    monkeypatch.setattr(server, "run", recorded)
    changed = {"keys": "label=y", "backends": "draining=true", "prices": "currency=USD", "aliases": "sticky=session"}
    for kind, fields in (
        ("tiers", ["id=x"]), ("groups", ["id=x"]), ("tenants", ["id=x"]), ("backends", ["id=x", "url=http://127.0.0.1:9"]),
        ("prices", ["id=x", "currency=EUR", 'periods=[{"prompt": "0.1", "output": 1}]']),
        ("aliases", ["id=x", 'models=["tiny"]']), ("keys", []),
    ):  # fmt: skip
        made = (await shell("create", kind, *(fields or ["tenant=x"]))).json
        await shell("list", kind)
        await shell("show", kind, made["id"])
        if kind != "keys":
            await shell("put", kind, made["id"], *fields[1:])
        await shell("set", kind, made["id"], changed.get(kind, "weight=2"))
    await shell("rotate", made["id"])
    for kind in ("keys", "backends", "tenants", "groups", "tiers", "prices", "aliases"):
        await shell("delete", kind, made["id"] if kind == "keys" else "x")
    await shell("list", "keys", "--tenant", "x")
    await shell("list", "pools")
    await shell("show", "pools", "tiny")
    await shell("set", "pools", "tiny", "fairness.policy=vtc")
    await shell("state")
    await shell("state", "--tenants", "--pool", "tiny")
    ended = ("--state", "ended", "--tenant", "x", "--pool", "tiny", "--key", "k", "--model", "m")
    await shell("requests", *ended, "--backend", "b", "--outcome", "completed")
    for command in ("request", "cancel"):
        await shell(command, "never", exit_code=1)
    await shell("try", "x", "tiny", "Say hello.", "--max-tokens", "4")
    assert (await shell.api.rig.post(headers=bearer(await shell.api.key_for("declared")))).status == 200
    await shell("what-if", "minutes=1")
    await shell("cluster")
    if "/admin/v1/state/budgets" in document["paths"]:
        await shell("state", "--budgets")
        await shell("state", "--group", "x")
    await shell("usage", "--tenant", "x", "--first-day", "2026-11-01", "--last-day", "2026-11-02")
    days = ("--first-day", "2026-11-01", "--last-day", "2026-11-02")
    parts = ("--by", "key", "--period", "day", "--group", "g", "--tenant", "x", "--key", "k", "--model", "m")
    await shell("usage", *parts, *days)
    await shell("usage", "last-days")
    await shell("usage", "export", *parts, *days, "--format", "csv")
    (tmp_path / "file").write_text("tiers: {y: {weight: 2}}")
    await shell("apply", "-f", str(tmp_path / "file"))
    await shell("get", "tiers", "-o", "yaml")
    await shell("audit", "--kind", "keys")
    await shell("note", "a deploy")
    await shell("history", "pool:tiny", "--range", "15m")
    await shell("history", "--at", str(time.time() - 90))
    await shell("history", exit_code=1)
    await shell("openapi")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = (method.upper(), path.removeprefix("/admin/v1"))
            if where in OF_OTHER_CLIENTS:
                continue
            names = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
            assert {where, *((*where, name) for name in names - {"limit", "cursor"})} <= asked, where


async def test_a_port_where_nothing_listens_is_said_to_be_one(shell):
    said = await shell("--url", "http://127.0.0.1:1", "state", exit_code=1)
    assert said.errors == "http://127.0.0.1:1 does not answer as an admin port: Connection refused\n"
    said = await shell("--key-file", "/no/such", "state", exit_code=1)
    assert said.errors == "the key cannot be read from /no/such: No such file or directory\n"


@pytest.mark.parametrize("arguments", [("get", "nothing"), ("-o", "xml", "state"), ("usage", "--by", "planet")])
async def test_a_choice_that_there_is_not_is_said_without_words_of_a_library(shell, arguments):
    said = (await shell(*arguments, exit_code=2)).errors
    assert f"'{arguments[-1] if arguments[-1] != 'state' else 'xml'}' is not one of" in " ".join(said.split())
    assert "Value error" not in said


async def test_on_a_terminal_people_get_tables_and_with_json_machines_get_json(shell, monkeypatch):
    await shell("create", "tenants", "id=alice", "weight=2.5", "envelope.ttft_ms=500")
    await shell("create", "keys", "tenant=alice", "label=\x1b[31mred [bold]x")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    header, *rows = (await shell("list", "tenants")).text.splitlines()
    assert header.split() == ["id", "origin", "tier", "weight"], "what matters most, but for the group that none has"
    header, *rows = (await shell("list", "tenants", "-o", "wide")).text.splitlines()
    assert header.split() == ["id", "origin", "tier", "weight", "envelope"]
    assert "in_flight_max" not in header, "no tenant has such a limit"
    assert [row.split()[0] for row in rows if row.split()] == ["alice", "declared"]
    assert "ttft_ms=500" in rows[0]
    assert (await shell("list", "tenants", "--json")).lines[0]["weight"] == 2.5
    assert ["weight", "2.5"] in [line.split() for line in (await shell("show", "tenants", "alice")).text.splitlines()]
    keys = (await shell("list", "keys")).text
    assert "\x1b" not in keys, "what a label holds is nothing to a terminal"
    assert "in_flight_requests" in (await shell("state")).text
    assert (await shell("state", "--json")).json["store_available"]
    assert (await shell("audit", "-o", "wide")).text.splitlines()[1].split()[0] == "3"


def test_shells_complete_commands_and_kinds():
    def completed(words):
        environment = {"_FAIRLEAD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return CliRunner().invoke(app, [], env=environment, prog_name="fairlead").output.split()

    assert completed("fairlead calib") == ["calibrate"]
    assert completed("fairlead admin list ten") == ["tenants"]
