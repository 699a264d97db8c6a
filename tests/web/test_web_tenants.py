"""All tenants, which are hurt and why, and a new one with its key and its limits, made from the page."""

import re

import pytest
from playwright.sync_api import expect
from web_rig import Callers, serving

TIERS = {"gold": {"weight": 4}}
GROUPS = {"red": {"tier": "gold"}}
TENANTS = {
    "red/a": {"group": "red", "tokens_per_day_max": 1000},
    "poor": {"tokens_per_day_max": 1},
    "crowd": {"queued_requests_max": 1, "in_flight_max": 1},
    "idle": {"tier": "gold"},
}


@pytest.fixture(scope="module")
def gateway(background, engines, tmp_path_factory):
    """Of its tenants `poor` has spent its budget, and `crowd` has more calls than its queue holds."""
    backends = [{"name": "vllm-0", "url": engines[0].url, "requests_running_max": 6}]
    with serving(tmp_path_factory.mktemp("tenants"), backends, tiers=TIERS, groups=GROUPS, tenants=TENANTS) as served:
        callers = Callers(served.url)
        background.run(callers.call_once_each(["red/a", "passer-by", "poor", "poor", "poor"], at_once=1))
        stop = background.start(
            callers.keep_calling({"poor": {"at_once": 1, "pause_s": 1.0}, "crowd": {"at_once": 4, "pause_s": 0.5}})
        )
        yield served
        stop()


def table(page):
    return page.get_by_role("region", name="Tenants", exact=True)


def row(page, name):
    return table(page).get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def test_a_list_has_all_tenants_and_is_searched_and_sorted(visit, gateway):
    page = visit(gateway).sign_in(gateway.key, "#/tenants")
    for name in ("red/a", "poor", "crowd", "idle", "passer-by"):
        expect(row(page, name)).to_have_count(1)
    expect(row(page, "idle")).to_contain_text("never")
    expect(row(page, "idle")).to_contain_text("gold")
    expect(row(page, "passer-by")).to_contain_text("in the last 15 min")
    expect(row(page, "red/a")).to_contain_text(re.compile(r"[\d.]+ % tokens per day"), timeout=30_000)
    beyond = "(all) => all.filter((each) => each.scrollWidth > each.clientWidth).length"
    assert table(page).locator("td.meter-column").evaluate_all(beyond) == 0, "no figure is above the next column"
    search = page.get_by_label("Search")
    for text, found in (("gold", ["idle", "red/a"]), ("red", ["red/a"]), ("nosuch", [])):
        search.fill(text)
        expect(table(page).locator("tbody th")).to_have_text(found)
    expect(table(page)).to_contain_text("No tenant has this in its name")
    search.fill("")
    table(page).get_by_role("button", name="Tenant").click()
    expect(table(page).locator("tbody th").first).to_have_text("crowd")


def test_a_hurt_tenant_is_seen_at_once_and_now_says_why(visit, gateway):
    page = visit(gateway).sign_in(gateway.key)
    said = page.locator(".who-is-hurt")
    limit = f"it may use {TENANTS['poor']['tokens_per_day_max']:,} tokens per day, until 20"
    said_of_poor = re.compile(rf"poor is over budget \(\d+ calls? refused in the last minute: {limit}")
    expect(said).to_contain_text(said_of_poor, timeout=30_000)
    expect(said).to_contain_text(
        re.compile(r"crowd is refused \(\d+ calls? refused in the last minute: its queue is full")
    )
    expect(row(page, "poor").locator(".hurt")).to_have_text("over budget")
    expect(row(page, "passer-by").locator(".hurt")).to_have_count(0)
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Tenants").click()
    expect(table(page).locator("tbody th").first).to_have_text("poor")  # the gravest first
    page.get_by_role("navigation", name="Which tenants").get_by_role("link", name=re.compile("Hurt")).click()
    expect(table(page).locator("tbody th")).to_have_text(["poor", "crowd"])


def test_a_tenant_its_limit_and_its_key_are_made_from_the_page(visit, engines, tmp_path):
    (tmp_path / "keys").touch()
    auth = {"mode": "keys", "secret": "0123456789abcdef", "keys_file": str(tmp_path / "keys")}
    with serving(tmp_path, [{"name": "vllm-0", "url": engines[0].url}], auth=auth) as gateway:
        page = visit(gateway, permissions=["clipboard-read", "clipboard-write"]).sign_in(gateway.key, "#/tenants")
        expect(table(page)).to_contain_text("There is no tenant yet.")
        form = page.get_by_role("form", name="Make a tenant")
        form.get_by_label("Name").fill("search")
        form.get_by_role("button", name="Make a tenant").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("search")
        limit = page.locator("[data-field='tokens_per_day_max']")
        limit.get_by_role("button", name="Edit tokens per day").click()
        limit.get_by_role("spinbutton").fill("1000")
        limit.get_by_role("button", name="Save").click()
        expect(limit).to_contain_text("1,000")
        page.get_by_role("form", name="Make a key").get_by_role("button").click()
        secret = page.locator(".secret").inner_text()
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == secret
        page.get_by_role("button", name="Hide it").click()
        expect(page.locator("body")).not_to_contain_text(secret)
        page.reload()
        expect(page.get_by_role("region", name="Keys")).to_contain_text(secret[-4:])
        expect(page.locator("body")).not_to_contain_text(secret)  # it was shown once
        assert gateway.ask("GET", "/tenants/search")[1]["tokens_per_day_max"] == 1000
