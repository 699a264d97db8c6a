"""CallSender: makes calls to a server or a gateway, and times the parts of their answers."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import orjson

from backends.spec import BackendSpec
from gateway.tasks import cancel

CALL_TIMEOUT_S = 120.0
REFUSED_PAUSE_S = 0.5
LOOK_S = 0.2
FAILURES_MAX = 20  # and no call that went well: nothing will come of it
ERROR_CHARS_MAX = 300


class CalibrationError(Exception):
    """An error: nothing could be measured; the message says why."""


@contextmanager
def until_cancelled() -> Iterator[None]:
    """A context whose block Ctrl-C ends (it cancels the task); the code after the block still runs."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        task.uncancel()


async def run_for(
    seconds: float, work: Iterable[Coroutine[None, None, None]], *, look: Callable[[], None] | None = None
) -> None:
    """Run the coroutines of `work` for `seconds`, calling `look` every LOOK_S; then cancel those that still run. Raises
    the first exception of any of them.
    """
    tasks = [asyncio.create_task(each) for each in work]
    until_s = time.monotonic() + seconds
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            if look is not None:
                look()
            done, _ = await asyncio.wait(tasks, timeout=min(left_s, LOOK_S), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
    finally:
        await cancel(*tasks)


@dataclass(slots=True)
class Answer:
    """The times of one answer, in seconds after the call was sent. `tokens_at` has the time of each chunk with text.
    `why` is the reason if the call failed.
    """

    total_s: float = 0.0
    tokens_at: list[float] = field(default_factory=list)
    why: str | None = None

    @property
    def gaps_s(self) -> list[float]:
        """The seconds between each chunk and the next."""
        return [later - earlier for earlier, later in zip(self.tokens_at, self.tokens_at[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a calibration calls: its URL without /v1, headers with its key, and the model that is called."""

    url: str
    headers: Mapping[str, str]
    model: str
    tls: Any = True  # as aiohttp takes it

    @classmethod
    def at(cls, spec: BackendSpec, model: str) -> Self:
        """The server of this specification as a target."""
        return cls(spec.url, spec.headers, model, spec.tls if spec.tls is not None else True)

    def completion(self, prompt: str | list[int], output_tokens: int, *, stream: bool) -> dict[str, Any]:
        """The body of a completion call that generates exactly `output_tokens` tokens."""
        body: dict[str, Any] = {
            "model": self.model, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True,
            "temperature": 0.0, "stream": stream,
        }  # fmt: skip
        if stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return body


class CallSender:
    """An HTTP client for the calls of a calibration or bench. It gives up if its first calls all fail. Mutable."""

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self.failure: str | None = None
        """The last one."""

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self, target: Target, body: Mapping[str, Any], on_usage: Callable[[int, int], None] = lambda _i, _o: None
    ) -> Answer:
        """Make a call; `on_usage` is called with its prompt and output tokens so far, as they arrive. After a failure,
        waits a little. Raises CalibrationError after too many failures without any answer.
        """
        answer = await self._answer(target, body, on_usage)
        if answer.why is None:
            self.answered += 1
            return answer
        self.failed, self.failure = self.failed + 1, answer.why
        if not self.answered and self.failed >= FAILURES_MAX:
            raise CalibrationError(f"{target.url} answers no call: {answer.why}")
        await asyncio.sleep(REFUSED_PAUSE_S)
        return answer

    async def _answer(self, target: Target, body: Mapping[str, Any], on_usage: Callable[[int, int], None]) -> Answer:
        answer, began_at = Answer(), time.perf_counter()
        try:
            async with self._session.post(
                f"{target.url}/v1/completions", json=body, headers=target.headers, ssl=target.tls
            ) as response:
                if response.status != 200:
                    text = (await response.content.read(ERROR_CHARS_MAX)).decode("utf-8", "replace")
                    answer.why = f"status {response.status} {text}"
                elif body["stream"]:
                    await _read_stream(response, answer, began_at, on_usage)
                else:
                    await response.read()
        except TimeoutError:
            answer.why = f"no answer in {CALL_TIMEOUT_S:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer.why = str(error) or type(error).__name__
        answer.total_s = time.perf_counter() - began_at
        return answer


async def _read_stream(
    response: aiohttp.ClientResponse, answer: Answer, began_at: float, on_usage: Callable[[int, int], None]
) -> None:
    """Raises ValueError for what is no stream of completions."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = orjson.loads(data)
        if "error" in event:
            raise ValueError(f"the stream broke: {str(event['error'])[:ERROR_CHARS_MAX]}")
        if event.get("choices"):
            answer.tokens_at.append(time.perf_counter() - began_at)
        usage = event.get("usage") or {}
        on_usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", len(answer.tokens_at)))
    raise ValueError("the stream ended before [DONE]")
