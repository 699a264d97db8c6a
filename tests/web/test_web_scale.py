"""A thousand tenants: the first paint takes less than half a second, and an interaction less than a tenth of one.

The figures are those of this machine, beside their targets. What is asserted is wider by MARGIN, because the
browser, the gateway and the engines share two cores.
"""

import re
import statistics

import pytest
from playwright.sync_api import expect
from web_rig import ROOT, Callers, serving

pytestmark = pytest.mark.alone
TENANTS = 1000
FIRST_PAINT_MS, INTERACTION_MS = 500, 100
MARGIN = 3
# When the table is in the document and was painted, since the navigation began.
PAINTED = """() => new Promise((done) => {
  const look = () => document.querySelector("[aria-label='Tenants'] tbody tr:nth-child(20)")
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)) : setTimeout(look, 5);
  look();
})"""
# How long it takes from an input to the next paint after it.
TIMED = """async ([selector, act, value]) => {
  const element = document.querySelector(selector);
  await new Promise((done) => setTimeout(done, 50));
  const began = performance.now();
  if (act === "click") element.click();
  else {
    element.value = value;
    element.dispatchEvent(new Event("input", {bubbles: true}));
  }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  return performance.now() - began;
}"""


def test_every_module_is_fetched_at_once():
    """Else a browser asks for a module when it has read the one that imports it, one round trip after another."""
    static = ROOT / "gateway/web/static"
    modules = {f"/web/{each.relative_to(static)}" for each in static.rglob("*") if each.suffix in (".js", ".mjs")}
    made = {"/web/fields.js", "/web/providers.js"}  # by the gateway
    preloaded = re.findall(r'<link rel="modulepreload" href="([^"]+)">', (static / "index.html").read_text())
    assert sorted(preloaded) == sorted((modules | made) - {"/web/app.js"})


@pytest.fixture(scope="module")
def thousand(background, engines, tmp_path_factory):
    """A gateway that has served a thousand tenants within the last quarter of an hour, and still serves some."""
    backends = [{"name": f"vllm-{number}", "url": each.url} for number, each in enumerate(engines)]
    with serving(tmp_path_factory.mktemp("thousand"), backends) as gateway:
        names = [f"tenant-{number:04}" for number in range(TENANTS)]
        callers = Callers(gateway.url)
        background.run(callers.call_once_each(names, max_tokens=1, words=2), timeout_s=300)
        assert sum(each.get(200, 0) for each in callers.counts.values()) == TENANTS
        stop = background.start(callers.keep_calling({name: {"at_once": 1, "pause_s": 1.0} for name in names[:40]}))
        yield gateway
        stop()


def test_a_thousand_tenants_are_painted_and_answer_in_time(visit, thousand, capsys):
    visitor = visit(thousand)
    page = visitor.sign_in(thousand.key)
    expect(page.locator("[aria-label='Tenants'] tbody tr")).to_have_count(25)
    expect(page.locator(".bar h2", has_text="1,000,")).to_be_visible()
    paints = []
    for _ in range(5):
        page.reload()  # the tab has the key: it signs in, opens the stream, and paints
        paints.append(page.evaluate(PAINTED))
    acts = {
        "sort by a column": ("[aria-label='Tenants'] thead th:nth-child(7) button", "click", None),
        "sort by name": ("[aria-label='Tenants'] thead th:first-child button", "click", None),
        "filter": (".bar input", "input", "tenant-09"),
        "clear the filter": (".bar input", "input", ""),
        "the next rows": (".pager button:last-of-type", "click", None),
        "open a tenant": ("[aria-label='Tenants'] tbody a", "click", None),
    }
    took = {}
    for what, act in acts.items():
        took[what] = page.evaluate(TIMED, list(act))
        page.wait_for_timeout(150)
    with capsys.disabled():
        told = f"median {statistics.median(paints):.0f} ms of {len(paints)}, at most {max(paints):.0f} ms"
        print(f"\n  first paint of {TENANTS} tenants: {told} (target: < {FIRST_PAINT_MS} ms)")
        for what, ms in took.items():
            print(f"  {what}: {ms:.0f} ms (target: < {INTERACTION_MS} ms)")
    assert statistics.median(paints) < FIRST_PAINT_MS * MARGIN
    assert max(took.values()) < INTERACTION_MS * MARGIN


def test_a_second_of_a_thousand_tenants_costs_the_browser_little(visit, thousand, capsys):
    """What the page works for one second's event, by the browser's own account."""
    visitor = visit(thousand)
    page = visitor.sign_in(thousand.key)
    expect(page.locator("[aria-label='Tenants'] tbody tr")).to_have_count(25)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def tasks_s():
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    before = tasks_s()
    page.wait_for_timeout(10_000)
    ratio = (tasks_s() - before) / 10
    with capsys.disabled():
        print(f"\n  the page's main thread at {TENANTS} tenants: {100 * ratio:.1f} % busy (target: < 10 %)")
    assert ratio < 0.1 * MARGIN
