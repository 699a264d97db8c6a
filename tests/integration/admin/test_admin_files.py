"""Files of resources: what is declared is read as one, and applied by field, all of it or nothing."""

import asyncio
import json

import pytest
import yaml
from admin_rig import admin
from gateway_rig import scripted
from typer.testing import CliRunner

from gateway.admin.command import output
from gateway.cli import app

TENANTS = {"alice": {"weight": 2, "in_flight_max": 8}, "red/a": {"group": "red"}}
PRICES = {"m": {"currency": "EUR", "periods": [{"prompt": "0.1", "output": "0.4"}]}}
ALIASES = {"chat": {"models": ["tiny"]}}


@pytest.fixture
async def shell(tmp_path):
    """Runs a command with the target's options before it, or after it; `file` is what is in the file `f`."""
    settings = {"tiers": {"gold": {"weight": 4}}, "groups": {"red": {}}, "prices": PRICES, "aliases": ALIASES}
    async with scripted() as backend, admin(tmp_path, backend, tenants=TENANTS, **settings) as api:

        async def run(*arguments, file=None, exit_code=0, before=(), stdin=None):
            if file is not None:
                (tmp_path / "f").write_text(file)
                arguments = (*arguments, "-f", str(tmp_path / "f"))
            target = ["--url", api.url, "--key-file", str(tmp_path / "admin-key")]
            result = await asyncio.to_thread(
                CliRunner().invoke, app, ["admin", *before, *arguments, *target], input=stdin
            )
            assert result.exit_code == exit_code, result.output
            return result

        run.api = api
        yield run


async def shown(shell, path):
    return (await shell.api.get(path)).json


async def test_a_declared_entry_is_merged_by_field_and_a_second_time_nothing_changes(shell):
    file = "tenants:\n  alice: {weight: 3}\n  bob: {tier: gold, cost_per_day_max: 1.50}\ntiers:\n  gold:\n"
    said = (await shell("apply", file=file)).stdout.splitlines()
    assert said == ["tiers/gold unchanged", "tenants/alice configured", "tenants/bob created"]
    alice = await shown(shell, "/tenants/alice")
    assert (alice["weight"], alice["in_flight_max"], alice["origin"]) == (3, 8, "overridden")
    assert (await shown(shell, "/tenants/bob"))["cost_per_day_max"] == "1.5"
    again = (await shell("apply", file=file.replace("1.50", '"1.500"'))).stdout
    assert again.count("unchanged") == 3
    assert (await shown(shell, "/tiers/gold"))["origin"] == "declared", "what has the file's values is not overridden"
    assert len((await shown(shell, "/audit?kind=tenants"))["items"]) == 2


async def test_diff_says_what_apply_would_change_and_changes_nothing(shell):
    file = "tenants: {alice: {weight: 3, in_flight_max: null}, bob: {}}"
    said = (await shell("diff", file=file, exit_code=1)).stdout
    assert said.splitlines() == [
        "--- tenants/alice now", "+++ tenants/alice in the file", "@@ -1,2 +1 @@",
        "-weight: 2.0", "-in_flight_max: 8", "+weight: 3.0",
        "--- tenants/bob now", "+++ tenants/bob in the file", "@@ -0,0 +1 @@", "+{}",
    ]  # fmt: skip
    assert (await shown(shell, "/tenants/alice"))["weight"] == 2
    dry = await shell("apply", "--dry-run", file=file)
    assert dry.stdout.splitlines() == ["tenants/alice configured (dry run)", "tenants/bob created (dry run)"]
    assert (await shell.api.get("/tenants/bob")).status == 404
    await shell("apply", file=file)
    assert (await shell("diff", file=file)).stdout == ""


async def test_all_of_a_file_is_applied_or_nothing_and_every_wrong_field_is_named(shell):
    wrong = "tenants:\n  bob: {weight: 2}\n  carol: {weight: many, tier: 7}\n  'a b': {}\ntiers: {gold: {weigth: 1}}\n"
    said = (await shell("apply", file=wrong, exit_code=1)).stderr.splitlines()
    assert said[0].startswith("resources.tiers.gold.weigth: there is no such field (did you mean 'weight'?)")
    assert said[1:3] == [
        "resources.tenants.carol.tier: must be text, not a number",
        "resources.tenants.carol.weight: must be a number, not text",
    ]
    assert said[3].startswith("resources.tenants.a b: a name must be 1 to 128 letters, digits")
    at_odds = "tenants:\n  bob: {weight: 2}\n  carol: {tier: silver}\n"
    said = (await shell("apply", file=at_odds, exit_code=1)).stderr.splitlines()
    assert said == ["resources.tenants.carol.tier: there is no tier 'silver'"]
    assert (await shell("diff", file=at_odds, exit_code=2)).stderr.splitlines() == said
    assert (await shell.api.get("/tenants/bob")).status == 404
    together = "tenants: {carol: {tier: silver}}\ntiers: {silver: {}}"
    assert (await shell("apply", file=together)).stdout.splitlines() == [
        "tiers/silver created",
        "tenants/carol created",
    ]


async def test_what_is_got_can_be_applied_and_changes_nothing(shell):
    await shell("apply", file="pools: {tiny: {fairness: {policy: drr}}}\ntiers: {low: {envelope: {ttft_ms: 500}}}")
    got = (await shell("get", "all", "-o", "yaml")).stdout
    assert list(yaml.safe_load(got)) == ["tiers", "groups", "tenants", "backends", "pools", "prices", "aliases"]
    assert yaml.safe_load(got)["tenants"]["alice"] == {"weight": 2.0, "in_flight_max": 8}
    said = (await shell("apply", "-f", "-", stdin=got)).stdout.splitlines()
    assert len(said) == 9
    assert [line for line in said if not line.endswith(" unchanged")] == []
    one = (await shell("get", "tenants", "alice", "-o", "yaml")).stdout
    assert yaml.safe_load(one) == {"tenants": {"alice": {"weight": 2.0, "in_flight_max": 8}}}
    assert "nothing is declared" in (await shell("get", "tenants", "nobody", "-o", "yaml", exit_code=1)).stderr


async def test_a_pool_takes_one_policy_and_keeps_the_others(shell):
    await shell("apply", file="pools: {tiny: {fairness: {policy: drr, quantum_service: 300}}}")
    await shell("apply", file="pools: {tiny: {prediction: {policy: none}}}")
    pool = await shown(shell, "/pools/tiny")
    assert (pool["fairness"], pool["prediction"]["policy"]) == ({"policy": "drr", "quantum_service": 300}, "none")
    again = await shell("apply", file="pools: {tiny: {fairness: {quantum_service: 300}, prediction: {policy: none}}}")
    assert again.stdout.splitlines() == ["pools/tiny unchanged"]
    await shell("apply", file="pools: {tiny: {fairness: null}}")
    assert (await shown(shell, "/pools/tiny"))["fairness"]["policy"] == "vtc"
    assert "no such pool" in (await shell("apply", file="pools: {other: {}}", exit_code=1)).stderr
    wrong = (
        await shell("apply", file="pools: {tiny: {fairness: {policy: drr, quantum_service: no}}}", exit_code=1)
    ).stderr
    assert wrong.startswith("resources.pools.tiny.fairness.quantum_service: must be a number")


async def test_a_field_that_is_fixed_may_be_named_and_not_changed_and_backends_stay_where_they_may_be(shell):
    url = next(each for each in (await shown(shell, "/backends"))["items"])
    same = json.dumps({"backends": {url["id"]: {"url": url["url"], "draining": False}}})
    assert (await shell("apply", file=same)).stdout.endswith("unchanged\n")
    other = json.dumps({"backends": {url["id"]: {"url": "http://127.0.0.1:9"}}})
    assert "url: cannot be changed" in (await shell("apply", file=other, exit_code=1)).stderr
    metadata = json.dumps({"backends": {"x": {"url": "http://169.254.169.254"}}})
    assert (
        "backends.x.url: is at an address where no backend" in (await shell("apply", file=metadata, exit_code=1)).stderr
    )


async def test_a_file_that_is_none_is_refused_with_its_line(shell, tmp_path):
    for text, said in (
        ("tenants: [", "f:1: this is not YAML"),
        ("tenants:\n  a: {}\n  a: {}\n", "f:3: tenants.a: this key is there twice"),
        ("listen: {}", "resources.listen: there is no such field"),
        ("tenants: []", "resources.tenants: must be an object with fields, not a list"),
        ("keys: {k: {}}", "resources.keys: there is no such field"),
    ):
        assert said in (await shell("apply", file=text, exit_code=1)).stderr
    assert "cannot be read" in (await shell("apply", "-f", str(tmp_path / "none"), exit_code=1)).stderr


async def test_roles_and_rates_hold_for_files_too(shell):
    api = shell.api
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    lead = (await api.post("/keys", {"role": "group-admin", "group": "red"})).json["secret"]
    for key in (viewer, lead):
        assert (await api.post("/resources", {"resources": {}}, key=key)).status == 403
    seen = (await api.get("/resources", key=lead)).json["items"]
    assert [(each["kind"], each["id"]) for each in seen] == [("groups", "red"), ("tenants", "red/a")]
    operator = (await api.post("/keys", {"role": "operator"})).json["secret"]
    many = {f"t{number}": {} for number in range(998)}
    assert (await api.post("/resources", {"resources": {"tenants": many}}, key=operator)).status == 200
    assert (await api.post("/resources", {"resources": {"tenants": many}}, key=operator)).status == 429
    page = (await api.get("/resources?limit=500")).json
    rest = (await api.get(f"/resources?limit=1000&cursor={page['next_cursor'].replace(chr(10), '%0A')}")).json
    assert len({(each["kind"], each["id"]) for each in page["items"] + rest["items"]}) == 998 + 7
    too_many = {"dry_run": True, "resources": {"tenants": {**many, **{f"u{number}": {} for number in range(10)}}}}
    refused = await api.post("/resources", too_many, key=(await api.post("/keys", {"role": "operator"})).json["secret"])
    assert (refused.status, refused.json["detail"]) == (409, "a file has at most 1000 entries, and this one has 1008")


async def test_tables_fit_80_columns_and_the_target_may_stand_on_either_side(shell, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    await shell("apply", file=f"tenants: {{{'long' * 30}: {{group: red}}}}")
    for kind in ("tenants", "groups", "tiers", "keys", "backends", "pools", "prices", "aliases", "all"):
        lines = (await shell("get", kind)).stdout.splitlines()
        if kind != "keys":
            assert len(lines) >= 2, kind
            assert len(lines[0].split()) <= 5, kind
        assert max(map(len, lines), default=0) <= 80, kind
    assert (await shell("get", "tenants", "--json", before=("--url", "http://127.0.0.1:1"))).exit_code == 0


async def test_the_state_has_a_line_for_each_pool_tier_and_backend_that_fits_80_columns(shell, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    await shell("set", "backends", "b0", "draining=true")
    lines = (await shell("state")).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    state = (await shown(shell, "/state"))["pools"]
    names = [line.split()[:2] for line in lines if line]
    for pool in state:
        for name in (*pool["tiers"], *pool["backends"]):
            assert [pool["pool"], name] in names
    assert "reserved_tokens" not in "".join(lines)
    assert "reserved_tokens" in (await shell("state", "-o", "wide")).stdout
    assert [*map(str.split, (await shell("list", "backends")).stdout.splitlines())][1][:3] == ["b0", "healthy", "yes"]


@pytest.mark.parametrize("command", [[], ["admin"], ["admin", "get"], ["admin", "usage", "export"], ["top"], ["serve"]])
def test_h_is_help_everywhere(command):
    short, long = (CliRunner().invoke(app, [*command, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert "Usage" in short.output
