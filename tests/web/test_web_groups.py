"""Groups in the page: their administrators see and change their own alone, operators all of them."""

import re

import pytest
from playwright.sync_api import expect
from web_rig import ask_once, serving

TIERS = {"gold": {"weight": 4, "envelope": {"ttft_ms": 1500}}, "iron": {}}
GROUPS = {
    "red": {"tier": "gold", "weight": 2, "in_flight_max": 40, "tokens_per_day_max": 1_000_000},
    "blue": {"tier": "gold"},
}
TENANTS = {"red/a": {"group": "red", "weight": 3}, "red/b": {"group": "red"}, "blue/c": {"group": "blue"}, "free": {}}
OTHERS = ("blue", "free", "iron", "vllm-0")
CLOSED = (
    "tenants",
    "engines",
    "audit",
    "requests",
    "groups",
    "models",
    "what-if",
    "tier/gold",
    "backend/vllm-0",
    "request/x",
    "alias/x",
    "price/x",
)


@pytest.fixture(scope="module")
def gateway(engines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grouped")
    (folder / "keys").touch()
    auth = {"mode": "keys", "secret": "0123456789abcdef", "keys_file": str(folder / "keys")}
    backends = [{"name": "vllm-0", "url": engines[0].url, "requests_running_max": 6}]
    with serving(folder, backends, tiers=TIERS, groups=GROUPS, tenants=TENANTS, auth=auth) as served:
        yield served


@pytest.fixture(scope="module")
def lead(gateway):
    """The key of red's administrator."""
    return made(gateway, "/keys", {"role": "group-admin", "group": "red", "label": "red's lead"})["secret"]


def made(gateway, path, body, key=None):
    status, answer = gateway.ask("POST", path, body, key)
    assert status == 201, answer
    return answer


def refused(page):
    """Collects paths that the page asks for and does not get."""
    found = set()
    page.on("response", lambda reply: found.add(reply.url.partition("?")[0]) if reply.status == 403 else None)
    return lambda: {url[url.index("/admin/") :] for url in found}


def test_its_administrator_sees_its_group_and_nothing_of_others_and_asks_for_nothing_else(visit, gateway, lead):
    for tenant in ("red/a", "blue/c", "free"):
        assert ask_once(gateway, made(gateway, "/keys", {"tenant": tenant})["secret"]) == 200
    visitor = visit(gateway)
    found = refused(visitor.page)
    page = visitor.sign_in(lead)
    expect(page.locator(".caller")).to_contain_text("role group-admin, group red")
    expect(page.get_by_role("navigation", name="Views").get_by_role("link")).to_have_text(["Now", "Usage", "Try it"])
    expect(page.get_by_role("heading", level=1)).to_contain_text("red")
    live = page.get_by_role("region", name="Tenants", exact=True)
    expect(live.get_by_role("link", name="red/a")).to_be_visible()
    expect(live.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("region", name="Its tenants").get_by_role("link")).to_have_text(["red/a", "red/b"])
    expect(page.locator("dl.settings [data-field='weight']")).to_contain_text("2")
    expect(page.get_by_role("button", name=re.compile("^Edit "))).to_have_count(0)
    text = page.locator("body").inner_text()
    assert not [name for name in OTHERS if name in text]
    live.get_by_role("link", name="red/a").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("red/a")
    expect(page.get_by_role("region", name="Keys")).to_contain_text("valid")
    assert not [name for name in OTHERS if name in page.locator("body").inner_text()]
    expect(page.get_by_role("region", name="Budgets")).to_have_count(0)
    page.goto("/#/now")
    expect(page.get_by_role("region", name="Budgets")).to_contain_text("tokens per day")
    assert found() == set()


def test_what_is_not_for_it_says_so(visit, gateway, lead):
    visitor = visit(gateway)
    page = visitor.sign_in(lead)
    for route in CLOSED:
        visitor.see(*route.split("/"))
        expect(page.get_by_role("alert"), route).to_contain_text("not for the administrator of a group")
    visitor.see("tenant", "blue%2Fc")
    expect(page.get_by_role("alert")).to_contain_text("there is no such tenant")
    visitor.see("group", "blue")
    expect(page.get_by_role("alert")).to_contain_text("There is no such group")


def test_it_edits_a_tenant_within_what_the_group_has(visit, gateway, lead):
    page = visit(gateway).sign_in(lead, "#/tenant/red%2Fa")
    expect(page.get_by_role("button", name=re.compile("^Edit "))).to_have_count(10)
    for field in ("group", "tier", "queued_requests_max", "queued_bytes_max"):
        expect(page.locator(f"[data-field='{field}']").get_by_role("button")).to_have_count(0)
    page.get_by_role("button", name="Edit weight").click()
    page.get_by_role("spinbutton", name="Weight").fill("1")
    expect(page.locator(".effect strong")).to_have_text(
        "Share of the group, while all of its tenants wait: 75 % now, 50 % then."
    )
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-field='weight'] dd span").first).to_have_text("1")
    assert gateway.ask("GET", "/tenants/red%2Fa")[1]["weight"] == 1
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("[data-field='weight'] dd span").first).to_have_text("3")
    page.get_by_role("button", name="Edit in-flight limit").click()
    page.get_by_role("spinbutton", name="In-flight limit").fill("41")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notice.bad")).to_contain_text("must be at most 40, which the group has")
    assert gateway.ask("GET", "/tenants/red%2Fa")[1]["in_flight_max"] is None


def test_it_makes_a_tenant_and_a_key_rotates_and_revokes_it_and_removes_the_tenant(visit, gateway, lead):
    page = visit(gateway).sign_in(lead)
    form = page.get_by_role("form", name="Make a tenant")
    form.get_by_role("textbox").fill("new")
    form.get_by_role("button").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("red/new")
    assert gateway.ask("GET", "/tenants/red%2Fnew")[1]["group"] == "red"
    page.get_by_label("Label").fill("ci")
    page.get_by_role("button", name="Make a key").click()
    secret = page.locator("code.secret").inner_text()
    assert ask_once(gateway, secret) == 200
    page.get_by_role("button", name="Rotate ci").click()
    expect(page.locator("code.secret")).not_to_have_text(secret)
    expect(page.get_by_role("region", name="Keys").locator("tbody tr")).to_have_count(2)
    ends = page.get_by_role("region", name="Keys").locator("tbody tr", has_text=secret[-4:])
    ends.get_by_role("button", name="Revoke ci").click()
    ends.get_by_role("button", name="Really revoke ci").click()
    expect(ends).to_contain_text("revoked")
    assert ask_once(gateway, secret) == 401
    page.get_by_role("button", name="Remove red/new").click()
    page.get_by_role("button", name="Really remove red/new").click()
    expect(page).to_have_url(re.compile(r"#/now(\?range=1h)?$"))
    assert gateway.ask("GET", "/tenants/red%2Fnew")[0] == 404


def test_an_operator_makes_edits_and_removes_groups_and_moves_tenants(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("operator"))
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Groups").click()
    expect(page.get_by_role("region", name="Groups").locator("tbody tr")).to_have_count(2)
    form = page.get_by_role("form", name="Make a group")
    form.get_by_role("textbox").fill("green")
    form.get_by_role("combobox").select_option("iron")
    form.get_by_role("button").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("green")
    page.get_by_role("button", name="Edit weight").click()
    page.get_by_role("spinbutton", name="Weight").fill("2.5")
    expect(page.locator(".effect")).to_contain_text(re.compile("now|No pool"))
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-field='weight'] dd span").first).to_have_text("2.50")
    assert gateway.ask("GET", "/groups/green")[1]["weight"] == 2.5
    page.goto("/#/tenant/free")
    page.get_by_role("button", name="Edit group").click()
    page.get_by_role("combobox", name="Group").select_option("green")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-field='tier'] dd span").first).to_have_text("iron")
    expect(page.get_by_role("button", name="Edit tier")).to_have_count(0)
    assert gateway.ask("GET", "/tenants/free")[1]["group"] == "green"
    page.get_by_role("button", name="Undo").last.click()
    expect(page.locator("[data-field='group'] dd span").first).to_have_text("none")
    left = gateway.ask("GET", "/tenants/free")[1]
    assert (left["group"], left["tier"], left["origin"]) == (None, "default", "declared")
    page.goto("/#/group/green")
    page.get_by_role("button", name="Remove green").click()
    page.get_by_role("button", name="Really remove green").click()
    expect(page.get_by_role("region", name="Groups").locator("tbody tr")).to_have_count(2)


def test_a_viewer_sees_groups_without_a_control(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("viewer"), "#/group/red")
    expect(page.get_by_role("region", name="Its tenants").get_by_role("link")).to_have_text(["red/a", "red/b"])
    expect(page.locator("dl.settings")).to_be_visible()
    expect(page.locator("main form.ask")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("^(Edit|Remove|Revoke|Rotate|Make) "))).to_have_count(0)
