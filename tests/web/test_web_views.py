"""What the page says of a loaded gateway is so, follows it, and answers an operator's questions."""

import json
import re
import threading
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect


def live_document(gateway):
    """The first event of the stream: the whole document."""
    headers = {"Authorization": f"Bearer {gateway.key}", "Accept": "text/event-stream"}
    request = urllib.request.Request(f"{gateway.admin_url}/admin/v1/live", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        for line in answer:
            if line.startswith(b"data:"):
                return json.loads(line[5:])
    raise AssertionError("the stream ended")


def test_now_shows_what_the_gateway_says_and_follows_it(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    tenants = page.get_by_role("region", name="Tenants")
    for name in ("chat", "search", "nightly", "flood"):
        expect(tenants.get_by_role("link", name=name)).to_be_visible()
    document = live_document(loaded)
    (pool,) = document["pools"].values()
    assert set(pool["tenants"]) >= {"chat", "search", "nightly", "flood"}
    for name in ("interactive", "batch"):
        expect(page.get_by_role("region", name="Tiers").get_by_role("rowheader", name=name)).to_be_visible()
    for name in pool["backends"]:
        expect(page.get_by_role("region", name="Backends").get_by_role("rowheader", name=name)).to_be_visible()
    # In ten seconds the page is painted anew about ten times; half of that is asked on a busy machine.
    painted = page.evaluate(
        """() => new Promise((done) => {
          const seen = new Set();
          const watch = new MutationObserver(() => seen.add(document.querySelector("main").innerText));
          watch.observe(document.querySelector("main"), {subtree: true, characterData: true, childList: true});
          setTimeout(() => { watch.disconnect(); done(seen.size); }, 10000);
        })"""
    )
    print(f"\npaints in 10 s: {painted} (target: 10, asked: 5)")
    assert painted >= 5


def test_pause_holds_what_is_shown_and_go_on_shows_what_is_now(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    page.wait_for_selector("main table")
    page.get_by_role("button", name="Pause").click()
    held = page.locator("main").inner_text()
    page.wait_for_timeout(3000)
    assert page.locator("main").inner_text() == held
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("main")).not_to_have_text(held)


def test_the_page_says_which_tenant_gets_the_most_whether_that_is_right_and_where_it_is_tight(visit, loaded, keys):
    """The questions of an operator that has never seen it, as sentences."""
    page = visit(loaded).sign_in(keys["viewer"])
    verdict = page.locator(".pool .verdict")
    expect(verdict).to_contain_text(re.compile(r"gets the most: [\d.]+ % of the last minute"), timeout=30_000)
    expect(verdict).to_contain_text(re.compile(r"The service gap .* of its bound|no service gap"))
    expect(verdict).to_contain_text(re.compile(r"The bottleneck is vllm-\d.*: .+\."), timeout=30_000)


def test_rows_are_sorted_by_any_column_and_filtered(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    region = page.get_by_role("region", name="Tenants")
    names = region.locator("tbody th")
    expect(names.first).to_be_visible()
    region.get_by_role("button", name="Tenant").click()
    shown = names.all_inner_texts()
    assert shown == sorted(shown)
    region.get_by_role("button", name="Tenant").click()
    expect(names.first).to_have_text(shown[-1])
    page.get_by_label("Filter").fill("INTER")  # of the tier, whatever its case
    expect(names).to_have_count(2)
    page.get_by_label("Filter").fill("no such tenant")
    expect(region).to_contain_text("No tenant has this in its name.")


def test_a_tenant_has_its_latencies_beside_its_targets_and_its_plots(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"], "#/tenant/chat")
    expect(page.locator(".figures")).to_contain_text("target 1.5 s")
    expect(page.locator(".figures")).to_contain_text("target 120 ms")
    expect(page.locator(".shares .share")).to_have_count(3)
    expect(page.locator(".plot canvas")).to_have_count(5)  # of its history, without prices


def test_a_limit_that_holds_requests_leads_to_its_setting(visit, loaded, keys):
    """From the reason of the wait to the field, ready to be edited; the field says what waits for it."""
    page = visit(loaded).sign_in(keys["operator"])
    loaded.ask("PATCH", "/tenants/flood", {"in_flight_max": 1})
    try:
        page.get_by_role("region", name="Tenants").get_by_role("link", name="at its in-flight limit").click()
        expect(page.get_by_role("spinbutton", name="In-flight limit")).to_be_focused()
        expect(page.locator("[data-field=in_flight_max] .effect")).to_contain_text("They wait for this limit")
    finally:
        loaded.ask("DELETE", "/tenants/flood")  # what the file says holds again


def test_a_backend_has_a_view_of_its_limits_and_of_what_runs_there(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    page.get_by_role("region", name="Backends").get_by_role("link", name="vllm-0").click()
    expect(page.locator(".figures")).to_contain_text(re.compile(r"\d of 6"))
    rows = page.get_by_role("region", name="Requests in flight there").locator("tbody th a")
    expect(rows.first).to_be_visible()
    assert rows.count() <= 6, "those of the two other backends are not there"


def test_requests_wait_longest_first_each_with_its_reason(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"], "#/requests?state=queued")
    rows = page.get_by_role("region", name="Requests").locator("tbody tr")
    expect(rows.nth(4)).to_be_visible()
    whys = rows.locator("td.text").all_inner_texts()
    assert all(len(why) > 10 for why in whys), whys
    page.get_by_label("Tenant").fill("flood")
    page.get_by_role("button", name="Show").click()
    expect(rows.first).to_contain_text("flood")
    expect(rows.locator("td:nth-child(2)").filter(has_not_text="flood")).to_have_count(0)


def test_a_waiting_request_says_why_and_when_it_will_start(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"], "#/requests?state=queued&tenant=flood")
    page.locator("tbody th .name").first.click()
    expect(page.locator(".verdict, .figures").first).to_be_visible()
    expect(page.locator("main")).to_contain_text(
        re.compile(r"It waits: .+(start|turn|room|queue|limit)|in flight|ended")
    )


@pytest.fixture
def one_call(loaded):
    """A call of its own in a thread: its status and body when it has ended."""
    found = {}

    def start(request_id, max_tokens, model="llama-8b"):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": max_tokens}
        headers = {"Content-Type": "application/json", "X-Tenant-Id": "flood", "X-Request-Id": request_id}
        request = urllib.request.Request(f"{loaded.url}/v1/chat/completions", json.dumps(body).encode(), headers)

        def work():
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    found[request_id] = (answer.status, answer.read().decode())
            except urllib.error.HTTPError as error:
                with error:
                    found[request_id] = (error.code, error.read().decode())

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    start.found = found
    return start


def test_a_request_is_found_by_its_id_and_cancelled_and_found_again_when_it_has_ended(visit, loaded, keys, one_call):
    thread = one_call("find-me-1", 2000)
    page = visit(loaded).sign_in(keys["operator"], "#/requests")
    page.get_by_label("Find by x-request-id").fill("find-me-1")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("find-me-1")
    expect(page.locator(".figures")).to_contain_text("flood")
    page.get_by_role("button", name="Cancel this request, find-me-1").click()
    page.get_by_role("button", name="Really cancel find-me-1").click()
    thread.join(30)
    status, body = one_call.found["find-me-1"]
    print(f"\na cancelled call got {status}: {body[:200]}")
    assert "cancel" in body.lower()
    expect(page.locator(".figures")).to_contain_text("ended")
    expect(page.get_by_role("button", name=re.compile("^Cancel"))).to_have_count(0)
    newest = loaded.ask("GET", "/audit?limit=5")[1]["items"]
    assert any("find-me-1" in each["name"] for each in newest), "its author is in the audit"


def test_an_id_that_never_came_is_said_to_be_unknown(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"], "#/request/never-came")
    expect(page.get_by_role("alert")).to_contain_text("There is no such request")


def test_what_if_plays_the_recorded_calls_under_other_weights(visit, loaded, keys):
    """Of the last minute: a replay of all that the tests before have asked for takes longer with each of them."""
    page = visit(loaded).sign_in(keys["operator"], "#/what-if")
    page.wait_for_timeout(20_000)  # so that enough calls have ended
    page.get_by_label("Of the last").fill("1")
    page.get_by_label("Change 1 of").select_option(label="nightly")
    page.get_by_label("Value of change 1").fill("3")
    page.get_by_role("button", name="Play it").click()
    row = (
        page.get_by_role("region", name="By tenant")
        .get_by_role("row")
        .filter(has=page.get_by_role("link", name="nightly"))
    )
    expect(row).to_be_visible(timeout=120_000)
    expect(page.locator("main")).to_contain_text("was measured")
    expect(page.locator(".verdict").first).to_contain_text(re.compile(r"nightly gains [\d.]+ points?"))
    expect(page.locator(".verdict").first).to_contain_text(re.compile(r"\d+ of \d+ calls came once their client had"))
    # Every call is served in the end, whatever the weights; so what a weight changes is how long they wait.
    replayed, instead = (in_seconds(row.locator(f"td.{run}").nth(1).inner_text()) for run in ("replayed", "instead"))
    print(f"\nTTFT of nightly in simulation: {replayed} s by weight 1, {instead} s by weight 3")
    assert instead < replayed
    # It is still there after a look at another view.
    page.goto("/#/now")
    page.goto("/#/what-if")
    expect(row).to_be_visible()


def test_a_what_if_is_stopped_and_one_that_is_far_from_what_happened_is_not_trusted(visit, loaded, keys):
    """By answers that are made up: a real one may be done before it is stopped."""
    tenants = {"chat": {"service": 1, "ttft_p50_s": 1.0}}
    run = {"requests": 30, "served": 30, "throughput_tokens_per_s": 9, "ttft_p50_s": 1.0, "tenants": tenants}
    answer = {"id": "one", "state": "running", "progress": 0.4, "weights": {}, "trust": None}
    stopped = []

    def of_one(route):
        if route.request.method == "DELETE":
            stopped.append(True)
            answer["state"] = "stopped"
            return route.fulfill(status=204)
        return route.fulfill(json=answer)

    page = visit(loaded).sign_in(keys["operator"], "#/what-if")
    page.route("**/admin/v1/what-ifs", lambda route: route.fulfill(status=202, json=answer))
    page.route("**/admin/v1/what-ifs/one", of_one)
    page.get_by_role("button", name="Play it").click()
    expect(page.locator("main")).to_contain_text("It is played: 40 %")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert")).to_contain_text("It was stopped.")
    assert stopped == [True]
    judged = {"is_trusted": False, "factor": 41.0, "factor_max": 2.0, "figure": "ttft_p50_s", "tenant": "chat"}
    answer |= {"id": "two", "state": "done", "trust": judged, "happened": run, "replayed": run, "instead": run}
    answer["closed_loop_calls"] = 21
    answer["changes"] = {"engines": -1, "tiers": {"batch": {"weight": 3}}, "aliases": {"a": {"split": {"b": 1}}}}
    page.route("**/admin/v1/what-ifs/two", lambda route: route.fulfill(json=answer))
    page.get_by_role("button", name="Play it").click()
    expect(page.get_by_role("alert")).to_contain_text("Do not trust the seconds of this replay.")
    expect(page.get_by_role("alert")).to_contain_text("by a factor of 41 in the median TTFT of chat")
    expect(page.locator(".verdict").first).to_contain_text("21 of 30 calls came once their client had an answer")
    expect(page.locator(".verdict").first).to_contain_text("Asked: 1 engine fewer; tier batch: weight 3; alias a: b 1.")


def test_a_what_if_is_asked_with_engines_tiers_limits_and_the_split_of_an_alias(visit, loaded, keys):
    loaded.ask("POST", "/aliases", {"id": "two", "models": ["llama-8b", "llama-70b"]})
    page = visit(loaded).sign_in(keys["operator"], "#/what-if")
    asked = []

    def answered(route):
        asked.append(route.request.post_data_json)
        answer = {"id": "0123456789abcdef", "state": "failed", "error": "it is made up"}
        return route.fulfill(status=202, json=answer)

    page.route("**/admin/v1/what-ifs**", answered)
    page.get_by_label("Engines more").fill("1")
    changes = [("batch", None, "2.5"), ("batch", "Reserve", "0.2"), ("flood", "Requests per minute", "60")]
    changes += [("flood", "Tier", "interactive"), ("two", "weight of llama-70b", "3")]
    for number, (of, setting, value) in enumerate(changes, start=1):
        page.get_by_label(f"Change {number} of").select_option(label=of)
        if setting is not None:
            page.get_by_label(f"Setting of change {number}").select_option(label=setting)
        field = page.get_by_label(f"Value of change {number}")
        if setting == "Tier":
            field.select_option(value)
        else:
            field.fill(value)
    expect(page.get_by_label("Value of change 1")).to_have_attribute("placeholder", "now 1")
    page.get_by_role("button", name="Play it").click()
    expect(page.get_by_role("alert")).to_contain_text("it is made up")
    assert asked[0]["changes"] == {
        "engines": 1,
        "tiers": {"batch": {"weight": 2.5, "reserve_ratio": 0.2}},
        "tenants": {"flood": {"requests_per_minute_max": 60, "tier": "interactive"}},
        "aliases": {"two": {"split": {"llama-8b": 1, "llama-70b": 3}}},
    }
    loaded.ask("DELETE", "/aliases/two")


def in_seconds(text):
    value, unit = text.split()
    return float(value) * {"ms": 0.001, "s": 1}[unit]


def test_a_stream_that_breaks_is_said_and_comes_back(visit, loaded, keys):
    visitor = visit(loaded)
    page = visitor.sign_in(keys["viewer"])
    expect(page.locator(".stream")).to_contain_text("live")
    page.route("**/admin/v1/live", lambda route: route.abort())
    page.evaluate("import('/web/live.js').then((module) => module.live.start())")
    expect(page.locator(".stream")).to_contain_text("retrying")
    page.unroute("**/admin/v1/live")
    expect(page.locator(".stream")).to_contain_text("live", timeout=30_000)
