"""Recording and replay of a Scheduler's calls, as values and as JSON lines.

A Scheduler's decisions depend only on the calls made on it, so the list of those calls is the run. `Recorder` stands in
for a Scheduler, forwards every call, and passes it as a value to a listener: a file of a live gateway, or the checks of
a simulation. `replay` makes the same calls on a fresh Scheduler and reports every poll that decided differently. There
is none while the Scheduler is deterministic, whether an event loop or a virtual clock drives it.

A line holds only the arguments of a call: ids, sizes and hashes, never a prompt or an API key.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal

import orjson
from pydantic import Field, TypeAdapter

from policies.facts import FACTS, AnyFact, Fact, Finished, Progressed, Submitted
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Action, Outcome, Request, Timing, Usage


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll and its decisions; the only entry with a result."""

    now: float
    actions: tuple[Action, ...]
    call: Literal["poll"] = "poll"


Entry = AnyFact | Polled
Listener = Callable[[Entry], None]

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="call")])


class Recorder:
    """A Scheduler that passes every call to `listener` after it took effect, as a value.

    Calls that only read (`next_wakeup`, `snapshot` and the like) and calls that raise are not recorded.
    """

    def __init__(self, scheduler: SharedSchedulerProtocol, listener: Listener) -> None:
        self._scheduler = scheduler
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        """A view of the Scheduler; a call by which a test tells a fact directly is recorded as that fact."""
        return partial(self._called, name) if name in FACTS else getattr(self._scheduler, name)

    def submit(self, request: Request, now: float) -> None:
        self.told(Submitted(now, request))

    def arrived(self, request: Request, now: float) -> list[Action]:
        self.submit(request, now)
        return self.poll(now)

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        self.told(Progressed(now, request_id, usage))

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        if usage is not None:  # two facts, though the Scheduler takes both in one call
            self.tokens(request_id, usage, now)
        self.told(Finished(now, request_id, outcome, timing))

    def told(self, fact: Fact) -> None:
        self._scheduler.told(fact)
        self._listener(fact)

    def poll(self, now: float) -> list[Action]:
        actions = self._scheduler.poll(now)
        self._listener(Polled(now, tuple(actions)))
        return actions

    def _called(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.told(fact_of(name, *args, **kwargs))


def fact_of(name: str, *args: Any, **kwargs: Any) -> Fact:
    """The fact that a Scheduler's method of this name is told with these arguments: what it needs, `now`, and what has
    a default.
    """
    fields = [field for field in FACTS[name].__dataclass_fields__.values() if field.name not in ("now", "call")]
    needed = [field.name for field in fields if field.default is MISSING]
    order = [*needed, "now", *(field.name for field in fields if field.name not in needed)]
    given = dict(zip(order, args, strict=False)) | kwargs
    return FACTS[name](
        **{each: tuple(value) if isinstance(value, list | set) else value for each, value in given.items()}
    )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The poll at `now`, entry `number` of the recording (from 0), which decided differently in the replay."""

    number: int
    now: float
    recorded: tuple[Action, ...]
    replayed: tuple[Action, ...]


def replay(entries: Iterable[Entry], scheduler: SharedSchedulerProtocol) -> Iterator[Mismatch]:
    """Replay a recording on a Scheduler built like the recorded one; yield every poll that differs."""
    for number, entry in enumerate(entries):
        if isinstance(entry, Polled):
            actions = tuple(scheduler.poll(entry.now))
            if actions != entry.actions:
                yield Mismatch(number, entry.now, entry.actions, actions)
        else:
            scheduler.told(entry)


def write_to(sink: BinaryIO) -> Listener:
    """Return a listener that appends each entry to `sink` as one JSON line; floats are exact."""

    def write(entry: Entry) -> None:
        sink.write(orjson.dumps(entry, default=tuple, option=orjson.OPT_APPEND_NEWLINE))  # a Usage is a named tuple

    return write


def read_from(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries of a recording, in order. Raises pydantic.ValidationError at an invalid line."""
    return (_ENTRY.validate_json(line) for line in lines)
