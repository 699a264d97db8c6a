"""Measures the overhead of a gateway in front of one server, and how it shares that server among overloading tenants.

Overhead: the same calls go to the server and to a gateway in front of it, in pairs. The order alternates from pair to
pair, so that a slow period affects both sides. The overhead is the median of the differences within pairs. Whole
answers of one token show the cost of a request, streams the further cost of a chunk. The CPU time of the gateway's
polls is measured while no call runs, and subtracted.

Shares: every tenant keeps more calls waiting than there are slots, half of them with long prompts and short answers,
half the other way round. Service (prompt tokens, and twice output tokens: the gateway's default price) is counted here,
as tokens arrive, and compared with the weights.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from math import ceil
from random import Random
from statistics import mean, median

from backends.poll import Poller
from backends.spec import BackendSpec
from gateway.bench.child import Child, gateway
from gateway.calibrate.asking import POLL_TIMEOUT_S, model_card
from gateway.calibrate.calls import Answer, CalibrationError, CallSender, Target, run_for, until_cancelled
from gateway.calibrate.mix import TEXT
from policies.accounts.cost import LinearPrice

WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of calls: words of the prompt, tokens of the answer, and whether the answer is a stream."""

    prompt_words: int
    output_tokens: int
    stream: bool = True


REQUEST = Shape(prompt_words=16, output_tokens=1, stream=False)
STREAM = Shape(prompt_words=16, output_tokens=64)
PROMPTS = Shape(prompt_words=256, output_tokens=16)
ANSWERS = Shape(prompt_words=16, output_tokens=64)
PAIRS_AT_ONCE = 4
IDLE_S = 2.0
PARTS = {"whole answers": 0.25, "streams": 0.25, "shares": 0.5}  # of the time
WARM_UP = 0.25  # of the time of the shares, until every queue is full
WAITING = 2  # calls of a tenant for each seat
PRICE = LinearPrice()

Show = Callable[[float, str], None]  # how far it is (0 to 1), and with what


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the 99th percentile of some measured times, in milliseconds."""

    median_ms: float
    p99_ms: float
    samples: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One time, such as the time to first token, measured in pairs of calls: one directly at the server, one through
    the gateway. `added_ms` is the median difference in milliseconds.
    """

    direct: Spread
    gateway: Spread
    added_ms: float


@dataclass(frozen=True, slots=True)
class Share:
    """One tenant's part of all service in a bench (`share`, 0 to 1), compared with the part that its weight entitles it
    to (`share_by_weight`).
    """

    tenant: str
    weight: float
    calls: int
    service_per_s: float
    share: float
    share_by_weight: float
    ratio: float


@dataclass(slots=True)
class Found:
    """The results of a bench, complete (`is_whole`) or up to where it stopped. CPU times are of the gateway's process;
    None: not known.
    """

    backend: str
    model: str
    request: Compared | None = None
    first_token: Compared | None = None
    token: Compared | None = None
    cpu_us_per_request: float | None = None
    cpu_us_per_chunk: float | None = None
    cpu_idle_ratio: float | None = None
    shares: list[Share] = field(default_factory=list)
    failed_calls: int = 0
    failure: str | None = None  # the last
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a bench: the server to measure (`spec`), its API key and model, and how many `seconds` to measure in
    all. `tenants` is the number of tenants that compete; while they do, at most `slots` calls are at the server at
    once.
    """

    spec: BackendSpec
    api_key: str | None
    model: str | None  # None: the first that it serves
    seconds: float
    tenants: int
    slots: int


async def bench(plan: Plan, show: Show) -> Found:
    """Run the plan. When cancelled, return the results so far. Raises CalibrationError where calls are not answered."""
    found = Found(plan.spec.url, await _model(plan))
    with until_cancelled():
        async with CallSender() as caller:
            lab = _Lab(plan, caller, found, show)
            try:
                await lab.overhead()
                await lab.shares()
            finally:
                found.failed_calls, found.failure = caller.failed, caller.failure
        found.is_whole = True
    return found


async def _model(plan: Plan) -> str:
    poller = Poller(POLL_TIMEOUT_S)
    poller.start()
    try:
        return (await model_card(poller, plan.spec, plan.model)).id
    finally:
        await poller.stop()


class _Lab:
    def __init__(self, plan: Plan, caller: CallSender, found: Found, show: Show) -> None:
        self._plan = plan
        self._caller = caller
        self._rng = Random(0)  # noqa: S311 - every time the same
        self._found = found
        self._show = show
        self._began_at = time.monotonic()

    async def overhead(self) -> None:
        """Fill in what the gateway adds to requests and to chunks."""
        plan, found = self._plan, self._found
        self._show(0.0, "starting a gateway")
        async with gateway(plan.spec, {"bench": 1.0}, api_key=plan.api_key) as child:
            targets = self._direct(), self._through(child, "bench")
            self._began_at = time.monotonic()
            idle = await self._cpu_of(child, asyncio.sleep(min(IDLE_S, plan.seconds / 10)))
            found.cpu_idle_ratio = None if idle is None else idle.cpu_s / idle.seconds
            requests = _Pairs()
            cpu = await self._cpu_of(child, self._in_turns(targets, REQUEST, "whole answers", requests))
            found.request = requests.compared(lambda answer: [answer.total_s])
            per_request_s = _beside_idle(cpu, idle, len(requests.pairs), 0.0)
            found.cpu_us_per_request = None if per_request_s is None else per_request_s * 1e6
            streams = _Pairs()
            cpu = await self._cpu_of(child, self._in_turns(targets, STREAM, "streams", streams))
            found.first_token = streams.compared(lambda answer: answer.tokens_at[:1])
            found.token = streams.compared(lambda answer: answer.gaps_s)
            if per_request_s is not None:
                chunks = sum(len(through.tokens_at) for _, through in streams.pairs)
                per_chunk_s = _beside_idle(cpu, idle, chunks, per_request_s * len(streams.pairs))
                found.cpu_us_per_chunk = None if per_chunk_s is None else per_chunk_s * 1e6

    async def shares(self) -> None:
        """Fill in how much service each tenant got."""
        plan = self._plan
        weights = {f"tenant-{number}": float(number) for number in range(1, plan.tenants + 1)}
        self._show(self._part(), "starting a gateway for tenants")
        async with gateway(plan.spec, weights, api_key=plan.api_key, slots=plan.slots) as child:
            seconds = plan.seconds * PARTS["shares"]
            tallies = {name: _TenantTally(time.monotonic() + seconds * WARM_UP) for name in weights}
            workers = [
                self._keep_calling(self._through(child, name), (PROMPTS, ANSWERS)[number % 2], tally)
                for number, (name, tally) in enumerate(tallies.items())
                for _ in range(WAITING * plan.slots)
            ]
            await self._for(seconds, f"{plan.tenants} tenants that ask for more than there is", workers)
        total, measured_s = sum(tally.service for tally in tallies.values()), seconds * (1.0 - WARM_UP)
        if not total:
            raise CalibrationError("no tenant was answered in the time that there was: give it more --seconds")
        for name, tally in tallies.items():
            share, by_weight = tally.service / total, weights[name] / sum(weights.values())
            self._found.shares.append(
                Share(name, weights[name], tally.calls, tally.service / measured_s, share, by_weight, share / by_weight)
            )

    def _direct(self) -> Target:
        return Target.at(self._plan.spec, self._found.model)

    def _through(self, child: Child, tenant: str) -> Target:
        return Target(child.url, {"authorization": f"Bearer {child.keys[tenant]}"}, self._found.model)

    async def _in_turns(self, targets: tuple[Target, Target], shape: Shape, name: str, pairs: "_Pairs") -> None:
        async def call_in_turns(number: int) -> None:
            while True:
                number += 1
                body = [self._body(target, shape) for target in targets]
                answers: dict[int, Answer] = {}
                for which in ((0, 1), (1, 0))[number % 2]:
                    answers[which] = await self._caller.call(targets[which], body[which])
                if answers[0].why is None and answers[1].why is None:
                    pairs.pairs.append((answers[0], answers[1]))

        seconds = self._plan.seconds * PARTS[name]
        await self._for(seconds, f"{name}, direct and gateway in turns", map(call_in_turns, range(PAIRS_AT_ONCE)))
        if not pairs.pairs:
            raise CalibrationError(f"no pair of calls was answered in {seconds:g} s: give it more --seconds")

    async def _keep_calling(self, target: Target, shape: Shape, tally: "_TenantTally") -> None:
        while True:
            answer = await self._caller.call(target, self._body(target, shape), tally.begin())
            tally.calls += answer.why is None and time.monotonic() >= tally.from_s

    def _body(self, target: Target, shape: Shape) -> dict[str, object]:
        """A call whose prompt begins like no other, so that no prefix cache reduces the work of some of them."""
        words = self._rng.choices(WORDS, k=shape.prompt_words)
        return target.completion(" ".join(words), shape.output_tokens, stream=shape.stream)

    async def _cpu_of(self, child: Child, work: Awaitable[None]) -> "_Cpu | None":
        """Do the work; return what the gateway's process has used meanwhile, None where that is unknown."""
        before_s, began_at = child.cpu_s(), time.monotonic()
        await work
        after_s = child.cpu_s()
        return None if before_s is None or after_s is None else _Cpu(after_s - before_s, time.monotonic() - began_at)

    async def _for(self, seconds: float, what: str, work: Iterable[Coroutine[None, None, None]]) -> None:
        await run_for(seconds, work, look=lambda: self._show(self._part(), what))

    def _part(self) -> float:
        return min((time.monotonic() - self._began_at) / self._plan.seconds, 1.0)


@dataclass(frozen=True, slots=True)
class _Cpu:
    cpu_s: float
    seconds: float


@dataclass(slots=True)
class _Pairs:
    """Answers to the same call, of the server and through the gateway."""

    pairs: list[tuple[Answer, Answer]] = field(default_factory=list)

    def compared(self, times: Callable[[Answer], list[float]]) -> Compared | None:
        """By these times of each answer, of which there may be none. What is added is by the mean of each answer."""
        direct = [each for answer, _ in self.pairs for each in times(answer)]
        through = [each for _, answer in self.pairs for each in times(answer)]
        both = [(times(one), times(other)) for one, other in self.pairs]
        added = [mean(theirs) - mean(ours) for ours, theirs in both if ours and theirs]
        if not added:
            return None
        return Compared(_spread(direct), _spread(through), median(added) * 1e3)


class _TenantTally:
    """What one tenant has been served since `from_s`, by what its calls use as they go on."""

    def __init__(self, from_s: float) -> None:
        self.from_s = from_s
        self.service = 0.0
        self.calls = 0

    def begin(self) -> Callable[[int, int], None]:
        """What a new call is to tell of its tokens so far."""
        before = 0.0

        def told(prompt_tokens: int, output_tokens: int) -> None:
            nonlocal before
            now = max(PRICE.service(prompt_tokens, 0, output_tokens), before)
            if time.monotonic() >= self.from_s:
                self.service += now - before
            before = now

        return told


def _beside_idle(cpu: _Cpu | None, idle: _Cpu | None, count: int, other_s: float) -> float | None:
    """CPU seconds for each of so many, without what an idle gateway and other work take."""
    if cpu is None or idle is None or not count:
        return None
    return max(cpu.cpu_s - idle.cpu_s / idle.seconds * cpu.seconds - other_s, 0.0) / count


def _spread(times_s: list[float]) -> Spread:
    ordered = sorted(times_s)
    p99 = ordered[ceil(0.99 * len(ordered)) - 1]
    return Spread(median(ordered) * 1e3, p99 * 1e3, len(ordered))
