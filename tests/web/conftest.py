"""The page of real gateways in Debian's Chromium. Where there is none, all of this is left out and says so."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright
from web_rig import MODEL, PATIENCE_MS, Background, Callers, Visitor, serving, start_engines

expect.set_options(timeout=PATIENCE_MS)
CHROMIUM = shutil.which("chromium")
# Without a sandbox, because tests may run as root; without what a browser asks of its maker's servers.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIERS = {
    "interactive": {"weight": 4, "envelope": {"ttft_ms": 1500, "tpot_ms": 120}},
    "batch": {"weight": 1},
}
TENANTS = {
    "chat": {"tier": "interactive"},
    "search": {"tier": "interactive", "weight": 2},
    "nightly": {"tier": "batch"},
    "flood": {"tier": "batch", "tokens_per_day_max": 50_000_000},
}
# What each sends: the engines together run 18 requests at once, so those of the tier `batch` wait.
LOAD = {
    "chat": {"at_once": 4, "max_tokens": 24, "pause_s": 2.0},
    "search": {"at_once": 4, "max_tokens": 12, "words": 200, "pause_s": 2.0},
    "nightly": {"at_once": 24, "max_tokens": 60},
    "flood": {"at_once": 40, "max_tokens": 60},
}


def pytest_collection_modifyitems(items):
    if CHROMIUM is None:
        left_out = pytest.mark.skip(reason="no Chromium: apt-get install chromium")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(left_out)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def background():
    made = Background()
    yield made
    made.close()


@pytest.fixture(scope="session")
def engines(background):
    servers = background.run(start_engines(3, coefficients="a10g-llama2-7b", requests_running_max=6))
    yield servers
    for each in servers:
        background.run(each.stop())


@pytest.fixture(scope="session")
def loaded(background, engines, tmp_path_factory):
    """A gateway before three engines, with four tenants that keep calling."""
    backends = [
        {"name": f"vllm-{number}", "url": each.url, "requests_running_max": 6} for number, each in enumerate(engines)
    ]
    with serving(tmp_path_factory.mktemp("loaded"), backends, tiers=TIERS, tenants=TENANTS) as gateway:
        stop = background.start(Callers(gateway.url, MODEL).keep_calling(LOAD))
        yield gateway
        stop()


@pytest.fixture
def visit(browser):
    """Opens tabs, each of which must end without an error or a violation of the policy."""
    visitors = []

    def opened(gateway, **context):
        visitors.append(Visitor(browser, gateway.admin_url, **context))
        return visitors[-1]

    yield opened
    for each in visitors:
        each.close()


@pytest.fixture(scope="session")
def keys(loaded):
    """A key of every role."""
    return {"admin": loaded.key, **{role: loaded.key_of(role) for role in ("viewer", "operator")}}
