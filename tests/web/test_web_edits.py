"""Every setting of a tenant is edited where it stands: said before, written with its author, and undone."""

import re
import time

import pytest
from playwright.sync_api import expect

# What is typed for each field, and what is shown then; 1,234 has a sign between its thousands.
FIELDS = {
    "tier": ("interactive", "interactive"),
    "weight": ("2.5", "2.50"),
    "envelope.ttft_ms": ("750", "750 ms"),
    "envelope.tpot_ms": ("60", "60 ms"),
    "in_flight_max": ("77", "77 requests in flight"),
    "requests_per_minute_max": ("60000", "60,000"),
    "tokens_per_minute_max": ("9000000", "9,000,000"),
    "tokens_per_day_max": ("90000000", "90,000,000"),
    "tokens_per_month_max": ("900000000", "900,000,000"),
    "cost_per_day_max": ("12.50", "12.50 in the price lists' currency"),
    "cost_per_month_max": ("100", "100 in the price lists' currency"),
    "queued_requests_max": ("321", "321 requests queued"),
    "queued_bytes_max": ("7654321", "7,654,321 bytes"),
}


TIER_FIELDS = {
    "weight": ("5.5", "5.50", 5.5),
    "envelope.ttft_ms": ("900", "900 ms", 900),
    "envelope.tpot_ms": ("80", "80 ms", 80),
    "on_miss": ("reject", "are rejected at once", "reject"),
    "reserve_ratio": ("0.25", "0.25 of every backend", 0.25),
    "priority": ("-2", "-2", -2),
    "preemptible": ("true", "yes", True),
}


def valued(section, name):
    for part in name.split("."):
        section = (section or {}).get(part)
    return section


def stored(gateway, name, kind="tenants"):
    """Its settings; None where it has none of its own."""
    status, body = gateway.ask("GET", f"/{kind}/{name}")
    return body if status == 200 else None


def edit(page, name, typed):
    row = page.locator(f"[data-field='{name}']")
    row.get_by_role("button", name=re.compile("^Edit ")).click()
    if name in ("tier", "on_miss", "preemptible"):
        row.get_by_role("combobox").select_option(typed)
    else:
        row.get_by_role("spinbutton").fill(typed)
    return row


@pytest.mark.parametrize("origin", ["declared", "admin", None])
def test_every_edit_is_stored_with_its_author_and_undone(visit, loaded, keys, origin):
    """Of a tenant that the file declares, of one that the API made, and of one without any settings."""
    tenant = {"declared": "nightly", "admin": "made-here", None: "passer-by"}[origin]
    if origin == "admin":
        loaded.ask("PUT", f"/tenants/{tenant}", {"tier": "batch", "weight": 1.5})
    before = stored(loaded, tenant)
    assert (before and before["origin"]) == origin
    page = visit(loaded).sign_in(keys["operator"], f"#/tenant/{tenant}")
    if origin is None:
        page.get_by_role("button", name=f"Give {tenant} settings").click()
    me = loaded.ask("GET", "/me", key=keys["operator"])[1]
    for name, (typed, shown) in FIELDS.items():
        row = edit(page, name, typed)
        row.get_by_role("button", name="Save").click()
        expect(row.locator("dd span").first, name).to_have_text(shown)
        now = valued(stored(loaded, tenant), name)
        assert now == (typed if name == "tier" or name.startswith("cost_") else float(typed)), name
        newest = loaded.ask("GET", "/audit?limit=1")[1]["items"][0]
        assert (newest["actor"], newest["kind"], newest["name"]) == (me["name"], "tenants", tenant)
        assert valued(newest["after"], name) == now, name
        expect(page.get_by_role("region", name="Changes")).to_contain_text(me["label"])
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".notice").last, name).to_contain_text("again")
        assert stored(loaded, tenant) == before, name
        for notice in page.get_by_role("button", name="Dismiss").all():
            notice.click()


@pytest.mark.parametrize("origin", ["declared", "admin", None])
def test_every_edit_of_a_tier_is_stored_with_its_author_and_undone(visit, loaded, keys, origin):
    """Of a tier that the file declares, of one that the API made, and of the default one, which has no settings."""
    tier = {"declared": "batch", "admin": "made-here", None: "default"}[origin]
    if origin == "admin":
        loaded.ask("PUT", f"/tiers/{tier}", {"weight": 1.5})
    before = stored(loaded, tier, "tiers")
    page = visit(loaded).sign_in(keys["operator"], f"#/tier/{tier}")
    me = loaded.ask("GET", "/me", key=keys["operator"])[1]
    for name, (typed, shown, value) in TIER_FIELDS.items():
        row = edit(page, name, typed)
        row.get_by_role("button", name="Save").click()
        expect(row.locator("dd span").first, name).to_have_text(shown)
        assert valued(stored(loaded, tier, "tiers"), name) == value, name
        newest = loaded.ask("GET", "/audit?limit=1")[1]["items"][0]
        assert (newest["actor"], newest["kind"], newest["name"]) == (me["name"], "tiers", tier)
        expect(page.get_by_role("region", name="Changes")).to_contain_text(me["label"])
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".notice").last, name).to_contain_text("again")
        assert stored(loaded, tier, "tiers") == before, name
        for notice in page.get_by_role("button", name="Dismiss").all():
            notice.click()


@pytest.fixture
def rival(loaded):
    """`flood` in a tier of its own, so that it and the tier `batch` with `nightly` both want all there is."""
    assert loaded.ask("PUT", "/tiers/rival", {"weight": 1})[0] == 201
    assert loaded.ask("PATCH", "/tenants/flood", {"tier": "rival"})[0] == 200
    yield "rival"
    assert loaded.ask("DELETE", "/tenants/flood")[0] == 204  # what the file says holds again
    assert loaded.ask("DELETE", "/tiers/rival")[0] == 204


def test_what_a_tiers_weight_will_do_is_said_before_and_then_happens(visit, loaded, keys, rival):
    page = visit(loaded).sign_in(keys["operator"])
    page.get_by_role("region", name="Tiers").get_by_role("link", name="batch").click()
    tenants = page.get_by_role("region", name="Tenants").get_by_role("link")
    expect(tenants).to_have_text(["nightly"])
    row = edit(page, "weight", "4")
    said = row.locator(".effect strong")
    expect(said).to_have_text(re.compile(r"Share of .+: [\d.]+ % now, [\d.]+ % then\."))
    now, then = (float(each) for each in re.findall(r"([\d.]+) %", said.inner_text()))
    assert then > 1.2 * now
    expect(row.locator(".effect")).to_contain_text(f"{rival}:")
    row.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("4")
    page.goto("/#/now")
    tiers = page.get_by_role("region", name="Tiers").get_by_role("row")
    of_rival, of_batch = (tiers.filter(has=page.get_by_role("link", name=name)) for name in (rival, "batch"))
    deadline = time.monotonic() + 60
    while ratio_10_s(of_batch) < 1.6 * ratio_10_s(of_rival):
        assert time.monotonic() < deadline, "the new weight does not show in what both get"
        page.wait_for_timeout(1000)
    page.get_by_role("button", name="Undo").click()
    expect(of_batch.locator("td").first).to_have_text("1")


@pytest.mark.parametrize(
    ("name", "typed"), [("reserve_ratio", "1"), ("priority", "1.5"), ("priority", ""), ("weight", "")]
)
def test_a_wrong_value_of_a_tier_cannot_be_saved(visit, loaded, keys, name, typed):
    page = visit(loaded).sign_in(keys["operator"], "#/tier/batch")
    before = stored(loaded, "batch", "tiers")
    row = edit(page, name, typed)
    save = row.get_by_role("button", name="Save")
    if save.is_enabled():
        save.click()  # the browser or the gateway refuses it
        page.wait_for_timeout(500)
    assert stored(loaded, "batch", "tiers") == before
    expect(row.get_by_role("spinbutton")).to_be_visible()


def test_what_a_weight_will_do_is_said_before_and_then_happens(visit, loaded, keys):
    """`nightly` and `flood` share the tier `batch`: by weights 3 and 1 it is due three quarters of it."""
    page = visit(loaded).sign_in(keys["operator"], "#/tenant/nightly")
    row = edit(page, "weight", "3")
    said = row.locator(".effect strong")
    expect(said).to_have_text(re.compile(r"Share of .+: [\d.]+ % now, [\d.]+ % then\."))
    now, then = (float(each) for each in re.findall(r"([\d.]+) %", said.inner_text()))
    assert then > 1.2 * now
    expect(row.locator(".effect")).to_contain_text("flood:")  # and which tenant has less then
    assert stored(loaded, "nightly")["weight"] == 1, "nothing is changed yet"
    row.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("3")
    page.goto("/#/now")
    flood, nightly = (
        page.get_by_role("row").filter(has=page.get_by_role("link", name=name)) for name in ("flood", "nightly")
    )
    expect(nightly.locator("td").nth(1)).to_have_text("3")
    deadline = time.monotonic() + 60
    while ratio_10_s(nightly) < 1.6 * ratio_10_s(flood):
        assert time.monotonic() < deadline, "the new weight does not show in what both get"
        page.wait_for_timeout(1000)
    page.get_by_role("button", name="Undo").click()
    expect(nightly.locator("td").nth(1)).to_have_text("1")


def ratio_10_s(row):
    """What a tenant got in the last 10 s, in percent of its pool."""
    return float(re.match(r"<?([\d.]+)", row.locator(".share .number").first.inner_text())[1])


def test_a_limit_says_what_is_in_use(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["operator"], "#/tenant/flood")
    row = edit(page, "in_flight_max", "5")
    expect(row.locator(".effect")).to_contain_text(
        re.compile(r"changes no tenant's due share\. It has \d+ requests? in flight")
    )
    row.get_by_role("button", name="Cancel").click()
    expect(row.get_by_role("spinbutton")).to_have_count(0)


@pytest.mark.parametrize("typed", ["0", "-1", "", "1e16"])
def test_a_wrong_value_cannot_be_saved(visit, loaded, keys, typed):
    page = visit(loaded).sign_in(keys["operator"], "#/tenant/flood")
    before = stored(loaded, "flood")
    row = edit(page, "weight", typed)
    save = row.get_by_role("button", name="Save")
    if save.is_enabled():
        save.click()  # the browser or the gateway refuses it
        page.wait_for_timeout(500)
    assert stored(loaded, "flood") == before
    expect(row.get_by_role("spinbutton")).to_be_visible()


def test_a_change_by_another_operator_is_not_overwritten(visit, loaded, keys):
    """The page changes the version that it shows (If-Match); after a refusal it shows what is there."""
    loaded.ask("PUT", "/tenants/shared", {"weight": 1})
    page = visit(loaded).sign_in(keys["operator"], "#/tenant/shared")
    row = edit(page, "weight", "5")
    loaded.ask("PATCH", "/tenants/shared", {"weight": 7})
    row.get_by_role("button", name="Save").click()
    expect(page.locator(".notice.bad")).to_contain_text("It was changed meanwhile")
    assert stored(loaded, "shared")["weight"] == 7


def test_a_role_that_was_lowered_is_refused_by_the_gateway_and_said(visit, loaded, keys):
    """The page hides controls; it is the gateway that refuses."""
    page = visit(loaded).sign_in(keys["viewer"])
    status = page.evaluate(
        "async (key) => (await fetch('/admin/v1/tenants/flood', {method: 'PATCH', body: '{\"weight\": 9}',"
        " headers: {Authorization: 'Bearer ' + key, 'Content-Type': 'application/json'}})).status",
        keys["viewer"],
    )
    assert status == 403


def test_a_budget_says_when_it_will_be_spent(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"], "#/tenant/flood")
    budgets = page.get_by_role("region", name="Budgets")
    expect(budgets).to_contain_text("50,000,000")
    expect(budgets).to_contain_text(re.compile(r"lasts until it is renewed|spent in"), timeout=30_000)
