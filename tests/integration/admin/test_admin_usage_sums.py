"""Who spent the money: sums of usage by group, tenant, key, model and period, with their total."""

import asyncio
import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from admin_rig import admin
from gateway_rig import scripted
from pyarrow import parquet
from typer.testing import CliRunner

from gateway.admin.command import output
from gateway.budgets.money import sums
from gateway.cli import app
from gateway.store.base import Totals, UsageKey, UsageRow

PRICES = {"m": {"currency": "EUR", "periods": [{"prompt": "1", "cached_prompt": "0.1", "output": "2"}]}}
TENANTS = {"red/a": {"group": "red"}, "red/b": {"group": "red"}, "blue/c": {"group": "blue"}, "free": {}}
MILLION = 1_000_000


def day(ago=0):
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()


SPAN = f"first_day={day(40)}&last_day={day()}"


def used(tenant, *, ago=0, key="k", model="m", writer="w", prompt=MILLION, cached=0, answer=0):
    return UsageRow(writer, UsageKey(day(ago), tenant, key, model), Totals(1, prompt, cached, answer))


ROWS = [
    used("red/a"), used("red/a", writer="w2"), used("red/a", ago=40, key="k2"), used("red/b", cached=MILLION),
    used("blue/c", answer=MILLION), used("free", key="", model="none", prompt=5, answer=2),
    used("gone"),
]  # fmt: skip


@pytest.fixture
async def api(tmp_path):
    groups = {"red": {}, "blue": {}}
    async with scripted() as backend, admin(tmp_path, backend, prices=PRICES, tenants=TENANTS, groups=groups) as made:
        await made.rig.gateway._management.store.put_usage(ROWS)
        yield made


async def summed(api, query, **given):
    reply = await api.get(f"/usage/sums?{query}", **given)
    assert reply.status == 200, reply.body
    return reply.json


def costs(answer, *names):
    return [(*(row[name] for name in names), row["cost"]) for row in answer["items"]]


async def test_each_division_has_the_dearest_first_its_currency_and_the_same_total(api):
    for by, names, expected in (
        ("tenant", ("group", "tenant"), [
            ("red", "red/a", "3.00"), ("blue", "blue/c", "3.00"), ("", "gone", "1.00"), ("red", "red/b", "0.10"),
            ("", "free", None),
        ]),
        ("group", ("group",), [("red", "3.10"), ("blue", "3.00"), ("", "1.00")]),
        ("key", ("tenant", "key"), [
            ("blue/c", "k", "3.00"), ("red/a", "k", "2.00"), ("gone", "k", "1.00"), ("red/a", "k2", "1.00"),
            ("red/b", "k", "0.10"), ("free", "", None),
        ]),
        ("model", ("model",), [("m", "7.10"), ("none", None)]),
    ):  # fmt: skip
        answer = await summed(api, f"{SPAN}&by={by}")
        assert sorted(costs(answer, *names), key=str) == sorted(expected, key=str), by
        spent = [Decimal(row["cost"] or 0) for row in answer["items"]]
        assert spent == sorted(spent, reverse=True)
        assert {row["currency"] for row in answer["items"]} == {"EUR"}
        total = answer["total"]
        assert (total["cost"], total["currency"], total["requests"], total["unpriced_tokens"]) == ("7.10", "EUR", 7, 7)
    days = await summed(api, f"{SPAN}&period=day")
    assert costs(days, "period") == [(day(40), "1.00"), (day(), "6.10")]
    months = await summed(api, f"{SPAN}&period=month&by=model&model=m")
    assert costs(months, "period", "model") == [(day(40)[:7], "m", "1.00"), (day()[:7], "m", "6.10")]


async def test_by_default_it_is_this_month_and_parts_are_asked_for(api):
    answer = await summed(api, "by=group")
    assert (answer["first_day"], answer["last_day"]) == (f"{day()[:7]}-01", day())
    assert answer["total"]["cost"] == "6.10"
    assert costs(await summed(api, f"{SPAN}&by=tenant&group=red"), "tenant") == [("red/a", "3.00"), ("red/b", "0.10")]
    assert costs(await summed(api, f"{SPAN}&by=key&tenant=red%2Fa&key=k2"), "key") == [("k2", "1.00")]
    assert (await summed(api, f"{SPAN}&group=nothing"))["total"]["cost"] is None


async def test_pages_go_on_and_too_many_rows_are_refused(api, monkeypatch):
    first = await summed(api, f"{SPAN}&by=tenant&limit=2")
    rest = await summed(api, f"{SPAN}&by=tenant&cursor={first['next_cursor']}")
    assert len({row["tenant"] for row in first["items"] + rest["items"]}) == 5
    assert rest["next_cursor"] is None
    assert first["total"] == rest["total"]
    monkeypatch.setattr(sums, "SUMS_MAX", 4)
    refused = await api.get(f"/usage/sums?{SPAN}&by=tenant")
    assert (refused.status, "more than 4 rows" in refused.json["detail"]) == (409, True)


async def test_a_groups_administrator_sees_the_sums_of_its_own_tenants_alone(api):
    key = (await api.post("/keys", {"role": "group-admin", "group": "red"})).json["secret"]
    for query in ("by=group", "by=tenant", "by=model", "by=key", "period=day"):
        assert (await summed(api, f"{SPAN}&{query}", key=key))["total"]["cost"] == "3.10"
    for other in ("group=blue", "tenant=blue%2Fc", "tenant=gone", "group="):
        answer = await summed(api, f"{SPAN}&by=tenant&{other}", key=key)
        assert (answer["items"], answer["total"]["requests"]) == ([], 0), other
        exported = (await api.get(f"/usage/export?{SPAN}&by=tenant&{other}", key=key)).body.decode()
        assert len(exported.splitlines()) == 1, "the head alone"


async def test_what_is_shown_is_exported(api):
    shown = await summed(api, f"{SPAN}&by=tenant&period=month")
    reply = await api.get(f"/usage/export?{SPAN}&by=tenant&period=month")
    rows = list(csv.DictReader(io.StringIO(reply.body.decode(), newline="")))
    assert [(row["Period"], row["Tenant"], row["Cost"], row["Currency"]) for row in rows] == [
        (row["period"], row["tenant"], row["cost"] or "", "EUR") for row in shown["items"]
    ]
    table = parquet.read_table(io.BytesIO((await api.get(f"/usage/export?{SPAN}&by=tenant&format=parquet")).body))
    assert sum(row["Cost"] or 0 for row in table.to_pylist()) == Decimal("7.1")
    rows_of_red = (await api.get(f"/usage/export?{SPAN}&group=red")).body.decode()
    assert "BilledCost" in rows_of_red
    assert "blue" not in rows_of_red


async def test_the_shell_prints_the_sums_and_their_total(api, tmp_path, monkeypatch):
    async def shell(*options):
        given = ["admin", "--url", api.url, "usage", *options, "--key-file", str(tmp_path / "admin-key")]
        result = await asyncio.to_thread(CliRunner().invoke, app, given)
        assert result.exit_code == 0, result.output
        return result

    days = ("--first-day", day(40), "--last-day", day())
    answer = json.loads((await shell("--by", "tenant", "--period", "month", *days)).stdout)
    assert answer["total"]["cost"] == "7.10"
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    result = await shell("--by", "tenant", *days)
    head, first, *_, last = result.stdout.splitlines()
    assert head.split() == ["group", "tenant", "requests", "tokens", "cost"]
    assert first.split()[2:] in (["3", "3,000,000", "3.00", "EUR"], ["1", "2,000,000", "3.00", "EUR"])
    assert last.split() == ["total", "7", "7,000,007", "7.10", "EUR"]
    assert "7 tokens have no price" in result.stderr
    head, *_ = (await shell("--by", "key", "--period", "day", "-o", "wide", *days)).stdout.splitlines()
    assert head.split()[:4] == ["period", "group", "tenant", "key"]
    for by in ("group", "key", "model"):
        lines = (await shell("--by", by, "--period", "month", *days)).stdout.splitlines()
        assert len(lines[0].split()) <= 6
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("by=colour", 422, "query.by: must be one of group, tenant, key, model"),
        ("period=week", 422, "query.period: must be one of day, month"),
        ("first_day=yesterday", 422, "query.first_day: must be a day like 2026-11-20"),
        ("first_day=2026-02-30", 409, "query.first_day: there is no such day: give one like 2026-11-20"),
        ("groop=red", 422, "query.groop: there is no such field (did you mean 'group'?)"),
        ("limit=0", 422, "query.limit: must be at least 1"),
        ("limit=many", 422, "query.limit: must be a whole number, not text"),
    ],
)
async def test_a_wrong_question_is_said_to_be_one_by_its_field(api, query, status, said):
    refused = await api.get(f"/usage/sums?{query}")
    assert (refused.status, refused.json["detail"]) == (status, said)


async def test_the_shell_takes_no_day_that_does_not_exist_for_one_without_usage(api, tmp_path):
    given = ["admin", "--url", api.url, "usage", "--first-day", "2026-99-01", "--key-file", str(tmp_path / "admin-key")]
    result = await asyncio.to_thread(CliRunner().invoke, app, given)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "first_day: there is no such day" in result.stderr


@pytest.mark.parametrize("field", ["first_day", "last_day"])
@pytest.mark.parametrize("path", ["/usage", "/usage/sums", "/usage/export"])
async def test_no_view_of_usage_takes_a_day_that_does_not_exist_for_one_without_usage(api, path, field):
    refused = await api.get(f"{path}?{field}=2026-99-01")
    said = f"query.{field}: there is no such day: give one like 2026-11-20"
    assert (refused.status, refused.json["detail"]) == (409, said)


async def test_every_tenant_with_usage_has_its_last_day_page_by_page(api):
    first = (await api.get("/usage/last-days?limit=3")).json
    rest = (await api.get(f"/usage/last-days?cursor={first['next_cursor']}")).json
    assert [len(each["items"]) for each in (first, rest)] == [3, 2]
    assert rest["next_cursor"] is None
    days = {each["tenant"]: each["last_used_on"] for each in first["items"] + rest["items"]}
    assert days == dict.fromkeys(("red/a", "red/b", "blue/c", "free", "gone"), day())
