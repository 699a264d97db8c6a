"""Streams as their clients see them, for the demo of continued streams: what failed, how long each pause was."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "tests/vllm/continue")]
from answers import Answer, read  # noqa: E402
from wire import CHAT, COMPLETIONS, Call  # noqa: E402

END_S_MAX = 300.0  # of streams that run when the load ends


class Stream(NamedTuple):
    """One stream as its client saw it. `backend` is the one that began it. Times in seconds."""

    answer: Answer
    backend: str
    began_s: float
    event_times_s: Sequence[float]

    @property
    def failed(self) -> bool:
        return self.answer.error is not None or not self.answer.is_done

    @property
    def ttft_s(self) -> float:
        return self.event_times_s[0] - self.began_s

    @property
    def longest_pause_s(self) -> float:
        return max((after - before for before, after in pairwise(self.event_times_s)), default=0.0)

    def ran_at(self, moment_s: float) -> bool:
        times = self.event_times_s
        return bool(times) and times[0] < moment_s < times[-1]


def ask(
    url: str, number: int, tokens: int, tenant: str = "demo", on_event: Callable[[str], None] = lambda _payload: None
) -> Stream:
    """A stream of chat or completions, by turns. A connection that breaks is an answer with an error."""
    path = CHAT if number % 2 else COMPLETIONS
    words = {"messages": [{"role": "user", "content": f"Say {number}"}]} if number % 2 else {"prompt": f"Once {number}"}
    body = {"model": "tiny", "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": tokens, **words}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    began_s, times, backend = time.perf_counter(), list[float](), ""

    def timed(payloads: Iterator[str]) -> Iterator[str]:
        for payload in payloads:
            times.append(time.perf_counter())
            on_event(payload)
            yield payload

    try:
        with Call(url, path, body, headers={"x-tenant-id": tenant}) as call:
            backend = call.response.getheader("x-fairlead-backend", "")
            answer = read(timed(call.events()))
    except (OSError, HTTPException, ValueError, KeyError) as error:
        answer = Answer(error=repr(error))
    return Stream(answer, backend, began_s, times)


class Load:
    """Clients that ask for one stream after the other, each in a thread, while the `with` block of this runs."""

    def __init__(self, clients: Sequence[Callable[[int], Stream]], *, pause_s: float = 0.0) -> None:
        """Each client is called with the number of its next stream; it waits `pause_s` in between."""
        self._clients, self._pause_s = clients, pause_s
        self._over, self._lock, self._next = threading.Event(), threading.Lock(), 0
        self._threads: list[threading.Thread] = []
        self.streams: list[Stream] = []

    def __enter__(self) -> Self:
        # Daemons: a run that is ended does not wait for them.
        self._threads = [threading.Thread(target=self._ask_on, args=(each,), daemon=True) for each in self._clients]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        if kind is None:
            deadline = time.monotonic() + END_S_MAX
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            assert not any(thread.is_alive() for thread in self._threads), "a stream does not end"

    def _ask_on(self, client: Callable[[int], Stream]) -> None:
        while not self._over.is_set():
            with self._lock:
                number, self._next = self._next, self._next + 1
            self.streams.append(client(number))
            self._over.wait(self._pause_s)


def outcome(streams: Sequence[Stream], wanted: Sequence[Stream] | None = None) -> str:
    """How many failed, and, beside the `wanted` ones, how many texts are right."""
    text = f"{sum(each.failed for each in streams)} of {len(streams)} streams failed"
    if wanted is not None:
        equal = sum(one.answer.text == other.answer.text for one, other in zip(streams, wanted, strict=True))
        text += f", {equal} texts equal the undisturbed ones"
    return text


def percentiles(values: Sequence[float]) -> str:
    if not values:
        return "none"
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return f"p50 {median(values) * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms"


def usages(streams: Sequence[Stream]) -> Mapping[str, int]:
    """The prompt and output tokens that clients were told."""
    names: Sequence[Any] = ("prompt_tokens", "completion_tokens")
    return {name: sum((each.answer.usage or {}).get(name, 0) for each in streams) for name in names}
