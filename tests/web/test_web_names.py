"""Names with markup are text in the page: of tenants, models, pools, backends, tiers, requests and keys (check 54)."""

import json

import pytest
from playwright.sync_api import expect
from web_rig import Callers, serving, start_engines

HOSTILE = [
    "<img src=x onerror=\"window.stolen='img'\">",
    "<script>window.stolen='script'</script>",
    '"><svg onload="window.stolen=\'svg\'">',
    "javascript:window.stolen='url'//",
    "${window.stolen='template'}",
    "__proto__",
    "<b>&amp;\u202e\u0000</b>",
]
WINDOWS = [0.5, 0.5, 0.5]
VIEWS = [
    ("now",),
    ("tenants",),
    ("tenant", "one"),
    ("tier", "one"),
    ("requests?state=queued",),
    ("requests?state=ended",),
    ("request", "one"),
    ("what-if",),
    ("engines",),
    ("audit",),
    ("groups",),
    ("group", "one"),
    ("models",),
    ("alias", "one"),
    ("price", "one"),
]
ALIAS = {"sticky": "tenant"}
PERIOD = {"valid_from": None, "prompt": "<i>1</i>", "cached_prompt": None, "output": "1"}
ATTAINED = {"requests": 1, "met": 1}


def hostile_document(name):
    """A live document in which everything that has a name has this one."""
    tenant = {
        "tier": name,
        "group": name,
        "weight": 1,
        "queued": 1,
        "in_flight": 1,
        "oldest_wait_s": 1,
        "share": WINDOWS,
        "due": WINDOWS,
        "output_tokens_per_s": 1,
        "ttft_s": [1, 2],
        "refused": 1,
        "waits": name,
    }
    backend = {
        "available": False,
        "draining": False,
        "trouble": name,
        "in_flight": 1,
        "requests_limit": 2,
        "tokens": 1,
        "tokens_limit": 2,
        "bound_by": name,
    }
    tier = {
        "weight": 1,
        "queued": 1,
        "in_flight": 1,
        "share": WINDOWS,
        "due": WINDOWS,
        "gap": 1,
        "bound": 2,
        "jain": 1,
        "attainment": ATTAINED,
    }
    pool = {
        "policy": name,
        "queued": 1,
        "in_flight": 1,
        "oldest_wait_s": 1,
        "tokens_per_s": 1,
        "refused": {name: 1},
        "tiers": {name: tier},
        "groups": {name: {**tier, "tier": name}},
        "backends": {name: backend},
        "tenants": {name: tenant},
    }
    members = [{"name": name, "role": name, "address": name, "since": 1} for _ in range(2)]
    return {
        "at": 1,
        "gateway": {"name": name, "version": name, "role": name, "embedded_engine": True, "demo": True},
        "cluster": {"name": name, "role": name, "leader": name, "epoch": 1, "members": members},
        "pools": {name: pool, name + "2": pool},
    }


def hostile_request(name):
    waits = {"reason": name, "text": name, "ahead": name, "start_s": 1}
    return {
        "id": name,
        "pool": name,
        "tenant": name,
        "model": name,
        "endpoint": name,
        "state": "queued",
        "backend": name,
        "arrived_at": 1,
        "age_s": 1,
        "phases": {"queue_s": 1},
        "prompt_tokens": 1,
        "output_tokens": 1,
        "output_tokens_max": 2,
        "waits": waits,
        "outcome": name,
        "status": 200,
        "process": name,
    }


def answers(name):
    """What a gateway would say in which everything had this name, by the end of the path."""
    key = {"id": name, "label": name, "models": [name], "last_four": name[:4], "created_at": 1, "expires_at": None}
    change = {
        "revision": 1,
        "at": 1,
        "actor": name,
        "actor_label": name,
        "name": name,
        "before": {"tier": "a"},
        "after": {name: name},
    }
    budget = {"tenant": name, "key": name, "period": name, "limit": 9, "used": 1, "reserved": 1, "remaining": 7}
    findings = {"requests": 1, "tenants": {name: {"served": 1, "service": 1, "ttft_p50_s": 1}}}
    shares = {"share_now": 0.1, "share_then": 0.2}
    previewed = {name: shares, name + "2": shares}

    happened = {"at": 1, "kind": "change", "name": name, "what": name, "actor": name, "actor_label": name}
    was = {"events": [happened], "missing": [name], "currency": name}
    used = ("tokens", "share", "wait_s", "ttft_s", "refused", "cost", "queued")
    of_engine = ("available", "in_flight", "requests_limit", "kv_tokens", "kv_tokens_limit", "step_s")
    kept = {series: [1, None] for series in (*used, *of_engine)}

    def page(*items):
        return {"items": list(items), "next_cursor": None}

    return {
        "/history": {"of": f"tier:{name}", "from_s": 0, "step_s": 10, "pools": {name: {"values": kept}}, **was},
        "/requests": page(hostile_request(name)),
        "/keys": page({**key, "revoked": True}),
        "/audit": page(change),
        "/tiers": page({"id": name, "weight": 1, "envelope": {}}),
        "/tenants": page({"id": name, "weight": 1, "group": name, "envelope": {}}),
        "/groups": page({"id": name, "weight": 1, "tier": name}),
        "/aliases": page({**ALIAS, "id": name, "models": [name], "split": {name: 1}, "shadow": {"model": name}}),
        "/prices": page({"id": name, "currency": name, "periods": [PERIOD]}),
        "/state/budgets": page({**budget, "renewed_at": 1}),
        "/me": {"name": name, "label": name, "role": "operator"},
        "/what-ifs": {"id": name},
        "/what-ifs/one": {
            "id": name,
            "state": "done",
            "setting": {name: name},
            "happened": findings,
            "instead": findings,
        },
        "/preview": {"pools": {name: {"tenants": previewed, "tiers": previewed, "groups": previewed}}},
    }


def pretend(page, name):
    """Every answer of the API is one in which everything has this name."""
    told = answers(name)
    event = "id: 1\nevent: state\ndata: " + json.dumps(hostile_document(name)) + "\n\n"

    def answer(route):
        path = route.request.url.partition("/admin/v1")[2].partition("?")[0]
        if path == "/live":
            return route.fulfill(status=200, content_type="text/event-stream", body=event)
        if path.startswith("/requests/"):
            return route.fulfill(status=200, json=hostile_request(name))
        if path.startswith("/tiers/"):
            fields = {"id": name, "origin": "admin", "weight": 1, "envelope": {}, "on_miss": name}
            return route.fulfill(status=200, json=fields, headers={"ETag": '"1"'})
        if path.startswith("/tenants/"):
            fields = {"id": name, "origin": "admin", "tier": name, "weight": 1, "envelope": {}}
            return route.fulfill(status=200, json=fields, headers={"ETag": '"1"'})
        for kind in ("groups", "aliases", "prices"):
            if path.startswith(f"/{kind}/"):
                fields = {**told[f"/{kind}"]["items"][0], "origin": "admin"}
                return route.fulfill(status=200, json=fields, headers={"ETag": '"1"'})
        if path.startswith("/what-ifs/"):
            path = "/what-ifs/one"
        return route.fulfill(status=200, json=told.get(path, {}))

    page.route("**/admin/v1/**", answer)


def assert_inert(page):
    assert page.evaluate("window.stolen") is None
    assert (
        page.evaluate("document.querySelectorAll('#app img, #app script, #app svg, #app iframe, #app b').length") == 0
    )
    assert page.evaluate("[...document.links].filter((each) => each.protocol === 'javascript:').length") == 0
    assert page.evaluate("Object.keys(Object.prototype)") == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_every_view(visit, loaded, name):
    """The gateway refuses such names of tenants, tiers and requests; the page would show them as text all the same."""
    visitor = visit(loaded)
    pretend(visitor.page, name)
    page = visitor.sign_in("any")
    for route in VIEWS:
        visitor.see(*route)
        page.wait_for_timeout(400)
        assert_inert(page)
        if name != "__proto__" and "\0" not in name:
            assert name in page.locator("main").inner_text() or route == ("what-if",), route
    for view in ("tenant", "tier", "group"):
        visitor.see(view, "one")
        page.get_by_role("button", name="Edit weight").click()
        page.get_by_role("spinbutton", name="Weight").fill("2")
        page.wait_for_selector(".effect strong")
        assert_inert(page)
        page.get_by_role("button", name="Save").click()
        page.wait_for_selector(".notice")
        page.get_by_role("button", name="Dismiss").click()
    visitor.see("what-if")
    page.get_by_role("button", name="Play it").click()
    page.wait_for_selector("[aria-label='By tenant']")
    assert_inert(page)


def test_a_name_in_the_address_is_text(visit, loaded, keys, figure):
    page = visit(loaded).sign_in(keys["viewer"])
    for name in HOSTILE:
        for view in ("tenant", "tier", "group", "alias", "price", "request", "now"):
            page.evaluate(
                "([view, name]) => { location.hash = '#/' + view + '/' + encodeURIComponent(name); }", [view, name]
            )
            page.wait_for_timeout(100)
            page.evaluate("([view, name]) => { location.hash = '#/' + view + '/' + name; }", [view, name])
            page.wait_for_timeout(100)
            assert_inert(page)
    ran = page.evaluate("window.stolen === undefined ? 0 : 1")
    figure(54, f"scripts that ran of {len(HOSTILE)} names in the page's address", ran, target="0")


def test_a_real_gateway_with_such_a_model_and_key_is_shown_as_text(visit, background, tmp_path):
    """A model, and so its pool, may have any name that can be printed; a key any label."""
    model = HOSTILE[0]
    engines = background.run(start_engines(1, model=model, coefficients="a10g-llama2-7b", requests_running_max=2))
    with serving(tmp_path, [{"name": "b0", "url": engines[0].url}]) as gateway:
        stop = background.start(Callers(gateway.url, model).keep_calling({"a": {"at_once": 6}}))
        visitor = visit(gateway, viewport={"width": 1800, "height": 900})  # a narrower list has no models
        page = visitor.sign_in(gateway.key)
        expect(page.get_by_role("heading", level=1)).to_contain_text(model)
        assert_inert(page)
        visitor.see("requests?state=queued")
        expect(page.locator("tbody td .name", has_text=model).first).to_be_visible()
        assert_inert(page)
        stop()
    for each in engines:
        background.run(each.stop())
