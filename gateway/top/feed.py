"""Feed: reads the admin API for `fairlead top`: the live stream in one thread, the shown requests in another.

A lost connection is made again, with pauses that grow to RETRY_S_MAX, for as long as the program runs. The key is read
again for each connection, because a new gateway has another key.
"""

import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from gateway.admin.command.client import AdminClient, UnreachableError
from gateway.registry.merge_patch import merged
from gateway.top.picture import Known

SILENCE_S_MAX = 40.0  # the stream has at least a comment every 15 s, so two of them are lost
RETRY_S_FIRST, RETRY_S_MAX = 0.5, 5.0  # bad keys are throttled to one in 2 s after 20 of them (docs/admin.md)
REQUESTS_S = 2.0  # between two requests for requests: a person reads no faster
REQUESTS_MAX = 500  # of each state; the gateway gives the longest first
BACK_NOTICE_S = 10.0  # for which a connection that is back is mentioned


class LiveFeed:
    """A reader for `fairlead top`: in threads of its own, it reads a gateway's live document (the data of the live
    page) and its list of requests. `connect` makes a client of the admin API; it raises UnreachableError. `news` is
    called, in another thread, when `known` has something new.
    """

    def __init__(self, connect: Callable[[], AdminClient], news: Callable[[], None]) -> None:
        self._connect, self._news = connect, news
        self._document: Mapping[str, Any] = {}
        self._requests: list[Mapping[str, Any]] | None = None
        self._requests_error = ""
        self._error = ""
        self._lost_at: float | None = None
        self._back_at: float | None = None
        self._begun = threading.Event()
        self._wanted: Mapping[str, str] | None = None
        self._want_changed = threading.Event()
        self._asking: threading.Thread | None = None

    def start(self) -> None:
        """Read until the program ends. Returns with the first document; raises UnreachableError if none arrives."""
        threading.Thread(target=self._read_on, daemon=True, name="live stream").start()
        self._begun.wait()
        if not self._document:
            raise UnreachableError(self._error)

    def known(self) -> Known:
        """The state of the gateway as it is known now."""
        notice, now = "", time.monotonic()
        lost_at, back_at = self._lost_at, self._back_at
        if lost_at is not None:
            notice = f"CONNECTION LOST {now - lost_at:.0f} s ago, trying again: {self._error}"
        elif back_at is not None and now - back_at < BACK_NOTICE_S:
            notice = "the connection is back"
        return Known(self._document, self._requests, self._requests_error, notice=notice, is_lost=lost_at is not None)

    def want_requests(self, query: Mapping[str, str] | None) -> bool:
        """Read the requests of this query, like {"tenant": "a"}; None: no requests. Returns whether the query is a new
        one.
        """
        if query == self._wanted:
            return False
        self._wanted, self._requests = query, None
        self._want_changed.set()
        if self._asking is None:
            self._asking = threading.Thread(target=self._ask_on, daemon=True, name="requests")
            self._asking.start()
        return True

    def _read_on(self) -> None:
        pause_s = RETRY_S_FIRST
        while True:
            try:
                client = self._connect()
                for event, data in client.events(client.live_path(), silence_s_max=SILENCE_S_MAX):
                    pause_s = RETRY_S_FIRST
                    self._told(event, data)
                self._error = "the gateway has closed it"
            except UnreachableError as error:
                self._error = str(error)
            if self._lost_at is None:
                self._lost_at = time.monotonic()
            self._begun.set()
            self._news()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _told(self, event: str, data: Any) -> None:
        if event == "state":
            self._document = data
        elif event == "patch" and self._document:
            self._document = merged(self._document, data)
        else:
            return
        if self._lost_at is not None:
            self._lost_at, self._back_at = None, time.monotonic()
        self._begun.set()
        self._news()

    def _ask_on(self) -> None:
        while True:
            self._want_changed.clear()
            if (query := self._wanted) is not None:
                self._ask_once(query)
            self._want_changed.wait(None if query is None else REQUESTS_S)

    def _ask_once(self, query: Mapping[str, str]) -> None:
        found: list[Mapping[str, Any]] = []
        error = ""
        try:
            client = self._connect()
            for state in ("queued", "running"):
                asked = urlencode({"state": state, "limit": REQUESTS_MAX, **query})
                reply = client.ask("GET", f"/requests?{asked}", None)
                if reply.status != HTTPStatus.OK:
                    error = f"the gateway answers {reply.status}: {reply.body.get('detail', '')}"
                found += reply.body.get("items", [])
        except UnreachableError as unreachable:
            error = str(unreachable)
        if query == self._wanted:
            self._requests, self._requests_error = found, error
            self._news()
