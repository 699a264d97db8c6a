"""Replicas under load while something breaks: what their clients were answered, and what ran at the backends.

    async with Cluster(folder, server) as cluster, Load(cluster) as load:
        ... break something ...
    figures = await load.end()

Two tenants, of weight 4 and of weight 1, enter at different replicas and always want more than they get. A third one
spends a budget in money. Clients behave as behind a balancer: they call a replica that is ready, each call on a
connection of its own.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import aiohttp
from founding import FOUNDS
from gateway_process import Process, serving
from gateway_rig import CHAT, FAST, MODEL, PATIENCE_S, call, running
from network import Network
from redis_server import RedisServer

from backends.engine.http.engine_calls import EngineCalls
from backends.engine.http.exchange import EngineExchange
from backends.engine.http.http_api import EngineApi
from backends.engine.http.server import EngineOptions, EngineServer
from backends.engine.http.serving import Serving
from gateway.budgets.past import READ_S
from gateway.cluster.checkpoints import CHECKPOINT_S
from gateway.store.mirrored_usage import USAGE_PULL_S

SECRET = "0123456789abcdef0123456789abcdef"
SLOTS = 4  # of each backend
BACKENDS = 2
REPLICAS = 3
WEIGHTS = {"gold": 4, "bronze": 1}
HOMES = {"gold": (0, 2), "bronze": (1, 2)}  # where their clients call while it is ready
CLIENTS = 20  # of a tenant at a replica: so many that some wait where the others call in vain, on a busy machine, too
SPENDER, SPENDERS = "paid", 3  # its clients, at each replica
BUDGET = 1_200  # EUR, of 20 that one of its calls costs
SPEED = 0.3  # of the engines: a step takes about 3 ms, so answers are frequent
WHOLE_TOKENS, STREAM_TOKENS = 6, 40
WHOLE = {"max_tokens": WHOLE_TOKENS}
STREAM = {"max_tokens": STREAM_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
SETTLED_S = 3.0  # after calls that failed, of which no usage is known
BOOKED_S_MAX = USAGE_PULL_S + READ_S + SETTLED_S  # what a process that has ended wrote last is read from Redis
CALL_COST_MAX = 14 + STREAM_TOKENS  # EUR
BUDGETED_MAX = SPENDERS * REPLICAS  # calls at once that the budget is for
SPENT = -1  # instead of a status: the budget of its tenant is spent
READY_S = 0.05  # between looks at /readyz, as a balancer does
PROMPT_PRICE, OUTPUT_PRICE = 1, 2
CHARGES_S = 0.15  # between looks at what was charged; of one that is killed the last is so old
FORGOTTEN_S_MAX = 1.5 * CHECKPOINT_S  # what is due comes late at a leader whose machine others use, too
WINDOW_S = 5.0  # of a ratio: some hundred calls, a fifth of them of weight 1
SAMPLES_S = 0.25  # between looks at what each tenant was given
AT_ONCE_S = 0.002  # between looks at what runs at the backends
SHUTDOWN = {"lame_duck_s": 0.6, "drain_s": 10.0}
PRICE = {"currency": "EUR", "periods": [{"prompt": 1_000_000, "output": 1_000_000}]}  # 1 EUR a token
TENANTS = {
    **{tenant: {"weight": weight, "cost_per_day_max": 10**8} for tenant, weight in WEIGHTS.items()},
    SPENDER: {"cost_per_day_max": BUDGET},
}


Service = Counter[tuple[int, str]]
"""What was given, by the replica that a client called and by tenant, as its order charges it."""


class CountingServing(Serving):
    """Counts the tokens that it gives, also to calls whose connection is lost. A call's `seed` says whose it is."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self._ended: Service = Counter()
        self._present: list[tuple[tuple[int, str], int, EngineExchange]] = []

    @contextlib.contextmanager
    def _running(self, reply, candidates, priority):
        with super()._running(reply, candidates, priority) as exchange:
            if (seed := reply.call.seed) is None:
                yield exchange
                return
            number, at = divmod(seed, len(WEIGHTS))
            present = (number, list(WEIGHTS)[at]), reply.call.prompts[0].tokens, exchange
            self._present.append(present)
            try:
                yield exchange
            finally:
                self._present.remove(present)
                self._ended += given([present])

    def service(self) -> Service:
        return self._ended + given(self._present)


def given(calls: Iterable[tuple[tuple[int, str], int, EngineExchange]]) -> Service:
    service: Service = Counter()
    for of, prompt_tokens, exchange in calls:
        output_tokens = sum(choice.tokens for choice in exchange.choices)
        service[of] += prompt_tokens * PROMPT_PRICE + output_tokens * OUTPUT_PRICE
    return service


class CountingServer(EngineServer):
    serving: CountingServing

    def make_api(self, options: EngineOptions) -> EngineApi:
        self.serving = CountingServing(options)
        return EngineApi(EngineCalls(self.serving, options))


class Cluster:
    """Replicas by number, before engines in this process, which share a Redis."""

    def __init__(
        self,
        folder: Path,
        server: RedisServer,
        *,
        count: int = REPLICAS,
        network: Network | None = None,
        speed: float = SPEED,
        options: dict[int, dict[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        """`network`: has a namespace for each replica. `options`: how single replicas are started, as `serving` has
        them; the present ones count.
        """
        self.numbers = range(count)
        self.server = server
        self.backends: list[Any] = []
        self.processes: dict[int, Process] = {}
        self.options = options or {}
        self.network = network
        self.folder, self._speed = folder, speed
        self._host = "127.0.0.1" if network is None else network.host
        self._stack = contextlib.AsyncExitStack()
        self._running: dict[int, contextlib.AsyncExitStack] = {}
        self.settings = {
            "auth": {"secret": SECRET, "trusted_proxies": ["0.0.0.0/0"], "tenant_from": "key"},
            "state": {"redis": {"url": server.url}},
            "shutdown": SHUTDOWN,
            "tenants": TENANTS,
            "prices": {MODEL: PRICE},
            "scheduling": {"share_ratio_max": 1.0},  # a cap of three quarters would be 3:1
            **settings,
        }

    async def __aenter__(self) -> Self:
        try:
            for _ in range(BACKENDS):
                options = {**FAST, "speed": self._speed, "requests_running_max": SLOTS}
                self.backends.append(await self._stack.enter_async_context(listening_at(self._host, options)))
            await asyncio.gather(*(self.start(number) for number in self.numbers))
            await self.led()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(stack.aclose() for stack in self._running.values()))
        await self._stack.aclose()

    async def start(self, number: int) -> None:
        """Start this replica, for the first time or again, and wait until it serves."""
        folder = self.folder / f"replica{number}"
        folder.mkdir(exist_ok=True)
        is_first = number not in self.processes and self.network is None
        options = {"program": FOUNDS} if is_first and number not in self.options else dict(self.options.get(number, {}))
        settings = dict(self.settings)
        if self.network is not None:
            address = self.network.address(number)
            settings["listen"] = {"host": address, "port": 0}
            settings["admin"] = {"enabled": True, "host": address, "port": 0, "key_file": str(folder / "admin-key")}
            options["runner"] = self.network.runner(number)
        entries = [
            {"name": f"b{each}", "url": backend.url, "requests_running_max": SLOTS}
            for each, backend in enumerate(self.backends)
        ]
        stack = contextlib.AsyncExitStack()
        self.processes[number] = await stack.enter_async_context(
            serving(folder, *entries, settings=settings, **options)
        )
        self._running[number] = stack

    async def terminate(self, number: int) -> str:
        """End this replica as its operator does; what it said on stderr."""
        process = self.processes[number]
        said = await process.end(signal.SIGTERM)
        assert process._process.returncode == 0, said
        await self._running.pop(number).aclose()
        return said

    async def kill(self, number: int) -> None:
        self.send(number, signal.SIGKILL)
        await self._running.pop(number).aclose()

    def send(self, number: int, signal_number: int) -> None:
        os.kill(self.processes[number]._process.pid, signal_number)

    def url(self, number: int) -> str | None:
        """Where this replica serves; None: it does not run."""
        return self.processes[number]._url if number in self._running else None

    async def value(self, number: int, name: str) -> float | None:
        """The value of a family without labels; None: this replica does not answer, or has none."""
        try:
            async with asyncio.timeout(1.0):
                _, text = await self.processes[number].admin("GET", "/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError):
            return None
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        return None if found is None else float(found[1])

    async def leader(self, among: Any = None) -> int | None:
        """The replica that leads; None: none, or they do not agree."""
        numbers = [each for each in (self.numbers if among is None else among) if each in self._running]
        leads = [await self.value(number, "fairlead_cluster_leader") for number in numbers]
        epochs = {await self.value(number, "fairlead_cluster_epoch") for number in numbers}
        cut_off = [await self.value(number, "fairlead_replicas_cut_off") for number in numbers]
        agree = leads.count(1) == 1 and len(epochs) == 1 and not any(cut_off)
        return numbers[leads.index(1)] if agree else None

    async def led(self, among: Any = None) -> int:
        """The replica that leads, once they all agree."""
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                while (leader := await self.leader(among)) is None:  # noqa: ASYNC110 - they are processes
                    await asyncio.sleep(0.05)
        except TimeoutError:
            names = ("fairlead_cluster_leader", "fairlead_cluster_epoch", "fairlead_replicas_cut_off")
            said = {each: [await self.value(each, name) for name in names] for each in self._running}
            raise AssertionError(f"they agree on no leader; {names} of each: {said}") from None
        return leader

    async def divided(self) -> None:
        """Wait until each is alone."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while not all([await self.value(each, "fairlead_replicas_cut_off") for each in self._running]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def spent(self, number: int) -> dict[str, Decimal]:
        """What each tenant has spent of its budget, in EUR, as this replica knows."""
        status, found = await self.processes[number].admin("GET", "/admin/v1/state/budgets")
        assert status == 200, found
        return {each["tenant"]: Decimal(each["used"]) for each in found["items"] if each["tenant"]}

    async def services(self, number: int) -> dict[str, float] | None:
        """What each tenant was charged by this replica while it led all. What it charges alone, it tells the next
        leader. None: it does not answer.
        """
        try:
            async with asyncio.timeout(1.0):
                _, text = await self.processes[number].admin("GET", "/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError):  # its session was closed
            return None
        found = re.findall(r"^fairlead_tenant_service_total{(.*?)} (\S+)$", text, re.MULTILINE)
        is_alone = re.search(r"^fairlead_replicas_cut_off 1", text, re.MULTILINE) is not None
        return {} if is_alone else {of: float(value) for of, value in found}


@contextlib.asynccontextmanager
async def listening_at(host: str, options: dict[str, Any]):
    """A CountingServer there; `url` is where it listens."""
    server = CountingServer(EngineOptions(**options))
    server.url = await server.start(host)
    try:
        yield server
    finally:
        await server.stop()


@dataclass(frozen=True)
class Call:
    """`status` 0: its connection was lost, or its stream broke off. Of these no usage is known."""

    replica: int
    tenant: str
    ended_at: float
    status: int
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def service(self) -> int:
        """What its tenant is charged for it in the order."""
        return self.prompt_tokens * PROMPT_PRICE + self.output_tokens * OUTPUT_PRICE

    @property
    def tokens(self) -> int:
        """What it costs, in EUR."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Figures:
    """What clients had while something broke. `gap_s`: the longest time in which no call was answered anywhere;
    `idle_s`: in which none was begun at a backend.
    """

    answered: int
    failed: dict[int, int]  # by replica
    most: dict[str, int]  # ever in flight, by backend
    gap_s: float
    idle_s: float
    ratio: float  # of the service of weight 4 to that of weight 1, of all that was answered
    ratio_kept: float  # the same, less all that a leader may have forgotten to its successor's books
    ratios: tuple[float, float]  # the least and the most of any WINDOW_S
    forgotten_s: float  # what was delivered and not charged, in seconds of all service
    twice: float  # what processes charged and did not deliver, in calls
    calls_s: float  # answered in a second, on average
    over_budget: int  # EUR that were spent beyond the budget
    unbooked: dict[int, int]  # EUR that were delivered and not booked, by replica; less than 0: of calls that failed

    def __str__(self) -> str:
        failed = sum(self.failed.values())
        most = max(self.most.values())
        booked = sorted(self.unbooked.values())
        least, most_in = (f"{each:.2f}" for each in self.ratios)
        return (
            f"{self.answered} answered, {failed} failed, at most {most} of {SLOTS} in flight at a backend, "
            f"none begun for at most {self.idle_s:.2f} s, no answer for at most {self.gap_s:.2f} s, "
            f"{self.ratio:.2f} : 1 ({least} to {most_in} in {WINDOW_S:.0f} s), "
            f"{self.forgotten_s:.2f} s of charges forgotten, "
            f"{self.over_budget} EUR over the budget, {booked[0]} to {booked[-1]} EUR not booked"
        )


@dataclass
class Load:
    """Clients of all replicas that call again and again. Each tenant calls several, so none leaves with a replica."""

    cluster: Cluster
    calls: list[Call] = field(default_factory=list)
    charged: float = 0.0
    samples: list[tuple[float, Service]] = field(default_factory=list)
    """Times, and what was given until then."""
    forgotten: Counter[str] = field(default_factory=Counter)
    """Service by tenant that a leader's death may have taken from the books: its tenant gets as much again."""
    among: Iterable[int] | None = None  # the replicas that agree at the end; None: all
    most: Counter[str] = field(default_factory=Counter)
    ready: dict[int, bool] = field(default_factory=lambda: defaultdict(bool))
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _asking: list[asyncio.Task[None]] = field(default_factory=list)
    _since: float = 0.0
    _until: float = 0.0
    is_ending: bool = False
    idle_s: float = 0.0  # the longest time in which no call was begun at a backend

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60))
        looks = [self._look_at_backends(), self._look_at_service()]
        looks += [look(number) for number in self.cluster.numbers for look in (self._look_at, self._look_at_charges)]
        self._ask_all(self.make_clients())
        self._tasks += [asyncio.create_task(each) for each in looks]
        try:
            await self.served(self.entered)
        except BaseException:
            await self.__aexit__()
            raise
        self._since, self.idle_s = self._sample(), 0.0
        self._ask_all(self._spend(number) for number in self.cluster.numbers for _ in range(SPENDERS))
        return self

    def _ask_all(self, clients: Iterable[Coroutine[Any, Any, None]]) -> None:
        tasks = [asyncio.create_task(each) for each in clients]
        self._asking += tasks
        self._tasks += tasks

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        broken = [each for each in done if each is not None and not isinstance(each, asyncio.CancelledError)]
        assert not broken, broken

    async def served(self, replicas: Any = None, calls: int = 12) -> None:
        """Wait until so many more calls were answered at each of these replicas."""
        numbers = list(self.cluster.numbers if replicas is None else replicas)
        before, give_up_at = len(self.calls), time.monotonic() + 2 * PATIENCE_S
        while True:
            answered = Counter((each.replica, each.status) for each in self.calls[before:])
            if all(answered[number, 200] >= calls for number in numbers):
                return
            assert time.monotonic() < give_up_at, f"{numbers} do not serve: {answered}, ready: {dict(self.ready)}"
            await asyncio.sleep(0.02)

    async def end(self) -> Figures:
        """Let what runs come to its end, and say what there was."""
        self.is_ending, self._until = True, self._sample()
        await self.cluster.led(self.among)
        await asyncio.gather(*self._asking)
        async with asyncio.timeout(PATIENCE_S):
            while any(map(running, self.cluster.backends)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        charged = -1.0
        async with asyncio.timeout(PATIENCE_S):
            while charged != self.charged:  # what followers have told is taken in
                charged = self.charged
                await asyncio.sleep(0.7)
        return self._figures(charged, await self._booked())

    async def _booked(self) -> dict[int, dict[str, Decimal]]:
        """What each replica has booked, once it is all that was delivered, or after a while."""
        tokens, are_answered = sum(each.tokens for each in self.calls), all(each.status == 200 for each in self.calls)
        booked: dict[int, dict[str, Decimal]] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BOOKED_S_MAX if are_answered else SETTLED_S):
                while not booked or any(sum(spent.values()) != tokens for spent in booked.values()):
                    await asyncio.sleep(0.5)
                    booked = {number: await self.cluster.spent(number) for number in self.among or self.cluster.numbers}
        return booked

    def _figures(self, charged: float, booked: dict[int, dict[str, Decimal]]) -> Figures:
        ended = sorted(each.ended_at for each in self.calls if each.status == 200)
        gaps = [after - before for before, after in pairwise(ended) if after > self._since]
        failed = Counter(each.replica for each in self.calls if each.status != 200)
        delivered = sum(each.service for each in self.calls)
        tokens = sum(each.tokens for each in self.calls)
        starts = range(int((self._until - self._since - WINDOW_S) * 2) + 1)  # every half a second
        windows = [self._ratio(self._since + at / 2, self._since + at / 2 + WINDOW_S) for at in starts]
        windows = windows or [self._ratio(self._since, self._until)]
        per_s = delivered / (ended[-1] - ended[0])
        return Figures(
            len(ended),
            dict(failed),
            dict(self.most),
            max(gaps),
            self.idle_s,
            self._ratio(self._since, self._until),
            self._ratio(self._since, self._until, less=self.forgotten),
            (min(windows), max(windows)),
            max(0.0, delivered - charged) / per_s,
            max(0.0, charged - delivered) / (14 * PROMPT_PRICE + STREAM_TOKENS * OUTPUT_PRICE),
            len(ended) / (ended[-1] - ended[0]),
            max(0, sum(each.tokens for each in self.calls if each.tenant == SPENDER) - BUDGET),
            {number: tokens - int(sum(spent.values())) for number, spent in booked.items()},
        )

    def forget(self, number: int) -> None:
        """This replica led, and was killed just now: what it gave since its last checkpoint is in no books."""
        given = self._given(self._sample() - FORGOTTEN_S_MAX, inf)
        self.forgotten += Counter({tenant: service for (of, tenant), service in given.items() if of == number})

    def _ratio(self, since: float, until: float, *, less: Mapping[str, int] = MappingProxyType({})) -> float:
        served = Counter({tenant: -service for tenant, service in less.items()})
        for (_, tenant), service in self._given(since, until).items():
            served[tenant] += service
        return served["gold"] / served["bronze"] if served["bronze"] else inf

    def _given(self, since: float, until: float) -> Service:
        """What was given between the samples next to these times, or since the first one."""
        before = [service for at, service in self.samples if at <= since] or [self.samples[0][1]]
        return [service for at, service in self.samples if at <= until][-1] - before[-1]

    def _sample(self) -> float:
        """Note what was given until now; this time."""
        given = sum((backend.serving.service() for backend in self.cluster.backends), Service())
        self.samples.append((now := time.monotonic(), given))
        return now

    async def _look_at_service(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(SAMPLES_S)

    async def _look_at_charges(self, number: int) -> None:
        """Sum what this replica charges. Its counters begin anew with each leadership."""
        before: dict[str, float] = {}
        while True:
            now = await self.cluster.services(number) if self.cluster.url(number) is not None else None
            if now is not None:
                self.charged += sum(
                    value - (before.get(of, 0.0) if value >= before.get(of, 0.0) else 0.0) for of, value in now.items()
                )
                before = now
            await asyncio.sleep(CHARGES_S)

    async def _look_at_backends(self) -> None:
        begun, since = 0, time.monotonic()
        while True:
            for number, backend in enumerate(self.cluster.backends):
                self.most[f"b{number}"] = max(self.most[f"b{number}"], running(backend))
            now = time.monotonic()
            engines = [each for backend in self.cluster.backends for each in backend.snapshots()]
            prefilled = sum(each.prompt_tokens_total for each in engines)
            if prefilled != begun:
                begun, since = prefilled, now
            elif not self.is_ending:
                self.idle_s = max(self.idle_s, now - since)
            await asyncio.sleep(AT_ONCE_S)

    async def _look_at(self, number: int) -> None:
        """Whether this replica is ready, as a balancer knows it."""
        while True:
            url, is_ready = self.cluster.url(number), False
            if url is not None:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(0.5), self._session.get(url + "/readyz") as answer:
                        is_ready = answer.status == 200
            self.ready[number] = is_ready
            await asyncio.sleep(READY_S)

    @property
    def entered(self) -> Iterable[int]:
        """The replicas that clients call at first."""
        return self.cluster.numbers

    def make_clients(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self._ask(home, tenant, is_stream=each % 2 == 0)
            for tenant, homes in HOMES.items()
            for home in homes
            for each in range(CLIENTS)
        ]

    def ready_from(self, home: int) -> int | None:
        """The replica at which a balancer lets a client of this one in; None: none is ready."""
        count = len(self.cluster.numbers)
        return next((each for at in range(count) if self.ready[each := (home + at) % count]), None)

    async def _ask(self, home: int, tenant: str, *, is_stream: bool) -> None:
        fields = STREAM if is_stream else WHOLE
        while not self.is_ending:
            if (number := self.ready_from(home)) is not None:
                await self.call(number, tenant, **fields)
            else:
                await asyncio.sleep(READY_S)

    async def _spend(self, home: int) -> None:
        """Call until the budget is spent."""
        while not self.is_ending:
            if (number := self.ready_from(home)) is not None:
                if await self.call(number, SPENDER, **WHOLE) == SPENT:
                    return
            else:
                await asyncio.sleep(READY_S)

    async def call(self, number: int, tenant: str, **fields: Any) -> int | None:
        """One call at this replica, which is noted; its status."""
        url = self.cluster.url(number)
        if url is None:  # it has just ended, and nothing has looked since: a client that asked on would keep the loop
            await asyncio.sleep(READY_S)
            return None
        if tenant in WEIGHTS:
            fields["seed"] = number * len(WEIGHTS) + list(WEIGHTS).index(tenant)
        status, *usage = await self._call(url, tenant, fields)
        if status != SPENT:
            self.calls.append(Call(number, tenant, time.monotonic(), status, *usage))
        if status != 200:
            await asyncio.sleep(READY_S)
        return status

    async def _call(self, url: str, tenant: str, fields: dict[str, Any]) -> tuple[int, int, int]:
        """Status, tokens of the prompt and of the output."""
        headers = {"X-Tenant-Id": tenant, "Authorization": f"Bearer {tenant}", "Content-Type": "application/json"}
        try:
            async with self._session.post(url + CHAT, data=json.dumps(call(**fields)), headers=headers) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, 0, 0
        if answer.status == 429 and b"insufficient_quota" in body:
            return SPENT, 0, 0
        if answer.status != 200:
            return answer.status, 0, 0
        if "stream" in fields:
            events = body.split(b"\n\n")
            if events[-2:] != [b"data: [DONE]", b""]:
                return 0, 0, 0
            body = events[-3].removeprefix(b"data: ")
        usage = json.loads(body)["usage"]
        return 200, usage["prompt_tokens"], usage["completion_tokens"]
