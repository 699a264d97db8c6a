"""Arrivals: the calls of a trace, converted to arrivals at a pool of simulated engines.

Time starts with the first call and runs `speed` times as fast. Calls that an engine could not serve (without output, or
larger than its KV pool) are left out and counted: every figure is about the rest.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from backends.simulation.requests import MODEL, Arrival, SessionPrompt
from gateway.simulate.trace.formats import TraceCall

REBLOCKED_MAX = 200_000  # blocks of a trace whose size is remembered
SUB_BLOCK_FACTOR = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads numbers that follow each other
QUIET_REQUESTS_MIN = 20
HASH_MASK = (1 << 64) - 1


@dataclass(slots=True)
class LeftOut:
    """The counts of a trace's calls that were not simulated. Mutable: they grow while the arrivals are read."""

    without_output: int = 0
    too_large: int = 0
    other_models: int = 0

    def described(self) -> str:
        counts = {
            "without output": self.without_output,
            "larger than an engine's KV cache": self.too_large,
            "for other models": self.other_models,
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The settings for simulating a trace. `request_tokens_max` is the size of the largest request that an engine can
    hold. `block_tokens` is the size of the engine's KV blocks (None: it shares no prefixes). `output_tokens_max` is the
    output limit of a call that does not give one. `speed` 2 lets calls arrive twice as fast.
    """

    request_tokens_max: int
    block_tokens: int | None
    output_tokens_max: int
    speed: float = 1.0
    model: str | None = None
    left_out: LeftOut = field(default_factory=LeftOut)

    def arrivals(self, calls: Iterable[tuple[str, TraceCall]]) -> Iterator[Arrival]:
        """Yield the calls that can be simulated, from time 0, in their order. If a call waited for a call that is left
        out, it waits for the call that the latter waited for.
        """
        first_at_s: float | None = None
        absent: dict[int, tuple[int | None, float]] = {}
        blocks = None if self.block_tokens is None else Blocks(self.block_tokens)
        prompts = SessionPrompts()
        for tenant_id, call in calls:
            first_at_s = call.at_s if first_at_s is None else first_at_s
            waited_for, think_s = call.waited_for, call.think_s
            if waited_for in absent:
                waited_for, before_s = absent[waited_for]
                think_s += before_s
            if not self._takes(call):
                if call.number is not None:
                    absent[call.number] = waited_for, think_s
                continue
            yield Arrival(
                tenant_id=tenant_id,
                at_s=(call.at_s - first_at_s + (think_s if waited_for is None else 0.0)) / self.speed,
                prompt_tokens=call.prompt_tokens,
                output_tokens=call.output_tokens,
                output_tokens_max=max(call.output_tokens, call.output_tokens_max or self.output_tokens_max),
                prefix=blocks.of(call) if blocks is not None and call.prefix else (),
                patience_s=call.patience_s,
                model=call.model or MODEL,
                endpoint=call.endpoint,
                program_id=call.program_id,
                uses_tools=call.uses_tools,
                number=call.number,
                loop=call.loop,
                waited_for=waited_for,
                think_s=think_s / self.speed,
                came_before=call.came_before,
                parent_id=call.parent_id,
                ends_session=call.ends_session,
                of_session=prompts.of(tenant_id, call)
                if call.turn and blocks is not None and not call.prefix
                else None,
            )

    def _takes(self, call: TraceCall) -> bool:
        if self.model is not None and call.model != self.model:
            self.left_out.other_models += 1
        elif not call.output_tokens:
            self.left_out.without_output += 1
        elif call.prompt_tokens + call.output_tokens > self.request_tokens_max:
            self.left_out.too_large += 1
        else:
            return True
        return False


class Blocks:
    """A converter of prompt prefixes from blocks of a trace into blocks of an engine. A trace's block becomes the
    nearest whole number of engine blocks. If the trace's blocks are cut by bytes, their tokens are estimates that
    differ from call to call. So a block keeps its first size, and calls that share the block share all of it.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._parts: dict[int, int] = {}  # by hash, oldest first

    def of(self, call: TraceCall) -> tuple[int, ...]:
        if call.prefix_block_tokens == self._block_tokens:
            return call.prefix
        parts = max(1, round(call.prefix_block_tokens / self._block_tokens))
        blocks_max = call.prompt_tokens // self._block_tokens
        prefix: list[int] = []
        for block in call.prefix:
            seen = self._seen(block, parts)
            prefix += [(block + part * SUB_BLOCK_FACTOR) & HASH_MASK for part in range(seen)]
            if len(prefix) >= blocks_max:
                break
        return tuple(prefix[:blocks_max])

    def _seen(self, block: int, parts: int) -> int:
        seen = self._parts.setdefault(block, parts)
        if len(self._parts) > REBLOCKED_MAX:
            del self._parts[next(iter(self._parts))]
        return seen


class SessionPrompts:
    """A maker of made-up prompts for the calls of sessions. It is for a trace that has no prompts, but says for each
    call which turn of its session the call is (the first, the second, ...). Prompts are made from the numbers of the
    session and of the tenant. Mutable: a new session or tenant gets the next free number.
    """

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str | None], int] = {}
        self._tenants: dict[str, int] = {}

    def of(self, tenant_id: str, call: TraceCall) -> SessionPrompt:
        session = self._sessions.setdefault((tenant_id, call.program_id), len(self._sessions))
        return SessionPrompt(session, self._tenants.setdefault(tenant_id, len(self._tenants)), call.shared_tokens)


class Demand:
    """The service that each tenant of a simulated run asked for. Mutable: it grows while arrivals are read."""

    def __init__(self) -> None:
        self._service: dict[str, float] = {}
        self._requests: Counter[str] = Counter()

    def counted(self, arrivals: Iterable[Arrival], worth: Callable[[int, int], float]) -> Iterator[Arrival]:
        """Yield the same arrivals, counting them; `worth` prices their prompt and output tokens."""
        for arrival in arrivals:
            asked = worth(arrival.prompt_tokens, arrival.output_tokens)
            self._service[arrival.tenant_id] = self._service.get(arrival.tenant_id, 0.0) + asked
            self._requests[arrival.tenant_id] += 1
            yield arrival

    def loudest_first(self) -> dict[str, float]:
        """All tenants with the service that they asked for, the largest demand first; ties by name."""
        return dict(sorted(self._service.items(), key=lambda asked: (-asked[1], asked[0])))

    def quietest(self) -> str:
        """The tenant that asked for the least service, among those with enough requests for percentiles if there are
        any.
        """
        names = list(self.loudest_first())
        often = [tenant_id for tenant_id in names if self._requests[tenant_id] >= QUIET_REQUESTS_MIN]
        return (often or names)[-1]
