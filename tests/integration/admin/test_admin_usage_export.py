"""The export of a running gateway, by the API and from the shell: whole files, or none."""

import asyncio
import csv
import io
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import aiohttp
import pytest
from admin_rig import admin
from gateway_rig import scripted
from pyarrow import parquet
from typer.testing import CliRunner

from gateway.cli import app
from gateway.store import base
from gateway.store.base import USAGE_ROWS_MAX, StoreFull, StoreUnavailable, Totals, UsageKey, UsageRow

PRICES = {"m": {"currency": "EUR", "periods": [{"prompt": "0.6", "output": "2.4"}]}}
TENANTS = 40


def day(ago=0):
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()


@pytest.fixture
async def api(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "ROWS_AT_ONCE", 7)
    async with scripted() as backend, admin(tmp_path, backend, prices=PRICES) as made:
        rows = [
            UsageRow(writer, UsageKey(day(ago), f"t{number}", "k", "m"), Totals(1, 100 + number, 40, number))
            for number in range(TENANTS)
            for ago in (0, 1)
            for writer in ("w1", "w2")
        ]
        await made.rig.gateway._management.store.put_usage(rows)
        yield made


def read(data):
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def tokens(rows):
    found = Counter()
    for row in rows:
        if row["ConsumedUnit"] == "Tokens":
            found[row["SubAccountId"]] += int(row["ConsumedQuantity"])
    return found


async def test_the_export_has_what_usage_says(api):
    two_days = f"first_day={day(1)}&last_day={day()}"
    reply = await api.get(f"/usage/export?{two_days}")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/csv")
    assert reply.headers["Content-Disposition"] == f'attachment; filename="usage-{day(1)}-{day()}.csv"'
    rows, listed = read(reply.body), (await api.get(f"/usage?{two_days}&limit=1000")).json["items"]
    counted = Counter()
    for row in listed:
        counted[row["tenant"]] += row["prompt_tokens"] + row["output_tokens"]
    assert tokens(rows) == counted
    assert len(listed) == 2 * TENANTS
    assert sum(picos(row["BilledCost"]) for row in rows) == sum(picos(row["cost"]) for row in listed) > 0
    other = await api.get(f"/usage/export?{two_days}&format=parquet")
    assert other.headers["Content-Type"] == "application/vnd.apache.parquet"
    assert tokens(parquet.read_table(io.BytesIO(other.body)).to_pylist()) == counted


def picos(text):
    whole, _, rest = text.partition(".")
    return int(whole + rest.ljust(12, "0"))


async def test_by_default_it_is_todays_and_may_be_one_tenants(api):
    assert {row["ChargePeriodStart"][:10] for row in read((await api.get("/usage/export")).body)} == {day()}
    assert set(tokens(read((await api.get("/usage/export?tenant=t3")).body))) == {"t3"}


async def test_a_viewer_may_export_and_a_tenant_may_not(api):
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    assert (await api.get("/usage/export", key=viewer)).status == 200
    assert (await api.get("/usage/export", key=await api.key_for("declared"))).status == 403


async def test_an_administrator_of_a_group_exports_its_tenants_alone_and_their_group_is_named(tmp_path):
    tenants = {"red/a": {"group": "red"}, "blue/b": {"group": "blue"}, "free": {}}
    async with scripted() as backend, admin(tmp_path, backend, groups={"red": {}, "blue": {}}, tenants=tenants) as api:
        rows = [UsageRow("w", UsageKey(day(), name, "k", "m"), Totals(1, 5, 0, 0)) for name in (*tenants, "gone")]
        await api.rig.gateway._management.store.put_usage(rows)
        key = (await api.post("/keys", {"role": "group-admin", "group": "red"})).json["secret"]
        assert set(tokens(read((await api.get("/usage/export", key=key)).body))) == {"red/a"}
        assert tokens(read((await api.get("/usage/export?tenant=blue%2Fb", key=key)).body)) == {}
        everything = read((await api.get("/usage/export")).body)
        groups = {row["SubAccountId"]: row["x_Group"] for row in everything}
        assert groups == {"red/a": "red", "blue/b": "blue", "free": "", "gone": ""}


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("format=xml", 422),
        ("first_day=yesterday", 422),
        ("first_day=2026-02-30", 409),
        ("first_day=0001-01-01&last_day=9999-12-31", 200),
    ],
)
async def test_days_and_formats_that_are_none_are_refused(api, query, status):
    assert (await api.get(f"/usage/export?{query}")).status == status


async def test_without_pyarrow_parquet_is_refused_and_csv_is_not(api, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = await api.get("/usage/export?format=parquet")
    assert (refused.status, "fairlead[export]" in refused.json["detail"]) == (409, True)
    assert (await api.get("/usage/export")).status == 200


@pytest.mark.parametrize(("error", "status"), [(StoreUnavailable, 503), (StoreFull, 409)])
async def test_what_fails_before_the_first_day_is_a_problem(api, monkeypatch, error, status):
    async def fails(_query):
        raise error("no")

    monkeypatch.setattr(api.rig.gateway._management.store, "usage", fails)
    assert (await api.get("/usage/export")).status == status


async def test_what_fails_later_breaks_off_and_leaves_no_file(api, monkeypatch, tmp_path):
    store = api.rig.gateway._management.store
    usage = store.usage

    async def fails_today(query):
        if query.after is not None and query.after.day == day():
            raise StoreUnavailable("no")
        return await usage(query)

    monkeypatch.setattr(store, "usage", fails_today)
    with pytest.raises(aiohttp.ClientError):
        await api.get(f"/usage/export?first_day={day(1)}")
    file = tmp_path / "usage.csv"
    result = await shell(api, tmp_path, "--first-day", day(1), "--output", str(file))
    assert (result.exit_code, "not complete" in result.stderr) == (1, True)
    assert list(tmp_path.glob("usage.csv*")) == []


async def shell(api, folder, *options):
    given = ["admin", "--url", api.url, "--key-file", str(folder / "admin-key"), "usage", "export", *options]
    return await asyncio.to_thread(CliRunner().invoke, app, given)


async def test_a_client_that_leaves_at_once_is_no_failure_of_the_gateway(api, monkeypatch, caplog):
    store, asked, goes_on = api.rig.gateway._management.store, asyncio.Event(), asyncio.Event()
    usage = store.usage

    async def slow(query):
        asked.set()
        await goes_on.wait()
        return await usage(query)

    monkeypatch.setattr(store, "usage", slow)
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(api.url).port)
    writer.write(f"GET /admin/v1/usage/export HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode())
    await asked.wait()
    writer.transport.abort()
    await asyncio.sleep(0.05)
    goes_on.set()
    assert (await api.get(f"/usage/export?first_day={day(1)}")).status == 200
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_the_shell_writes_a_file_or_to_standard_output(api, tmp_path):
    file = tmp_path / "usage.parquet"
    result = await shell(api, tmp_path, "--format", "parquet", "--output", str(file))
    assert result.exit_code == 0, result.output
    whole = (await api.get("/usage/export")).body
    assert tokens(parquet.read_table(file).to_pylist()) == tokens(read(whole))
    assert (await shell(api, tmp_path)).stdout_bytes == whole


@pytest.mark.long
async def test_a_day_of_more_rows_than_a_store_gives_at_once_is_listed_and_exported_to_the_token(tmp_path):
    """Of each of its parts the store is asked alone, so memory holds one of them."""
    count = USAGE_ROWS_MAX + 1_500
    async with scripted() as backend, admin(tmp_path, backend, prices=PRICES) as api:
        store, asked = api.rig.gateway._management.store, []
        rows = [
            UsageRow(f"w{number % 2}", UsageKey(day(), f"t{number // 2}", "k", "m"), Totals(0, 7 + number % 5, 0, 0))
            for number in range(count)
        ]
        await store.put_usage(rows)
        usage, used = store.usage, sum(row.totals.prompt_tokens for row in rows)

        async def watched(query):
            found = await usage(query)
            asked.append(len(found))
            return found

        store.usage = watched
        for file_format in ("csv", "parquet"):
            reply = await api.get(f"/usage/export?format={file_format}")
            assert reply.status == 200
            table = read(reply.body) if file_format == "csv" else parquet.read_table(io.BytesIO(reply.body)).to_pylist()
            assert len(table) == count // 2
            assert tokens(table).total() == used
        assert max(asked) == base.ROWS_AT_ONCE
        page = (await api.get("/usage?limit=1000")).json
        rest = (await api.get(f"/usage?limit=1000&cursor={quote(page['next_cursor'])}")).json
        assert len({row["tenant"] for row in page["items"] + rest["items"]}) == 2_000
