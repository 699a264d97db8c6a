"""Try it: one prompt as a tenant, with the answer as it comes, and what it waited and cost."""

import re

import pytest
from playwright.sync_api import expect
from test_web_groups import GROUPS, TENANTS, TIERS
from web_rig import MODEL, serving

PRICES = {MODEL: {"currency": "EUR", "periods": [{"prompt": "100", "output": "400"}]}}


@pytest.fixture(scope="module")
def gateway(engines, tmp_path_factory):
    backends = [{"name": "vllm-0", "url": engines[0].url, "requests_running_max": 6}]
    settings = {"tiers": TIERS, "groups": GROUPS, "tenants": TENANTS, "prices": PRICES}
    with serving(tmp_path_factory.mktemp("tried"), backends, **settings) as served:
        yield served


def figure(page, label):
    return page.locator(".figure").filter(has_text=label).locator("dd")


def send(page, **fields):
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " ")).fill(value)
    page.get_by_role("button", name="Send it").click()


def test_an_answer_comes_with_its_waits_its_cost_and_its_trace(visit, gateway, keys):
    page = visit(gateway).sign_in(gateway.key_of("operator"), "#/try?tenant=free")
    expect(page.get_by_label("Model or alias")).to_have_value(MODEL)
    expect(page.get_by_label("Tenant")).to_have_value("free")
    send(page, At_most="40", Prompt="hello there")
    expect(page.locator(".answer")).not_to_have_text(re.compile("Waiting|No text"))
    for label in ("In the queue", "Time to first token", "In all"):
        expect(figure(page, label)).to_contain_text(re.compile(r"\d m?s"))
    expect(figure(page, "Tokens")).to_contain_text("40 after")
    expect(figure(page, "Cost")).to_contain_text(re.compile(r"0\.0\d+ EUR"))
    expect(page.locator("code.secret")).to_have_text(re.compile("^[0-9a-f]{32}$"))
    page.get_by_role("link", name=re.compile("^trial-")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("trial-")
    expect(page.locator("main")).to_contain_text("free")
    assert gateway.ask("GET", "/audit?kind=trials")[1]["items"][0]["name"] == f"free at {MODEL}"


def test_what_is_refused_is_said_and_a_long_one_can_be_stopped(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("operator"), "#/try")
    send(page, Tenant="free", Model_or_alias="no-such-model")
    expect(page.get_by_role("alert").filter(has_text="404")).to_contain_text("does not exist")
    send(page, Model_or_alias=MODEL, At_most="4000")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert").filter(has_text="You stopped it")).to_be_visible()
    expect(page.get_by_role("button", name="Send it")).to_be_visible()


def test_the_administrator_of_a_group_calls_as_its_tenants_alone(visit, gateway):
    status, made = gateway.ask("POST", "/keys", {"role": "group-admin", "group": "red", "label": "lead"})
    assert status == 201
    page = visit(gateway).sign_in(made["secret"])
    page.get_by_role("link", name="Try it").click()
    send(page, Tenant="blue/c", Model_or_alias=MODEL, At_most="8")
    expect(page.get_by_role("alert").filter(has_text="tenant is no tenant")).to_be_visible()
    send(page, Tenant="red/a")
    expect(figure(page, "Tokens")).to_contain_text("8 after")


def test_a_viewer_cannot(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("viewer"), "#/try")
    expect(page.locator("main")).to_contain_text("the role operator is needed")
