"""The charts of what was, of a gateway under load: one range for all views, events on them, and one minute's table."""

import json
import re
import time

from playwright.sync_api import expect


def minute_is_over(gateway):
    """The start of the first minute that is recorded, once there is one in which tenants were served."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        at = (time.time() // 60 - 1) * 60
        answer = gateway.ask("GET", f"/history/minute?at={at}")[1]
        if any(row["kind"] == "tenant" and row["values"]["tokens"] for row in answer["rows"]):
            return at, answer
        time.sleep(2)
    raise AssertionError("no minute was recorded")


def charted(gateway, pool, span):
    """From when to when a chart of the pool goes, and since when there is something in it."""
    found = gateway.ask("GET", f"/history?of=pool:{pool}&range={span}")[1]
    tokens = found["pools"][pool]["values"]["tokens"]
    first = next(at for at, value in enumerate(tokens) if value is not None)
    begin, since, end = (found["from_s"] + at * found["step_s"] for at in (0, first, len(tokens)))
    return max(begin, min(since, end - 12 * found["step_s"])), end, since


def test_every_view_has_its_charts_in_one_range_that_the_address_keeps(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    history = page.get_by_role("region", name="History", exact=True)
    expect(history.locator(".plot canvas")).to_have_count(5, timeout=60_000)  # without prices, and without a share
    expect(page).to_have_url(re.compile(r"range=1h"))
    history.get_by_label("Range").select_option("15m")
    expect(page).to_have_url(re.compile(r"range=15m"))
    page.get_by_role("region", name="Tenants").get_by_role("link", name="chat").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("chat")
    expect(page).to_have_url(re.compile(r"tenant/chat\?range=15m"))
    expect(history.get_by_label("Range")).to_have_value("15m")
    expect(history.get_by_role("img", name=re.compile(r"Share of the pool: last [\d.]+ %"))).to_be_visible(
        timeout=60_000
    )
    expect(history.get_by_role("img", name=re.compile(r"TTFT, 90 % within: last [\d.]+ m?s"))).to_be_visible()
    page.reload()
    expect(history.get_by_label("Range")).to_have_value("15m")
    for view, first in (("tier/batch", "Tokens per second"), ("backend/vllm-0", "Slots in use")):
        page.goto(f"/#/{view}?range=6h")
        expect(history.get_by_label("Range")).to_have_value("6h")
        expect(history.get_by_role("img", name=re.compile(first))).to_be_visible(timeout=90_000)


def test_notes_and_changes_are_events_on_it(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["operator"], "#/tenant/nightly")
    page.get_by_label("Note", exact=True).fill("deployed <b>1.2</b>")
    page.get_by_role("button", name="Add it").click()
    what = page.get_by_role("list", name="What happened")
    expect(what).to_contain_text(re.compile(r"\d\d:\d\d:\d\d deployed <b>1.2</b>"))  # two of one minute differ
    loaded.ask("PATCH", "/tenants/nightly", {"weight": 2})
    try:
        said = re.compile("tenants/nightly set instead of the file's: weight: 1 → 2 by")
        expect(what).to_contain_text(said, timeout=30_000)
    finally:
        loaded.ask("DELETE", "/tenants/nightly")  # what the file says holds again
    assert loaded.ask("POST", "/notes", {"text": "x"}, key=keys["viewer"])[0] == 403
    viewer = visit(loaded).sign_in(keys["viewer"], "#/tenant/nightly")
    expect(viewer.get_by_role("list", name="What happened")).to_contain_text("deployed")
    expect(viewer.get_by_role("button", name="Add it")).to_have_count(0)


def test_a_click_on_a_chart_shows_what_was_in_that_minute(visit, loaded, keys):
    at, answer = minute_is_over(loaded)
    page = visit(loaded).sign_in(keys["viewer"], "#/now?range=15m")
    over = page.get_by_role("region", name="History", exact=True).locator(".plot .u-over").first
    expect(over).to_be_visible(timeout=60_000)
    box = over.bounding_box()
    begin, end, _ = charted(loaded, answer["rows"][0]["pool"], "15m")
    over.click(position={"x": box["width"] * (at + 30 - begin) / (end - begin), "y": 20})
    expect(page).to_have_url(re.compile(r"at=\d+"))
    shown = page.get_by_role("region", name="Tenants in that minute")
    served = {row["name"] for row in answer["rows"] if row["kind"] == "tenant"}
    for name in served:
        expect(shown.get_by_role("link", name=name)).to_be_visible()
    expect(page.get_by_role("region", name="Backends in that minute").locator("tbody tr")).to_have_count(3)
    # By keyboard: the minute before is not there, or is another one.
    page.get_by_role("button", name="Minute before").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"at=\d+"))
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("region", name="One minute")).to_have_count(0)
    # By the field, as one who knows the time.
    local = page.evaluate(
        "(s) => new Date(s * 1000 - new Date(s * 1000).getTimezoneOffset() * 60000).toISOString().slice(0, 16)", at
    )
    page.get_by_label("Minute", exact=True).fill(local)
    expect(shown).to_be_visible()


def test_a_chart_of_a_day_begins_when_the_recording_does(visit, loaded, keys):
    """A gateway that has run for some minutes shows those, not a day with all of it at its right edge."""
    _, answer = minute_is_over(loaded)
    page = visit(loaded).sign_in(keys["viewer"], "#/now?range=24h")
    over = page.get_by_role("region", name="History", exact=True).locator(".plot .u-over").first
    expect(over).to_be_visible(timeout=60_000)
    begin, end, since = charted(loaded, answer["rows"][0]["pool"], "24h")
    clock = page.evaluate("(s) => new Date(s * 1000).toLocaleTimeString('sv-SE').slice(0, 5)", since)
    expect(page.get_by_role("heading", name=re.compile("^Before now"))).to_contain_text(f"recorded since {clock}")
    over.click(position={"x": over.bounding_box()["width"] / 2, "y": 20})
    expect(page).to_have_url(re.compile(r"at=\d+"))
    assert abs(int(re.search(r"at=(\d+)", page.url)[1]) - (begin + end) / 2) <= 120


def test_lists_compare_what_they_list_in_the_same_range(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"], "#/tenants")
    history = page.get_by_role("region", name="History", exact=True)
    per_second = r"[\d,.]+( k)?.s"
    tokens = f"Tokens per second: chat: last {per_second}, at most {per_second}; flood: last {per_second}"
    expect(history.get_by_role("img", name=re.compile(tokens))).to_be_visible(timeout=90_000)
    history.get_by_label("Range").select_option("15m")
    expect(page).to_have_url(re.compile(r"range=15m"))  # the page writes it a little later
    for view, charts in {
        "requests": [r"Requests queued: llama-8b: last [1-9]\d*, at most", "Longest wait: llama-8b: last "],
        "engines": [r"Slots in use: vllm-0: last [\d.]+ %.+; vllm-1: last ", "KV tokens reserved: vllm-0: last "],
        "models": [f"Tokens per second: llama-8b: last {per_second}"],
    }.items():
        page.goto(f"/#/{view}")
        expect(page).to_have_url(re.compile(r"range=15m"))
        for chart in charts:
            expect(history.get_by_role("img", name=re.compile(chart))).to_be_visible(timeout=60_000)
        expect(history.locator(".plot canvas")).to_have_count(len(charts))
    box = history.locator(".plot .u-over").bounding_box()
    history.locator(".plot .u-over").click(position={"x": box["width"] - 2, "y": 40})
    expect(page.get_by_role("region", name="One minute")).to_be_visible()


def test_lines_of_a_list_stay_while_its_order_changes_every_second(visit, loaded, keys):
    """Six tenants take turns in being the fifth of five that are shown."""
    visitor = visit(loaded)
    told = []

    def live(route):
        told.append(len(told))
        shares = {f"t{number}": 0.3 - 0.01 * ((number + len(told)) % 6) for number in range(6)}
        tenants = {
            name: {"tier": "batch", "weight": 1, "share": [share] * 3, "due": [share] * 3, "queued": 0, "in_flight": 1}
            for name, share in shares.items()
        }
        pool = {"policy": "vtc", "tiers": {}, "groups": {}, "backends": {}, "tenants": tenants}
        document = {"at": 1, "gateway": {"name": "one"}, "cluster": {}, "pools": {"llama": pool}}
        event = f"id: 1\nevent: state\ndata: {json.dumps(document)}\n\n"
        route.fulfill(content_type="text/event-stream", body=event)

    def history(route):
        values = {"tokens": [9] * 12}
        told_of = re.search(r"of=([^&]+)", route.request.url)[1].replace("%3A", ":")
        route.fulfill(json={"of": told_of, "from_s": 0, "step_s": 10, "pools": {"llama": {"values": values}},
                            "events": [], "missing": [], "currency": None})  # fmt: skip

    visitor.page.route("**/admin/v1/live", live)
    visitor.page.route("**/admin/v1/history?**", history)
    page = visitor.sign_in(keys["viewer"], "#/tenants")
    expect(page.locator(".plot canvas")).to_have_count(1)
    page.evaluate("document.querySelector('.plot canvas').isFirst = true")
    before, orders = sum("/history?" in url for url in visitor.asked), len(told)
    page.wait_for_timeout(6000)
    assert len(told) - orders >= 6, "the order has changed meanwhile"
    assert sum("/history?" in url for url in visitor.asked) - before <= 5, "five are asked for, every ten seconds"
    assert page.evaluate("document.querySelector('.plot canvas').isFirst"), "it was not drawn anew"
