"""What the page says is what the gateway said: sentences, cells and columns by documents that are made up."""

import json
import re
import time

import pytest
from playwright.sync_api import expect

LONG = "research-and-development-batch-evaluation-no-001"  # 48 letters
WINDOWS = [0.25, 0.25, 0.25]


def a_tenant(**given):
    return {"tier": "batch", "weight": 1, "share": WINDOWS, "due": WINDOWS, "queued": 0, "in_flight": 1, **given}


def a_backend(**given):
    return {
        "available": True,
        "draining": False,
        "in_flight": 1,
        "requests_limit": 8,
        "tokens": 1,
        "tokens_limit": 9,
        **given,
    }


def a_pool(**given):
    tier = {"weight": 1, "share": WINDOWS, "due": WINDOWS, "queued": 0, "in_flight": 1}
    return {"policy": "vtc", "tiers": {"batch": tier}, "groups": {}, "backends": {}, "tenants": {}, **given}


def shows(page, pool, **given):
    """The live document has this pool alone, whatever the gateway says."""
    document = {"at": 1, "gateway": {"name": "one"}, "cluster": {}, "pools": {"llama": pool}, **given}
    event = f"id: 1\nevent: state\ndata: {json.dumps(document)}\n\n"
    page.route("**/admin/v1/live", lambda route: route.fulfill(content_type="text/event-stream", body=event))


@pytest.fixture
def looking(visit, loaded, keys):
    """Opens the page at a view, with this pool."""

    def opened(pool, route="", **context):
        visitor = visit(loaded, **context)
        shows(visitor.page, pool)
        return visitor.sign_in(keys["operator"], route)

    return opened


def test_a_slow_backend_is_named_where_none_limits_the_pool(looking):
    backends = {"fast": a_backend(token_s=0.01), "slow": a_backend(token_s=0.032)}
    verdict = looking(a_pool(backends=backends, bottleneck=None)).locator(".pool .verdict")
    expect(verdict).to_contain_text(
        "No backend limits the pool. slow takes 3.2 times as long for an output token as fast: 32 ms, not 10 ms."
    )


def test_what_was_changed_of_a_hurt_tenant_is_said_beside_it_and_by_whom(visit, loaded, keys):
    visitor = visit(loaded)
    made = {"at": time.time() - 60, "actor": "key-1", "actor_label": "ana", "kind": "tenants", "action": "update"}
    late = {
        **made,
        "revision": 2,
        "name": "late",
        "before": None,
        "after": {"in_flight_max": 1},
        "declared": {"weight": 2},
    }
    old = {**late, "revision": 1, "at": time.time() - 7200, "name": "old"}
    audit = {"items": [late, old], "next_cursor": None}
    visitor.page.route("**/admin/v1/audit?*", lambda route: route.fulfill(json=audit))
    refused = a_tenant(refused=3, refused_by={"rate_limited": 3})
    shows(visitor.page, a_pool(tenants={"late": refused, "old": refused}))
    said = visitor.sign_in(keys["viewer"]).locator(".who-is-hurt")
    change = r"weight: 2 → 1, in_flight_max: no limit → 1"
    expect(said).to_contain_text(
        re.compile(rf"late is refused \(3 calls [^;]+; changed at \d\d:\d\d by ana: {change}\);")
    )
    expect(said).to_contain_text(re.compile(change))
    expect(said).to_contain_text(re.compile(r"old is refused \(3 calls [^;]+\)\."))


def test_backends_that_are_lost_or_drained_come_before_who_gets_the_most(looking):
    backends = {
        "one": a_backend(available=False, unavailable_since=time.time() // 60 * 60 - 3, trouble="/health: status 500"),
        "two": a_backend(draining=True, available=False),
        "three": a_backend(),
    }
    page = looking(a_pool(backends=backends))
    lines = page.locator(".pool .verdict > p")
    expect(
        lines.filter(has_text=re.compile(r"backend not available: one since \d\d:\d\d:57 \(/health: status 500\)\."))
    ).to_have_count(1)
    expect(page.get_by_role("row", name=re.compile(r"^one not available since \d\d:\d\d:57 "))).to_be_visible()
    expect(lines.filter(has_text="backend drained: two.")).to_have_count(1)
    expect(lines.nth(0)).to_contain_text("1 backend not available")


def test_a_dead_backend_is_what_a_pool_lacks_and_no_bottleneck(looking):
    backends = {"one": a_backend(available=False), "two": a_backend()}
    dead = {"backend": "one", "bound_by": "unhealthy", "slow_ratio": None, "full": ["one", "two"]}
    verdict = looking(a_pool(backends=backends, bottleneck=dead)).locator(".pool .verdict")
    expect(verdict).to_contain_text("What the pool lacks is one, which was not available for most of the last minute.")
    expect(verdict).not_to_contain_text("bottleneck")


@pytest.mark.parametrize("route", ["", "#/engines", "#/backend/two"])
def test_a_backend_that_answers_slowly_is_healthy_but_slow(looking, route):
    page = looking(a_pool(backends={"two": a_backend(slow_ratio=3.2)}), route)
    expect(page.get_by_text("healthy, slow 3.2 times as long for a token as is usual here").first).to_be_visible()


def test_a_long_wait_is_said_where_no_tenant_is_hurt(looking):
    waits = a_tenant(queued=57, oldest_wait_s=22.0, waits="no_room")
    verdict = looking(a_pool(tenants={"nightly": waits, "chat": a_tenant()})).locator(".pool .verdict")
    said = "held back. But 57 requests of nightly, which has no target, wait, the oldest for 22 s: no backend has room."
    expect(verdict).to_contain_text(said)


def test_a_long_wait_is_said_beside_a_tenant_that_is_hurt(looking):
    waits = a_tenant(queued=57, oldest_wait_s=22.0, waits="no_room")
    held = a_tenant(queued=6, oldest_wait_s=30.0, waits="tenant_limit")
    said = looking(a_pool(tenants={"atlas": waits, "maple": held})).locator(".who-is-hurt")
    expect(said).to_contain_text("1 tenant is hurt: maple is held (6 requests wait, the oldest for 30 s")
    expect(said).to_contain_text("Beside that, 57 requests of atlas, which has no target, wait, the oldest for 22 s")


def test_a_drained_backend_is_named_with_the_change_that_drained_it(visit, loaded, keys):
    visitor = visit(loaded)
    change = {
        "revision": 1, "at": time.time() - 60, "actor": "key-1", "actor_label": "ana", "kind": "backends",
        "name": "one", "action": "update", "before": None, "after": {"draining": True}, "declared": {"url": "http://one"},
    }  # fmt: skip
    audit = {"items": [change], "next_cursor": None}
    visitor.page.route("**/admin/v1/audit?kind=backends*", lambda route: route.fulfill(json=audit))
    shows(visitor.page, a_pool(backends={"one": a_backend(draining=True, available=False)}))
    verdict = visitor.sign_in(keys["viewer"]).locator(".pool .verdict")
    expect(verdict).to_contain_text(
        re.compile(r"1 backend drained: one; changed at \d\d:\d\d by ana: .*draining: false → true")
    )


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("state=queued", "No request waits"),
        ("state=ended", "The last 10,000 are kept"),
        ("state=ended&model=x", "None is"),
    ],
)
def test_a_list_of_requests_without_any_says_what_that_means(visit, loaded, keys, route, said):
    visitor = visit(loaded)
    none = {"items": [], "next_cursor": None}
    visitor.page.route("**/admin/v1/requests?*", lambda route: route.fulfill(json=none))
    page = visitor.sign_in(keys["viewer"], f"#/requests?{route}")
    expect(page.get_by_role("region", name="Requests")).to_contain_text(said)


def test_an_order_is_not_praised_beside_a_tenant_that_waits_and_got_less_than_its_due(looking):
    tier = {"weight": 1, "share": WINDOWS, "due": WINDOWS, "gap": 100.0, "bound": 1000.0, "gap_age_s": 0}
    short = {"share": [0.57] * 3, "due": [0.81] * 3, "queued": 4}
    most = {"share": [0.43] * 3, "due": [0.19] * 3}
    pool = a_pool(tiers={"batch": tier}, tenants={"flood": a_tenant(**most), "chat": a_tenant(**short)})
    verdict = looking(pool).locator(".pool .verdict")
    expect(verdict).to_contain_text("which is too wide to judge one minute")
    expect(verdict).not_to_contain_text("keeps its promise")


def test_an_order_within_its_bound_keeps_its_promise_where_no_tenant_is_short(looking):
    tier = {"weight": 1, "share": WINDOWS, "due": WINDOWS, "gap": 100.0, "bound": 1000.0, "gap_age_s": 0}
    verdict = looking(a_pool(tiers={"batch": tier}, tenants={"chat": a_tenant()})).locator(".pool .verdict")
    expect(verdict).to_contain_text("so the order keeps its promise")


def test_the_time_until_the_first_token_is_not_called_prefill(visit, loaded, keys):
    """An engine's own queue is in it: what waited there for 66 s has not computed a prompt for 66 s."""
    visitor = visit(loaded)
    request = {
        "id": "one", "tenant": "chat", "model": "llama", "state": "running", "backend": "vllm-0", "age_s": 70.0,
        "phases": {"queue_s": 1.0, "prefill_s": 66.0, "decode_s": 3.0}, "prompt_tokens": 9, "output_tokens": 1,
    }  # fmt: skip
    listed = {"items": [request], "next_cursor": None}
    visitor.page.route("**/admin/v1/requests?**", lambda route: route.fulfill(json=listed))
    page = visitor.sign_in(keys["viewer"], "#/requests?state=running")
    expect(page.locator(".phases")).to_have_text("queue 1.0 s, first token 66 s, decode 3.0 s")
    expect(page.locator("p.legend")).to_contain_text("inside the engine, until its first token")


def on_backend(looking, backends, **pool):
    return looking(a_pool(backends=backends, **pool), "#/backend/one").locator(".pool .verdict, section .verdict").first


@pytest.mark.parametrize(
    ("one", "other", "queued", "said"),
    [
        ({"in_flight": 5}, {"in_flight": 2}, 0,
         "5 requests run there and end before. Without it 8 of 16 slots are left, 6 of them free now, which is enough"),
        ({"in_flight": 5}, {"in_flight": 6}, 0, "2 of them free now, and more runs here: all would wait longer."),
        ({"in_flight": 1}, {"in_flight": 8}, 3, "0 of them free now, and 3 requests wait already: all would wait"),
        ({"in_flight": 5}, {"available": False}, 0, "Do not restart it: no other backend of this pool is available"),
        ({"in_flight": 1, "draining": True}, {}, 0, "It may be restarted soon: 1 request runs there and ends before"),
        ({"in_flight": 0, "draining": True}, {}, 0, "It may be restarted: nothing runs there"),
    ],
)  # fmt: skip
def test_a_backend_says_whether_it_may_be_restarted(looking, one, other, queued, said):
    backends = {"one": a_backend(**one), "two": a_backend(**other)}
    # What waits for its own limit does not wait for a backend.
    tenants = {"chat": a_tenant(queued=queued, waits="no_room"), "held": a_tenant(queued=5, waits="tenant_limit")}
    expect(on_backend(looking, backends, tenants=tenants)).to_contain_text(said)


def test_what_is_reserved_names_the_tier(looking):
    backends = {"one": a_backend(bound_by="reserved", reserves={"gold": 1})}
    expect(on_backend(looking, backends)).to_contain_text("what is free there is reserved for tier gold")


def test_a_late_tenant_that_waits_says_what_for(looking):
    late = a_tenant(attainment_ratio=0.75, queued=6, oldest_wait_s=5.3, waits="no_room")
    asks = {**late, "due_by": ["weight"] * 3}
    short = {**late, "share": [0.1] * 3}
    said = looking(a_pool(tenants={"plain": late, "asks": asks, "short": short})).locator(".who-is-hurt")
    waits = (
        "is late (75 % of its requests were in time in the last 15 min; "
        "6 requests wait, the oldest for 5.3 s: no backend has room"
    )
    expect(said).to_contain_text(f"plain {waits})")
    expect(said).to_contain_text(f"asks {waits}; it gets what is due by its weight, 25 %, and asks for more)")
    expect(said).to_contain_text(f"short {waits}, and it got 10 % in the last minute of the 25 % that is due)")


def test_since_when_a_tenant_is_hurt_is_said_on_now_and_on_its_view(visit, loaded, keys):
    """Its calls have waited since the third step; a pause of less than a minute ends nothing."""
    visitor = visit(loaded)
    waits = [9.0, *[0.0] * 8, 2.0, 2.0, *[0.0] * 3, 5.0]
    from_s = time.time() // 60 * 60 - 600 + 7
    pool = {"values": {"wait_s": waits, "refused": [0] * len(waits), "tokens": waits, "share": waits, "ttft_s": waits,
                       "cost": waits}}  # fmt: skip
    told = {"of": "tenant:late", "from_s": from_s, "step_s": 10, "pools": {"llama": pool}, "events": [], "missing": [],
            "currency": None}  # fmt: skip
    visitor.page.route("**/admin/v1/history?of=tenant*", lambda route: route.fulfill(json=told))
    shows(visitor.page, a_pool(tenants={"late": a_tenant(attainment_ratio=0.5)}))
    page = visitor.sign_in(keys["viewer"])
    since = page.evaluate("(s) => new Date(s * 1000).toLocaleTimeString('sv-SE')", from_s + 90)
    said = f"50 % of its requests were in time in the last 15 min; so since about {since}"
    expect(page.locator(".who-is-hurt")).to_contain_text(f"late is late ({said})")
    visitor.see("tenant", "late")
    expect(page.locator(".verdict")).to_contain_text(f"It is late: {said}.")


def test_of_a_hurt_tenant_s_changes_one_that_gave_it_more_is_no_suspect_and_tiers_are(visit, loaded, keys):
    visitor = visit(loaded)
    made = {"at": time.time() - 60, "actor": "key-1", "actor_label": "ana", "action": "update", "declared": None}
    more = {**made, "revision": 1, "kind": "tenants", "name": "more", "before": {"weight": 1}, "after": {"weight": 1.5}}
    less = {**more, "revision": 2, "name": "less", "before": {"weight": 2, "in_flight_max": 2},
            "after": {"weight": 1, "in_flight_max": 3}}  # fmt: skip
    tier = {**made, "revision": 3, "kind": "tiers", "name": "batch", "before": {"weight": 4}, "after": {"weight": 0.5}}

    def audit(route):
        of_tiers = "kind=tiers" in route.request.url
        route.fulfill(json={"items": [tier] if of_tiers else [more, less], "next_cursor": None})

    visitor.page.route("**/admin/v1/audit?*", audit)
    refused = a_tenant(refused=3, refused_by={"rate_limited": 3})
    shows(visitor.page, a_pool(tenants={"more": refused, "less": refused}))
    verdict = visitor.sign_in(keys["viewer"]).locator(".pool .verdict")
    expect(verdict).to_contain_text(re.compile(r"less is refused \([^)]+; changed at \d\d:\d\d by ana: weight: 2 → 1"))
    expect(verdict).to_contain_text(re.compile(r"more is refused \([^;]+: over its rate limit\)"))
    expect(verdict).to_contain_text(re.compile(r"Tier batch; changed at \d\d:\d\d by ana: weight: 4 → 0.50\."))


def test_calls_whose_keys_are_refused_are_said_though_they_are_of_no_tenant(visit, loaded, keys):
    visitor = visit(loaded)
    shows(visitor.page, a_pool(), keys_refused=7)
    verdict = visitor.sign_in(keys["viewer"]).locator(".pool .verdict")
    expect(verdict).to_contain_text(
        "7 calls refused for their keys in the last minute: without a key, or with one that is"
    )


def test_a_key_that_was_removed_is_told_with_its_tenant(visit, loaded, keys):
    visitor = visit(loaded)
    removed = {"at": time.time() - 60, "kind": "change", "name": "keys/key-1", "what": "delete", "actor": "ana"}
    removed |= {"before": {"label": "app", "tenant": "cobalt", "weight": 1}, "after": None}
    found = {"of": "tenant:cobalt", "from_s": 0, "step_s": 10, "pools": {}, "events": [removed], "missing": [],
             "currency": None}  # fmt: skip
    visitor.page.route("**/admin/v1/history?*", lambda route: route.fulfill(json=found))
    shows(visitor.page, a_pool())
    told = visitor.sign_in(keys["viewer"]).get_by_role("list", name="What happened")
    expect(told).to_contain_text("keys/key-1 (app of cobalt) removed by ana")


def test_a_what_if_says_whose_slowest_calls_are_sooner_where_no_median_is(visit, loaded, keys):
    def run(**late):
        tenants = {name: {"service": 1, "ttft_p50_s": 0.05, "ttft_p99_s": s} for name, s in late.items()}
        return {"requests": 60, "served": 60, "throughput_tokens_per_s": 9, "ttft_p50_s": 0.05, "tenants": tenants}

    was = run(chat=0.2, bulk=0.5, calm=0.09)
    judged = {"is_trusted": True, "factor": 1.0, "factor_max": 2.0, "figure": "ttft_p50_s", "tenant": "chat"}
    answer = {"id": "one", "state": "done", "trust": judged, "changes": {"engines": 1}, "happened": was,
              "replayed": was, "instead": run(chat=0.09, bulk=0.8, calm=0.08)}  # fmt: skip
    visitor = visit(loaded)
    visitor.page.route("**/admin/v1/what-ifs", lambda route: route.fulfill(status=202, json=answer))
    visitor.page.route("**/admin/v1/what-ifs/one", lambda route: route.fulfill(json=answer))
    page = visitor.sign_in(keys["operator"], "#/what-if")
    page.get_by_role("button", name="Play it").click()
    slowest = "time to first token of the slowest in a hundred:"
    said = f"Shorter {slowest} chat (200 ms → 90 ms). Longer {slowest} bulk (500 ms → 800 ms)."
    expect(page.locator(".verdict")).to_contain_text(
        f"No tenant's median time to first token changes by a tenth or more. {said}"
    )


def test_a_what_if_that_another_asked_is_not_taken_for_one_s_own(visit, loaded, keys):
    visitor = visit(loaded)
    running = {"status": 409, "detail": "another what-if runs, 0123456789abcdef: only one does at a time"}
    visitor.page.route("**/admin/v1/what-ifs", lambda route: route.fulfill(status=409, json=running))
    state = {"id": "0123456789abcdef", "state": "running", "progress": 0.4}
    visitor.page.route("**/admin/v1/what-ifs/*", lambda route: route.fulfill(json=state))
    page = visitor.sign_in(keys["operator"], "#/what-if")
    page.get_by_label("Engines more").fill("1")
    page.get_by_role("button", name="Play it").click()
    expect(page.get_by_role("status").filter(has_text="It is played: 40 %")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("This is not what you asked: another what-if was running")


def test_one_reason_of_refusals_is_not_counted_twice(looking):
    page = looking(a_pool(refused={"budget_spent": 7}))
    expect(page.locator(".figure", has_text="refused in the last minute")).to_contain_text(
        re.compile("7 its budget is spent")
    )


def test_a_tenant_over_the_budget_of_its_group_says_so_on_its_view_and_in_the_list(visit, loaded, keys):
    visitor = visit(loaded)
    tenant = a_tenant(group="lab", refused=3, refused_by={"budget_spent": 3})
    shows(visitor.page, a_pool(tenants={"search": tenant}))
    budget = {
        "tenant": "",
        "key": "",
        "group": "lab",
        "unit": "tokens",
        "period": "day",
        "limit": 30_000,
        "used": 29_900,
    }
    budget |= {"reserved": 0, "remaining": 100, "renewed_at": 1}
    listed = {"items": [budget], "next_cursor": None}
    visitor.page.route("**/admin/v1/state/budgets**", lambda route: route.fulfill(json=listed))
    page = visitor.sign_in(keys["viewer"], "#/tenant/search")
    said = (
        "It is over budget: 3 calls refused in the last minute: its group lab may use 30,000 tokens per day, until 19"
    )
    expect(page.locator("section .verdict")).to_contain_text(said)


def test_a_list_that_is_empty_says_what_an_entry_is_for(visit, loaded, keys):
    visitor = visit(loaded)
    nothing = {"items": [], "next_cursor": None}
    visitor.page.route(re.compile("/admin/v1/(groups|aliases|prices)"), lambda route: route.fulfill(json=nothing))
    page = visitor.sign_in(keys["operator"], "#/groups")
    expect(page.get_by_role("region", name="Groups")).to_contain_text("Make one for a team")
    visitor.see("models")
    expect(page.get_by_role("region", name="Aliases")).to_contain_text("to have a second choice")
    expect(page.get_by_role("region", name="Prices")).to_contain_text("Usage has the cost of its calls")


def test_quantiles_of_latencies_say_how_exact_they_are(looking):
    page = looking(a_pool(tenants={"chat": a_tenant(ttft_s=[0.3, 1.2])}))
    expect(page.get_by_role("columnheader", name=re.compile("^TTFT"))).to_contain_text("±9 %")


def test_a_tenant_that_no_setting_and_no_call_has_is_said_to_be_unknown(visit, loaded, keys):
    """An operator may give it settings all the same."""
    page = visit(loaded).sign_in(keys["operator"], "#/tenant/nosuch")
    expect(page.get_by_role("alert")).to_contain_text("No tenant of this name has settings")
    expect(page.get_by_role("button", name="Edit weight")).to_have_count(0)
    page.get_by_role("button", name="Give nosuch settings").click()
    expect(page.get_by_role("button", name="Edit weight")).to_be_visible()
    page = visit(loaded).sign_in(keys["viewer"], "#/tenant/nosuch")
    expect(page.get_by_role("alert")).to_contain_text("No tenant of this name has settings")
    expect(page.get_by_role("button", name="Give nosuch settings")).to_have_count(0)


def test_a_tier_and_a_group_that_there_are_not_are_said_to_be_unknown(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["operator"], "#/tier/nosuch")
    expect(page.get_by_role("alert")).to_contain_text("No tier of this name has settings")
    expect(page.get_by_role("button", name="Edit weight")).to_have_count(0)
    page.get_by_role("button", name="Give nosuch settings").click()
    expect(page.get_by_role("button", name="Edit weight")).to_be_visible()
    page = visit(loaded).sign_in(keys["operator"], "#/group/nosuch")
    expect(page.get_by_role("alert")).to_contain_text("There is no such group.")
    expect(page.get_by_role("heading")).to_have_count(1)


def test_a_change_of_what_the_file_declares_and_its_undo_are_neither_made_nor_removed(visit, loaded, keys):
    loaded.ask("PATCH", "/tenants/search", {"weight": 3})
    loaded.ask("DELETE", "/tenants/search")  # what the file says holds again
    page = visit(loaded).sign_in(keys["viewer"], "#/tenant/search")
    changes = page.get_by_role("region", name="Changes")
    expect(changes).to_contain_text("back to what the configuration file says")
    expect(changes).to_contain_text(re.compile("set instead of the file's: .*weight: 2 → 3"))
    expect(changes).not_to_contain_text("made")
    expect(changes).not_to_contain_text("removed")


@pytest.mark.parametrize("width", [360, 390])
def test_what_if_fits_a_phone_whatever_the_names(looking, width):
    page = looking(a_pool(tenants={LONG: a_tenant()}), "#/what-if", viewport={"width": width, "height": 800})
    page.get_by_label("Change 1 of").select_option(label=LONG)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    right = page.locator(".ask select, .ask input").evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect().right)"
    )
    assert max(right) <= width


def test_a_group_is_made_on_a_phone_whatever_the_names_of_tiers(visit, loaded, keys):
    visitor = visit(loaded, viewport={"width": 360, "height": 800})
    tiers = {"items": [{"id": LONG, "weight": 1}], "next_cursor": None}
    visitor.page.route("**/admin/v1/tiers*", lambda route: route.fulfill(json=tiers))
    page = visitor.sign_in(keys["operator"], "#/groups")
    expect(page.get_by_role("option", name=LONG)).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_laptop_shows_what_tenants_get_and_whether_it_is_in_time(looking):
    """At 1,440 px no figure of a tenant but the two other windows of its share is hidden, and no row is cut."""
    busy = {
        "queued": 1234, "in_flight": 123, "oldest_wait_s": 71.0, "waits": "tenant_limit", "output_tokens_per_s": 12345,
        "ttft_s": [0.31, 12.4], "tpot_s": [0.0123, 0.0456], "cached_ratio": 0.123, "attainment_ratio": 0.987,
        "refused": 4321, "due_by": ["weight"] * 3,
    }  # fmt: skip
    pool = a_pool(tenants={"customer-support-eu": a_tenant(tier="interactive", **busy)})
    page = looking(pool, viewport={"width": 1440, "height": 900})
    region = page.get_by_role("region", name="Tenants")
    for name in ("TTFT", "TPOT", "Cached", "In time", "Refused", "Queued", "In flight"):
        expect(region.get_by_role("columnheader", name=re.compile(f"^{name}"))).to_be_visible()
    widths = region.evaluate("(each) => [each.scrollWidth, each.clientWidth]")
    assert widths[0] <= widths[1] + 1, widths
