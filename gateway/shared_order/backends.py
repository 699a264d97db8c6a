"""Backends of processes that share an order: the leader polls them, and sends the facts that calls need to the others.

These facts are whether a backend is available, its models, its kind, and how it reads priorities. A follower polls no
backend; it reports the outcomes of its own calls to the leader, which decides on the backend's health for all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any, Final

import msgspec

from backends.catalog import ModelCard
from backends.health import Evidence, HealthState
from backends.kinds import BACKEND_KINDS, GENERIC, GENERIC_WITHOUT_OPTIONS, BackendKind
from backends.live_backend import LiveBackend
from backends.plugin_reports import EngineNews
from backends.poll_loop import Polled, PollLoop
from backends.spec import BackendSpec
from gateway.others import Others
from gateway.shared_order.order import SharedOrder
from gateway.tasks import cancel

EMBEDDED: Final = "embedded"  # the id of the engine inside a gateway
TOPIC: Final = "backend/"
"""Topics of the order that begin so tell of one backend."""
LOOK_S: Final = 0.25  # between looks for what no callback tells, such as a kind
FIRST_S_MAX: Final = 3.0  # a follower's start waits so long to be told of its backends
_KINDS: Final = {kind.name: kind for kind in (*BACKEND_KINDS.values(), GENERIC, GENERIC_WITHOUT_OPTIONS)}


class BackendNews(msgspec.Struct, frozen=True, array_like=True):
    """The state of one backend, as the leader sends it to its followers: its health, its models (`cards`) and what its
    server can do. `url` is the backend's address. It changes only for the embedded engine (the simulated engine inside
    the leader, used if no backend is configured), when there is a new leader.
    """

    url: str
    state: HealthState
    kind: str | None
    cards: tuple[ModelCard, ...]
    context_tokens_max: int | None
    plugin: str | None
    reads_priority: bool
    tokenizer: str | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(BackendNews)


class SharedPolls(PollLoop):
    """The health polls of backends for the processes of a shared order. The leader polls the backends, and sends
    changes to all followers. A follower does not poll: it receives the changes. The role may change. Made on the loop.
    """

    def __init__(
        self, order: SharedOrder, others: Others, moved: Callable[[BackendSpec], None], **options: Any
    ) -> None:
        """`moved` is told that a backend is elsewhere now. `options` as of PollLoop."""
        super().__init__(**options)
        self._order, self._others, self._moved = order, others, moved
        self.is_asking = self._is_started = False
        self._is_told = asyncio.Event()
        self._news: dict[str, BackendNews] = {}  # by backend, as the leader told it
        self._lacked: frozenset[str] = frozenset()  # that the leader tells of and this process does not know
        self._homes: dict[str, str] = {}
        self.announcements = Announcements(order)
        self._changing: asyncio.Task[None] | None = None

    def begin(self, backends: Mapping[str, LiveBackend], pool: Polled) -> None:
        super().begin(backends, pool)
        self.announcements.begin(backends)
        self.is_asking = self._order.leader is not None
        self._homes = {each.spec.id: each.spec.url for each in backends.values()}

    async def start(self) -> None:
        """Poll all backends once, or as a follower wait for the first news of each, for at most FIRST_S_MAX."""
        self._is_started = True
        self.announcements.start()
        if self.is_asking:
            await super().start()
            return
        self._know_all()
        for backend in list(self._backends.values()):
            self._take(backend)
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S_MAX):
                while not self.is_asking and not self._news.keys() >= self._backends.keys():
                    self._is_told.clear()
                    await self._is_told.wait()

    async def stop(self) -> None:
        await self.announcements.stop()
        await cancel(self._changing)
        await super().stop()

    def lead(self) -> None:
        """Poll the backends from now on. The news so far were true a moment ago, so they stay."""
        if not self.is_asking:
            self.is_asking, self._news = True, {}
            self._is_told.set()
            self._know_all()
            for backend in list(self._backends.values()):
                self._return_home(backend)
                if backend.health.available:  # until it answers here; then it is measured, too
                    backend.health.state = HealthState.UNKNOWN
            self._change(super().start)
        self.announcements.anew()

    def follow(self) -> None:
        """Poll no backend from now on."""
        if self.is_asking:
            self.is_asking = False
            self._change(super().stop)
        self._order.lacks(self._lacked)

    def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        before = self._changing if self._is_started else None

        async def run() -> None:
            if before is not None:
                await before
            await change()
            if not self.is_asking:
                for backend in list(self._backends.values()):
                    backend.metrics = backend.metrics.sizes()
                    backend.step_times.silent()
                    backend.step_counts.silent()
                    self._take(backend)

        if self._is_started:
            self._changing = asyncio.create_task(run(), name="begin or end to ask backends")

    def add(self, backend: LiveBackend) -> None:
        super().add(backend)
        self._homes[backend.spec.id] = backend.spec.url
        self._take(backend)
        self._know_all()

    async def remove(self, backend: LiveBackend) -> None:
        await super().remove(backend)
        self._know_all(but=backend.spec.id)

    def told(self, topic: str, body: bytes) -> None:
        """Apply news of a backend from the leader."""
        if self.is_asking:
            return
        backend_id = topic.removeprefix(TOPIC)
        self._news[backend_id] = _DECODER.decode(body)
        self._is_told.set()
        backend = self._backends.get(backend_id)
        if backend is not None:
            self._take(backend)
        self._know_all()

    def report(self, backend: LiveBackend, evidence: Evidence, ago_s: float) -> None:
        if evidence is Evidence.SERVED and backend.health.state is not HealthState.TRIAL:
            return
        if evidence is Evidence.UNREACHABLE:
            self._order.member.follower.out_of_reach.failed(backend.spec.id, self.clock())
            self._order.turns.soon()
        self._others.tell("evidence", _ENCODER.encode((backend.spec.id, evidence, ago_s)))

    def _know_all(self, *, but: str = "") -> None:
        """Rule 8: say which backends the leader may name and this process cannot reach, as it does not know them."""
        lacked = frozenset(self._news.keys() - (self._backends.keys() - {but}))
        if lacked != self._lacked and self._is_started:
            self._lacked = lacked
            self._order.lacks(lacked)

    def _return_home(self, backend: LiveBackend) -> None:
        home = self._homes.get(backend.spec.id)
        if home is not None and home != backend.spec.url:
            backend.spec = replace(backend.spec, url=home)
            self._moved(backend.spec)

    def _take(self, backend: LiveBackend) -> None:
        news = self._news.get(backend.spec.id)
        if news is None or not self._is_started or self.is_asking:
            return
        if news.url != backend.spec.url and backend.spec.id == EMBEDDED:  # the leader's own
            backend.spec = replace(backend.spec, url=news.url)
            self._moved(backend.spec)
        was_available = backend.health.available
        backend.health.state, backend.health.heard_at = news.state, inf  # it is asked elsewhere
        if backend.health.available and not was_available:
            backend.health.back_at = self.clock()
        if backend.kind is not GENERIC_WITHOUT_OPTIONS or news.kind is None:
            backend.kind = _kind(news.kind)
        backend.cards, backend.tokenizer = news.cards, news.tokenizer
        backend.sizes = replace(backend.sizes, context_tokens_max=news.context_tokens_max)
        backend.plugin.engines = None if news.plugin is None else EngineNews(reads_priority=news.reads_priority)
        if news.plugin is not None:
            backend.plugin.gateway = news.plugin
        self._pool.settle(backend, backend.health.state, "")
        self._pool.serves(backend)


class Announcements:
    """The sender of backends' states from the leader to all followers: a state is sent when it has changed. Mutable."""

    def __init__(self, order: SharedOrder) -> None:
        self._order = order
        self._backends: Mapping[str, LiveBackend] = {}
        self._told: dict[str, BackendNews] = {}  # by backend
        self._looking: asyncio.Task[None] | None = None

    def begin(self, backends: Mapping[str, LiveBackend]) -> None:
        """Set the backends to announce. The mapping may change later."""
        self._backends = backends

    def start(self) -> None:
        """Check every LOOK_S for changes that no callback reports."""
        self._looking = asyncio.create_task(self._look(), name="announce backends")

    async def stop(self) -> None:
        await cancel(self._looking)

    def anew(self) -> None:
        """Announce all backends, because this process begins to lead."""
        self._told.clear()
        self.announce()

    def announce(self, backend_ids: Iterable[str] | None = None) -> None:
        """Announce the changes of these backends since their last announcement; None: of all backends."""
        leader = self._order.leader
        if leader is None:
            return
        present = (backend_id for backend_id, backend in self._backends.items() if not backend.leaving)
        for backend_id in present if backend_ids is None else backend_ids:
            news = _news_of(self._backends[backend_id])
            if self._told.get(backend_id) != news:  # cards are equal whatever else their entries say
                self._told[backend_id] = news
                leader.members.share(TOPIC + backend_id, _ENCODER.encode(news))
                self._order.turns.soon()

    async def _look(self) -> None:
        while True:
            self.announce()
            await asyncio.sleep(LOOK_S)


def _news_of(backend: LiveBackend) -> BackendNews:
    return BackendNews(
        backend.spec.url,
        backend.health.state,
        None if backend.kind is None else backend.kind.name,
        backend.cards,
        backend.sizes.context_tokens_max,
        None if backend.plugin.engines is None else backend.plugin.gateway,
        backend.reads_priority,
        backend.tokenizer,
    )


def url_of(body: bytes) -> str:
    """The address of a backend, from the leader's news of it."""
    return _DECODER.decode(body).url


def _kind(name: str | None) -> BackendKind | None:
    return None if name is None else _KINDS.get(name, GENERIC)
