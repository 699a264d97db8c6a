"""Pictures of every view for the documentation, taken of the loaded gateway: `make test-web PICTURES=1`."""

import io
import os

import pytest
from PIL import Image
from playwright.sync_api import expect
from web_rig import ROOT

IMAGES = ROOT / "docs/images"
BYTES_MAX = 150_000
SIZE = {"width": 1280, "height": 800}

pytestmark = pytest.mark.skipif(not os.environ.get("PICTURES"), reason="pictures are taken on request: PICTURES=1")


def take(page, name):
    """Write one picture, with a palette of 200 colours: text stays sharp and the file small."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(200, dither=Image.Dither.NONE)
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / f"{name}.png"
    image.save(path, optimize=True)
    assert path.stat().st_size < BYTES_MAX


def test_pictures_of_every_view(visit, loaded, keys):
    visitor = visit(loaded, viewport=SIZE, color_scheme="light")
    page = visitor.open()
    page.wait_for_selector("#key")
    page = visitor.sign_in(keys["operator"])
    expect(page.locator(".pool .verdict")).to_contain_text("The bottleneck is", timeout=30_000)
    page.wait_for_timeout(75_000)  # a minute of shares
    take(page, "page-now")
    visitor.see("tenant", "flood")
    expect(page.locator(".plot canvas").first).to_be_visible()
    page.wait_for_timeout(5_000)
    take(page, "page-tenant")
    visitor.see("tenant", "nightly")
    page.get_by_role("button", name="Edit weight").click()
    page.get_by_role("spinbutton", name="Weight").fill("3")
    expect(page.locator(".effect strong")).to_be_visible()
    page.locator("dl.settings").scroll_into_view_if_needed()
    take(page, "page-edit")
    page.get_by_role("button", name="Cancel").click()
    visitor.see("requests?state=queued")
    expect(page.locator("tbody th .name").first).to_be_visible()
    take(page, "page-requests")
    page.locator("tbody th .name").nth(12).click()
    expect(page.locator(".figures")).to_be_visible()
    take(page, "page-request")
    visitor.see("what-if")
    page.get_by_label("Change 1 of").select_option(label="nightly")
    page.get_by_label("Value of change 1").fill("3")
    page.get_by_role("button", name="Play it").click()
    expect(page.get_by_role("region", name="By tenant")).to_be_visible(timeout=120_000)
    take(page, "page-what-if")


def test_pictures_of_a_dark_and_narrow_screen(visit, loaded, keys):
    narrow = visit(loaded, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = narrow.sign_in(keys["viewer"])
    expect(page.locator(".pool .verdict")).to_contain_text("gets the most", timeout=30_000)
    take(page, "page-narrow")
    narrow.see("requests?state=queued")
    expect(page.locator("td.lead").first).to_be_visible()
    take(page, "page-narrow-requests")
