"""axe-core finds nothing in any view and theme, the keyboard reaches everything, and every screen fits."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text(encoding="utf-8")
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
VIEWS = {
    "now": ("now",),
    "tenants": ("tenants",),
    "tenant": ("tenant", "flood"),
    "tier": ("tier", "batch"),
    "backend": ("backend", "vllm-0"),
    "waiting": ("requests?state=queued",),
    "running": ("requests?state=running",),
    "ended": ("requests?state=ended",),
    "engines": ("engines",),
    "changes": ("audit",),
    "groups": ("groups",),
    "models": ("models",),
    "usage": ("usage",),
    "what-if": ("what-if",),
    "try": ("try",),
}
WIDTHS = (360, 480, 768, 1280, 1440, 2560)
SCROLLED = (768,)  # too wide for cards, too narrow for the tables, which scroll inside of themselves

# Tables that are wider than their place; a pixel is the rounding of a fraction.
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.getAttribute("aria-label")}: ${each.scrollWidth} of ${each.clientWidth}`)"""

HEAD_PIXELS_MAX = 76
# How high it is, and where the link of the present view is; that of all, where a view has none.
HEAD = """() => {
  const head = document.querySelector(".head");
  const now = head.querySelector("[aria-current]") ?? head.querySelector(".brand");
  const { left, right } = now.getBoundingClientRect();
  return [head.getBoundingClientRect().height, left, right];
}"""


def wait_for_view(page):
    """Its first second and its first answers are there."""
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.wait_for_timeout(300)


def violations(page):
    """What axe-core finds, as text."""
    page.evaluate(AXE)
    found = page.evaluate("async (tags) => (await axe.run({runOnly: tags})).violations", TAGS)
    return [f"{each['id']}: {node['html'][:120]} {node['failureSummary']}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(visit, loaded, keys, theme):
    page = visit(loaded, color_scheme=theme).open()
    page.wait_for_selector("#key")
    assert violations(page) == [], "sign-in"
    visitor = visit(loaded, color_scheme=theme)
    page = visitor.sign_in(keys["operator"])
    for name, route in VIEWS.items():
        visitor.see(*route)
        wait_for_view(page)
        assert violations(page) == [], name


def test_on_a_phone_a_request_is_a_card_that_begins_with_the_reason_of_its_wait(visit, loaded, keys):
    page = visit(loaded, viewport={"width": 390, "height": 800}).sign_in(keys["operator"], "#/requests?state=queued")
    card = page.get_by_role("region", name="Requests").locator("tbody tr").first
    expect(card.locator("td.lead")).to_be_visible()
    shown = "(cells) => cells.filter((each) => each.offsetParent).map((each) => [each.className, each.offsetTop])"
    tops = card.locator("> *").evaluate_all(shown)
    assert "lead" in min(tops, key=lambda each: each[1])[0]
    assert violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_while_a_setting_is_edited_and_after(visit, loaded, keys, theme):
    page = visit(loaded, color_scheme=theme).sign_in(keys["operator"], "#/tenant/chat")
    page.get_by_role("button", name="Edit weight").click()
    page.get_by_role("spinbutton", name="Weight").fill("2")
    expect(page.locator(".effect strong")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".notices")).to_contain_text("again")


def test_the_theme_that_is_chosen_holds_against_the_systems(visit, loaded, keys):
    page = visit(loaded, color_scheme="light").sign_in(keys["viewer"])
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Colours").select_option("dark")
    assert page.evaluate(background) != light
    assert violations(page) == []
    page.reload()
    expect(page.locator(".caller")).to_be_visible()
    assert page.evaluate(background) != light


@pytest.mark.parametrize("width", WIDTHS)
def test_no_view_is_wider_than_the_screen(visit, loaded, keys, width):
    """And no table is cut at its right edge. The head has two lines, in which the present view is seen."""
    visitor = visit(loaded, viewport={"width": width, "height": 900})
    page = visitor.sign_in(keys["operator"])
    for name, route in VIEWS.items():
        visitor.see(*route)
        wait_for_view(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        cut = page.evaluate(CUT)
        assert cut == [] or width in SCROLLED, name
        height, left, right = page.evaluate(HEAD)
        assert height <= HEAD_PIXELS_MAX, name
        assert 0 <= left < right <= width, name


def test_all_is_reached_and_done_by_keyboard(visit, loaded, keys):
    """Sign in, go to a tenant, edit its weight and undo that, with Tab, Enter and Escape alone."""
    visitor = visit(loaded)
    page = visitor.open()
    page.wait_for_selector("#key:focus")
    page.keyboard.type(keys["operator"])
    page.keyboard.press("Enter")
    page.wait_for_selector("main table")
    wait_for_view(page)
    press_until(page, "chat")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("chat")
    expect(page.get_by_role("button", name="Edit weight")).to_be_visible()
    press_until(page, "Edit weight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("spinbutton", name="Weight")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit weight")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("spinbutton", name="Weight")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    press_until(page, "Undo")
    page.keyboard.press("Enter")
    expect(page.locator(".notices")).to_contain_text("weight is 1 again")


def press_until(page, name, most=200):
    """Press Tab until what is focused has this name, and can be seen to be focused."""
    for _ in range(most):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "[document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim(),"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        if focused[0] == name:
            assert focused[1] != "none", "focus is visible"
            return
    pytest.fail(f"Tab does not come to {name!r}")


def test_the_skip_link_leads_past_the_head(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    page.wait_for_selector("main table")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
