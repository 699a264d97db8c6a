"""Aliases and price lists in the page: made, edited with an undo, and removed by operators."""

import re

import pytest
from playwright.sync_api import expect
from web_rig import MODEL, Callers, serving, start_engines

ALIASES = {"chat": {"models": [MODEL]}}
PRICES = {MODEL: {"currency": "EUR", "periods": [{"prompt": "0.10", "output": "0.40"}]}}


@pytest.fixture(scope="module")
def gateway(engines, tmp_path_factory):
    backends = [{"name": "vllm-0", "url": engines[0].url}]
    with serving(tmp_path_factory.mktemp("models"), backends, aliases=ALIASES, prices=PRICES) as served:
        yield served


def edit(page, label, typed):
    page.get_by_role("button", name=f"Edit {label[0].lower()}{label[1:]}").click()
    page.get_by_role("textbox", name=label).fill(typed)
    page.get_by_role("button", name="Save").click()


def test_an_operator_makes_edits_and_removes_an_alias(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("operator"))
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Models").click()
    expect(page.get_by_role("region", name="Aliases").get_by_role("link", name="chat")).to_be_visible()
    form = page.get_by_role("form", name="Make an alias")
    form.get_by_label("Name").fill("fast")
    form.get_by_label("Models, in order").fill(f"{MODEL}, other")
    form.get_by_role("button").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("fast")
    before = gateway.ask("GET", "/aliases/fast")[1]
    assert before["models"] == [MODEL, "other"]
    for label, typed, said, name, value in (
        ("Split by weight", f"{MODEL} 9, other 1", f"{MODEL} 9, other 1", "split", {MODEL: 9.0, "other": 1.0}),
        ("Models, in order", MODEL, MODEL, "models", [MODEL]),
        ("Copies to", "other", "other", "shadow", {"model": "other", "ratio": 1.0, "in_flight_max": 1}),
    ):
        edit(page, label, typed)
        field = page.locator(f"[data-field='{name}'], [data-field='{name}.model']").first
        expect(field.locator("dd span").first).to_have_text(said)
        assert gateway.ask("GET", "/aliases/fast")[1][name] == value
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".notice").last).to_contain_text("again")
        assert gateway.ask("GET", "/aliases/fast")[1] == before
        page.evaluate("document.querySelectorAll('.notice .quiet').forEach((each) => each.click())")
    page.get_by_role("button", name="Remove fast").click()
    page.get_by_role("button", name="Really remove fast").click()
    expect(page.get_by_role("region", name="Aliases").get_by_role("link")).to_have_text(["chat"])


def test_an_operator_sets_the_prices_of_a_later_period_and_takes_them_back(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("operator"), "#/models")
    page.get_by_role("region", name="Prices").get_by_role("link", name=MODEL).click()
    expect(page.get_by_role("region", name="Periods")).to_contain_text("the beginning")
    form = page.get_by_role("form", name="Add a period")
    form.get_by_label("From").fill("2031-01-01")
    form.get_by_label("Prompt", exact=True).fill("0.20")
    form.get_by_label("Output").fill("0.8")
    form.get_by_role("button").click()
    expect(page.get_by_role("region", name="Periods").locator("tbody tr")).to_have_count(2)
    periods = gateway.ask("GET", f"/prices/{MODEL}")[1]["periods"]
    assert [(each["valid_from"], each["prompt"], each["output"]) for each in periods] == [
        (None, "0.10", "0.40"),
        ("2031-01-01", "0.20", "0.8"),
    ]
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("region", name="Periods").locator("tbody tr")).to_have_count(1)
    assert len(gateway.ask("GET", f"/prices/{MODEL}")[1]["periods"]) == 1


def test_a_price_list_is_made_in_the_currency_of_the_others(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("operator"), "#/models")
    expect(page.get_by_role("region", name="Prices").get_by_role("link", name=MODEL)).to_be_visible()
    form = page.get_by_role("form", name="Make a price list")
    form.get_by_label("Model").fill("org/other")
    form.get_by_label("Prompt", exact=True).fill("1")
    form.get_by_label("Output").fill("2,5")
    expect(form.get_by_role("button")).to_be_disabled()
    form.get_by_label("Output").fill("2.5")
    form.get_by_role("button").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("org/other")
    made = gateway.ask("GET", "/prices/org%2Fother")[1]
    assert (made["currency"], made["periods"][0]["output"]) == ("EUR", "2.5")


def test_a_viewer_sees_them_without_a_control(visit, gateway):
    page = visit(gateway).sign_in(gateway.key_of("viewer"), "#/models")
    expect(page.get_by_role("region", name="Aliases").get_by_role("link", name="chat")).to_be_visible()
    expect(page.locator("main form")).to_have_count(0)
    page.goto("/#/alias/chat")
    expect(page.locator("dl.settings")).to_be_visible()
    page.goto(f"/#/price/{MODEL}")
    expect(page.get_by_role("region", name="Periods")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^(Edit|Remove|Add) "))).to_have_count(0)


def test_a_model_of_an_alias_that_no_backend_serves_is_said_in_the_list_in_its_view_and_now(visit, gateway):
    aliases = {"broken": {"models": ["llama-80b"]}, "half": {"models": [MODEL, "llama-80b"]}}
    for name, alias in aliases.items():
        assert gateway.ask("POST", "/aliases", {"id": name, **alias})[0] == 201
    page = visit(gateway).sign_in(gateway.key_of("viewer"))
    verdict = page.locator(".pool .verdict")
    expect(verdict).to_contain_text(
        "The alias broken stands for llama-80b, which no backend serves: its calls get 503."
    )
    expect(verdict).to_contain_text("The alias half stands for llama-80b, which no backend serves: these calls go on")
    page.goto("/#/models")
    row = page.get_by_role("region", name="Aliases").get_by_role("row").filter(has_text="broken")
    expect(row).to_contain_text("no backend serves llama-80b")
    page.goto("/#/alias/broken")
    expect(page.locator("main")).to_contain_text("its calls get 503")
    expect(page.locator("main")).not_to_contain_text("The alias half")
    for name in aliases:
        gateway.ask("DELETE", f"/aliases/{name}")


def test_the_view_of_an_alias_says_how_many_calls_were_passed_on_and_why(visit, background, tmp_path):
    full, small = (background.run(start_engines(1, model=model))[0] for model in (MODEL, "small"))
    backends = [{"name": "b0", "url": full.url, "requests_running_max": 1}, {"name": "b1", "url": small.url}]
    aliases = {name: {"models": [MODEL, "small"]} for name in ("chat", "other")}
    tiers, tenants = {"gold": {"envelope": {"ttft_ms": 400}}}, {"caller": {"tier": "gold"}}
    with serving(tmp_path, backends, aliases=aliases, tiers=tiers, tenants=tenants) as gateway:
        stop = background.start(Callers(gateway.url).call_once_each(["occupant"], max_tokens=4_000))
        page = visit(gateway).sign_in(gateway.key_of("viewer"), "#/now/" + MODEL)
        expect(page.locator("dl.figures").first).to_contain_text("requests in flight1")
        callers = Callers(gateway.url, "chat")
        background.run(callers.call_once_each(["caller"] * 3))
        assert callers.counts == {"caller": {200: 3}}
        page.goto("/#/alias/chat")
        expect(page.get_by_role("region", name="Passed on")).to_contain_text("3 too late for its target")
        page.goto("/#/alias/other")
        expect(page.get_by_role("region", name="Passed on")).to_contain_text("None.")
        stop()
    for each in (full, small):
        background.run(each.stop())
