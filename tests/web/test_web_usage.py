"""Who spent the money: the page adds it up, leads from a sum to its parts, and gives what it shows as a file."""

import csv
import io
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect
from web_rig import MODEL, serving

from gateway.store.sqlite import MERGE_USAGE

MILLION = 1_000_000
AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text(encoding="utf-8")
PRICES = {MODEL: {"currency": "EUR", "periods": [{"prompt": "1", "cached_prompt": "0.1", "output": "2"}]}}
TENANTS = {"red/a": {"group": "red"}, "red/b": {"group": "red"}, "blue/c": {"group": "blue"}, "free": {}}


def day(ago=0):
    return (datetime.now(UTC) - timedelta(days=ago)).date().isoformat()


# Tenant, days ago, key, model, prompt and output tokens.
USED = [
    ("red/a", 0, "key-1", MODEL, 6 * MILLION, 0), ("red/a", 40, "key-1", MODEL, 9 * MILLION, 0),
    ("red/b", 0, "key-2", MODEL, MILLION, MILLION), ("blue/c", 0, "key-3", MODEL, MILLION, 0),
    ("=free", 0, "", "other", 1000, 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(engines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spent")
    backends = [{"name": "vllm-0", "url": engines[0].url}]
    settings = {"prices": PRICES, "groups": {"red": {}, "blue": {}}, "tenants": TENANTS}
    settings |= {"state": {"file": str(folder / "state.db")}}
    with serving(folder, backends, **settings):
        pass  # it makes the file
    with sqlite3.connect(folder / "state.db") as database:
        rows = [(day(ago), who, key, model, "w", 1, prompt, 0, out) for who, ago, key, model, prompt, out in USED]
        database.executemany(MERGE_USAGE, rows)
    with serving(folder, backends, **settings) as served:
        yield served


def sums(page):
    """The rows, by their first cell: its cost."""
    region = page.get_by_role("region", name="Sums")
    expect(region.locator("tbody tr").first).to_be_visible()
    return region


def row(page, name):
    return sums(page).get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def test_it_says_who_spent_the_most_and_leads_to_what_it_was_spent_on(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("viewer"))
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Usage").click()
    expect(page.locator(".verdict")).to_contain_text("10.00 EUR were spent in 4 requests; the most, 90 %, by red")
    expect(row(page, "red")).to_contain_text("9.00 EUR")
    expect(row(page, "no group")).to_contain_text("1,000")
    expect(page.locator(".figure", has_text="tokens without a price")).to_contain_text("1,000")
    row(page, "red").get_by_role("link").click()
    expect(page.locator(".verdict")).to_contain_text("9.00 EUR were spent in 2 requests; the most, 67 %, by red/a")
    expect(sums(page).locator("tbody th")).to_have_text(["red/a", "red/b"])
    row(page, "red/b").get_by_role("link").click()
    expect(row(page, "key-2")).to_contain_text("3.00 EUR")
    row(page, "key-2").get_by_role("link").click()
    expect(row(page, MODEL)).to_contain_text("3.00 EUR")
    page.get_by_role("group", name="Shown is only").get_by_role("link", name="Show more than the tenant red/b").click()
    page.get_by_role("navigation", name="Sums by").get_by_role("link", name="Day").click()
    expect(row(page, day())).to_contain_text("3.00 EUR")


def test_days_are_chosen_and_months_stand_beside_each_other(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("viewer"), "#/usage")
    page.get_by_label("From").fill(day(41))
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".verdict")).to_contain_text("19.00 EUR were spent in 5 requests")
    page.get_by_role("navigation", name="Sums by").get_by_role("link", name="Month").click()
    expect(row(page, day(40)[:7])).to_contain_text("9.00 EUR")
    expect(row(page, day()[:7])).to_contain_text("10.00 EUR")
    row(page, day(40)[:7]).get_by_role("link").click()
    expect(row(page, "red/a")).to_contain_text("9.00 EUR")
    page.get_by_role("navigation", name="Days").get_by_role("link", name="Today").click()
    page.get_by_role("navigation", name="Sums per").get_by_role("link", name="per day").click()
    expect(row(page, "red/a")).to_contain_text(day())


def test_what_is_shown_is_a_file(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("viewer"), "#/usage?by=tenant")
    expect(row(page, "red/a")).to_contain_text("6.00 EUR")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download as CSV").click()
    assert re.fullmatch(rf"usage-{day()[:7]}-01-{day()}-by-tenant\.csv", waiting.value.suggested_filename)
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert [(each["Tenant"], each["Cost"], each["Currency"]) for each in rows] == [
        ("red/a", "6.00", "EUR"), ("red/b", "3.00", "EUR"), ("blue/c", "1.00", "EUR"), ("'=free", "", "EUR"),
    ]  # fmt: skip


def test_the_administrator_of_a_group_sees_what_its_tenants_spent_and_nothing_of_others(visit, gateway):
    status, made = gateway.ask("POST", "/keys", {"role": "group-admin", "group": "red"})
    assert status == 201
    page = visit(gateway).sign_in(made["secret"], "#/usage")
    expect(page.locator(".verdict")).to_contain_text("9.00 EUR were spent in 2 requests; the most, 67 %, by red/a")
    expect(sums(page).locator("tbody th")).to_have_text(["red/a", "red/b"])
    page.goto(f"{gateway.admin_url}/#/usage?by=group")
    expect(sums(page).locator("tbody th")).to_have_text(["red"])
    page.goto(f"{gateway.admin_url}/#/usage?by=tenant&tenant=blue%2Fc")
    expect(page.locator(".verdict")).to_contain_text("Nothing was used on these days.")
    assert "blue" not in sums(page).inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440, 2560])
def test_it_fits_every_screen_and_axe_finds_nothing(visit, gateway, theme, width):
    page = visit(gateway, viewport={"width": width, "height": 900}, color_scheme=theme).sign_in(
        gateway.key_of("viewer"), "#/usage?by=key"
    )
    expect(row(page, "key-1")).to_be_visible()
    page.evaluate(AXE)
    found = page.evaluate("async () => (await axe.run()).violations.map((each) => each.id + ' ' + each.nodes[0].html)")
    assert found == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = sums(page).evaluate("(each) => each.scrollWidth - each.clientWidth")
    assert box <= 1


def answering(body):
    return lambda route: route.fulfill(json=body)


def test_where_no_tenant_has_a_group_it_opens_on_tenants(visit, loaded, keys):
    visitor = visit(loaded)
    sums = {"requests": 3, "prompt_tokens": 9, "cached_tokens": 0, "output_tokens": 1, "unpriced_tokens": 0}
    sums |= {"cost": None, "currency": None, "period": None}
    for by, name in (("group", ""), ("tenant", "chat")):
        listed = {"total": sums, "items": [{**sums, by: name}], "next_cursor": None}
        visitor.page.route(f"**/admin/v1/usage/sums?by={by}*", answering(listed))
    page = visitor.sign_in(keys["viewer"], "#/usage")
    expect(page.locator(".verdict")).to_contain_text(
        "This month: 10 tokens were used in 3 requests; the most, 100 %, by chat"
    )
    page.get_by_role("navigation", name="Sums by").get_by_role("link", name="Group").click()
    expect(row(page, "no group")).to_be_visible()
