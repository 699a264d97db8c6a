"""A gateway that serves as a process of its own, engines and callers beside it, and a browser with its page."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from playwright.sync_api import Browser, Page

from backends.engine.http.server import EngineOptions, EngineServer

ROOT = Path(__file__).parents[2]
START_S_MAX = 60.0  # it imports all that it serves with, on a machine that others use too
PATIENCE_MS = 20_000  # for what takes a second on a calm machine
MODEL = "llama-8b"
# The page reports what its policy stopped, and an object shown as text. A script that should never run would set
# `stolen`.
WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(event.violatedDirective + " " + event.blockedURI);
});
// An object in a sentence is a fault of the page, wherever it stands.
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  if (document.body.textContent.includes("[object ")) window.violations.push("an object is shown as text");
}).observe(document.body, {subtree: true, characterData: true, childList: true}));
"""


class Background:
    """An event loop in a thread, for servers and callers beside a browser that blocks this one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout_s: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def start(self, work: Coroutine[Any, Any, Any]) -> Callable[[], None]:
        """Run it until the returned function is called."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        return lambda: future.cancel() and None

    def close(self) -> None:
        async def rest() -> None:
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@dataclass
class Gateway:
    """`fairlead serve`, and its admin API."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    key: str

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer of the admin API."""
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.admin_url}/admin/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_S_MAX) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or "null")

    def key_of(self, role: str) -> str:
        """A new key of this role."""
        status, made = self.ask("POST", "/keys", {"role": role, "label": "on call"})
        assert status == 201, made
        return str(made["secret"])


@contextlib.contextmanager
def serving(folder: Path, backends: list[dict[str, Any]], **settings: Any) -> Iterator[Gateway]:
    """A gateway before these backends; without any it serves its embedded engine."""
    configured = {
        "listen": {"port": 0},
        "backends": backends,
        "access_log": {"enabled": False},
        "admin": {"enabled": True, "port": 0, "key_file": str(folder / "admin-key")},
        "auth": {"mode": "open", "secret": "0123456789abcdef", "trusted_proxies": ["127.0.0.0/8"]},
        "health": {"idle_s": 0.2, "busy_s": 0.2},
        "shutdown": {"lame_duck_s": 0.0, "drain_s": 0.1},
        **settings,
    }
    file = folder / "fairlead.yaml"
    file.write_text(yaml.safe_dump(configured))
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, text=True, cwd=folder, env=environment
        )
        try:
            text = _until_it_serves(process, folder / "said")
            url, admin_url = re.findall(r"https?://[\d.]+:\d+(?=\.)", text)[:2]
            yield Gateway(process, url, admin_url, (folder / "admin-key").read_text().strip())
        finally:
            process.terminate()
            process.wait(START_S_MAX)


def _until_it_serves(process: subprocess.Popen[str], said: Path) -> str:
    deadline = time.monotonic() + START_S_MAX
    while "admin port is" not in (text := said.read_text()):
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


async def start_engines(number: int, **options: Any) -> list[EngineServer]:
    servers = []
    for seed in range(number):
        server = EngineServer(EngineOptions(**{"model": MODEL, "seed": seed, "output_tokens_mean": None, **options}))
        server.url = await server.start()
        servers.append(server)
    return servers


@dataclass
class Callers:
    """Tenants that call the gateway: `counts` are the calls that each has had answered, by status."""

    url: str
    model: str = MODEL
    counts: dict[str, dict[int, int]] = field(default_factory=dict)

    async def keep_calling(self, tenants: dict[str, dict[str, Any]]) -> None:
        """Every tenant keeps `at_once` calls of `max_tokens` going, with `pause_s` after each, until cancelled."""
        async with self._session() as session, asyncio.TaskGroup() as group:
            for tenant, about in tenants.items():
                for number in range(about["at_once"]):
                    group.create_task(self._caller(session, tenant, about, number))

    async def call_once_each(self, tenants: list[str], at_once: int = 32, **about: Any) -> None:
        """One call of each tenant."""
        waiting = list(reversed(tenants))

        async def some(session: aiohttp.ClientSession) -> None:
            while waiting:
                await self.call(session, waiting.pop(), **about)

        async with self._session() as session:
            await asyncio.gather(*(some(session) for _ in range(at_once)))

    async def call(
        self, session: aiohttp.ClientSession, tenant: str, *, max_tokens: int = 8, words: int = 20, request_id: str = ""
    ) -> int:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "word " * words}],
            "max_tokens": max_tokens,
            "stream": True,
        }
        headers = {"X-Tenant-Id": tenant, **({"X-Request-Id": request_id} if request_id else {})}
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                await answer.read()
                status = answer.status
        except aiohttp.ClientError:
            status = 0
        counts = self.counts.setdefault(tenant, {})
        counts[status] = counts.get(status, 0) + 1
        return status

    async def _caller(self, session: aiohttp.ClientSession, tenant: str, about: dict[str, Any], number: int) -> None:
        # Not all at once: a second's calls are spread over it.
        await asyncio.sleep(number * 0.05)
        while True:
            await self.call(session, tenant, max_tokens=about.get("max_tokens", 32), words=about.get("words", 40))
            await asyncio.sleep(about.get("pause_s", 0.01))

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


def ask_once(gateway: Gateway, key: str, headers: dict[str, str] | None = None) -> int:
    """The status of one call at the data port."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    every = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", json.dumps(body).encode(), every)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class Visitor:
    """A browser's tab at the page of a gateway. At its end it has seen no violation of the policy and no error."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self._context = browser.new_context(base_url=url, **{"viewport": {"width": 1400, "height": 900}, **context})
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.page.add_init_script(WATCH)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("dialog", self._dialog)
        self._url = url

    def _said(self, message: Any) -> None:
        # A refused answer is told by the browser, and is what some tests are about.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.errors.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, route: str = "") -> Page:
        self.page.goto(f"/{route}")
        return self.page

    def sign_in(self, key: str, route: str = "") -> Page:
        """Sign in by this key, and see the first second."""
        self.open(route)
        self.page.fill("#key", key)
        self.page.click("form button")
        self.page.wait_for_selector(".caller")
        return self.page

    def see(self, *route: str) -> Page:
        """Go to a view, as a link in the page would."""
        self.page.evaluate("(hash) => { location.hash = hash; }", "#/" + "/".join(route))
        return self.page

    def close(self) -> None:
        violations = self.page.evaluate("window.violations")
        self._context.close()
        assert self.errors == [], self.errors
        assert violations == []
        assert [url for url in self.asked if not url.startswith(self._url)] == [], "nothing is loaded from outside"
