"""What an operator does from the page: engines and the audit log, and what has ended."""

import re
import time

import pytest
from playwright.sync_api import expect
from web_rig import MODEL, PATIENCE_MS, ask_once, serving

PRICES = {MODEL: {"currency": "EUR", "periods": [{"prompt": 1.0, "output": 2.0}]}}
TIERS = {"gold": {"weight": 4}}
TENANTS = {"idle": {"tier": "gold"}, "short": {"requests_per_minute_max": 1}}


@pytest.fixture(scope="module")
def gateway(engines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("operating")
    (folder / "keys").touch()
    auth = {"mode": "keys", "secret": "0123456789abcdef", "keys_file": str(folder / "keys")}
    backends = [
        {"name": f"vllm-{at}", "url": each.url, "requests_running_max": 6} for at, each in enumerate(engines[:2])
    ]
    admin = {"enabled": True, "port": 0, "key_file": str(folder / "admin-key"), "backend_networks": ["127.0.0.0/8"]}
    settings = {"tiers": TIERS, "tenants": TENANTS, "prices": PRICES, "auth": auth, "admin": admin}
    with serving(folder, backends, **settings) as served:
        yield served


@pytest.fixture
def operator(gateway, visit):
    visitor = visit(gateway)
    visitor.sign_in(gateway.key)  # of the role admin, which makes keys, too
    return visitor


def key_for(gateway, tenant):
    status, made = gateway.ask("POST", "/keys", {"tenant": tenant})
    assert status == 201, made
    return made


def test_a_backend_is_drained_and_taken_back_by_undo(operator, gateway):
    page = operator.page
    operator.see("engines")
    row = page.get_by_role("region", name="Backends").locator("tbody tr").filter(has_text="vllm-1")
    expect(row).to_contain_text("given")
    expect(row).to_contain_text("the file")
    expect(page.get_by_role("columnheader", name=re.compile("^Time per output token"))).to_be_visible()
    row.get_by_role("button", name="Drain vllm-1").click()
    expect(row).to_contain_text("draining")
    assert gateway.ask("GET", "/backends/vllm-1")[1]["draining"] is True
    page.get_by_role("button", name="Undo").click()
    expect(row).to_contain_text("healthy")
    assert gateway.ask("GET", "/backends/vllm-1")[1]["draining"] is False


def test_a_backend_is_added_and_removed_and_the_log_says_by_whom(operator, gateway, engines):
    page = operator.page
    operator.see("engines")
    page.get_by_label("Name").fill("vllm-new")
    page.get_by_label("URL").fill(engines[2].url)
    page.get_by_label("Its --max-num-seqs").fill("6")
    page.get_by_role("button", name="Add a backend").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("vllm-new")
    expect(page.locator(".figures")).to_contain_text("of 6")
    page.get_by_role("button", name="Remove vllm-new").click()
    page.get_by_role("button", name="Really remove vllm-new").click()
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while gateway.ask("GET", "/backends/vllm-new")[0] != 404:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    operator.see("audit")
    rows = page.get_by_role("region", name="Changes").locator("tbody tr")
    page.get_by_label("Of", exact=True).fill("vllm-new")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("removed")
    expect(rows.last).to_contain_text(re.compile("made, with .*url: http"))
    page.get_by_label("By", exact=True).fill("nobody")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows.first).to_contain_text("None is like that")


def test_ended_requests_have_their_time_cost_key_and_words_and_are_found_by_them(operator, gateway):
    made = key_for(gateway, "idle")
    assert ask_once(gateway, made["secret"], {"x-request-id": "mine-1"}) == 200
    assert 429 in [ask_once(gateway, key_for(gateway, "short")["secret"]) for _ in range(2)]
    page = operator.page
    operator.see("requests?state=ended")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    mine = rows.filter(has_text="mine-1")
    expect(mine).to_contain_text("answered")
    expect(mine).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    expect(page.get_by_role("region", name="Requests").locator("thead")).to_contain_text("EUR")
    page.get_by_label("Key").fill(made["id"])
    page.wait_for_timeout(2_500)  # what is typed stays while the list is asked for again
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows).to_have_count(1)
    operator.see("requests?state=ended")
    page.get_by_role("form", name="Filters").get_by_role("combobox").select_option("rate_limited")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(rows.first).to_contain_text("refused: over its rate limit")
    expect(rows.filter(has_text="mine-1")).to_have_count(0)
    operator.see("request", "mine-1")
    expect(page.locator("main")).to_contain_text("permanent link")
    expect(page.locator("main")).to_contain_text(made["id"])
    expect(page.locator(".figures")).to_contain_text("EUR")


def test_a_limit_of_an_engine_says_where_it_is_from_and_is_edited_where_it_stands(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["operator"], "#/backend/vllm-1")
    limit = page.locator("[data-field='requests_running_max']")
    expect(limit.locator("dd span").first).to_have_text("6")
    expect(page.locator("[data-field='kv_tokens_max']")).to_contain_text("as it says itself")
    limit.get_by_role("button", name="Edit requests at once").click()
    limit.get_by_role("spinbutton").fill("5")
    limit.get_by_role("button", name="Save").click()
    expect(limit.locator("dd span").first).to_have_text("5")
    assert loaded.ask("GET", "/backends/vllm-1")[1]["requests_running_max"] == 5
    page.get_by_role("button", name="Undo").click()
    expect(limit.locator("dd span").first).to_have_text("6")
