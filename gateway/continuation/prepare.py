"""Preparation of a continuation: the questions to the next backend, and the facts for writing its answer."""

from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from backends.meters.events import StreamCall, json_object, payload
from backends.upstream import Upstream, UpstreamError, UpstreamProtocolError
from gateway.api.values import flag, integer
from gateway.continuation.body import OF_QUESTIONS, continuation_body, stop_strings
from gateway.continuation.continued import ContinuedMeter, Wanted
from gateway.continuation.seam import Ask, Generated, Seam, Shown, find_seam
from gateway.continuation.stops import StopStrings, lookback
from gateway.continuation.stream import ResumableStream

ASK_BYTES_MAX: Final = 16 << 20  # the text of a whole prompt, at most
NOT_NOW: Final = frozenset({404, 408, 429})  # what a router in front, or an engine that still loads, says below 500


class QuestionFailed(UpstreamError):  # noqa: N818 - a state, not an error
    """An error: a backend did not answer a question that the gateway asks before it continues a stream, such as
    /detokenize. `is_fault`: the backend is at fault; otherwise it is only busy.
    """

    def __init__(self, message: str, *, is_fault: bool) -> None:
        super().__init__(message)
        self.is_fault = is_fault


class Continuing(NamedTuple):
    """A continuation that is ready to be sent: the body for the next backend, and the facts by which a ContinuedMeter
    writes its answer into the client's stream.
    """

    body: bytes
    wanted: Wanted
    seam: Seam
    stops: StopStrings | None

    def meter(self, call: StreamCall, stream: ResumableStream) -> ContinuedMeter:
        return ContinuedMeter(call, stream, wanted=self.wanted, seam=self.seam, stops=self.stops)


async def prepare(
    ask: Ask, body: bytes | bytearray, stream: ResumableStream, *, is_chat: bool, context_tokens_max: int | None
) -> Continuing:
    """Prepare the continuation of a stream whose first backend was sent this body. Raises UpstreamError."""
    call: dict[str, Any] = orjson.loads(body)
    ids, stops, last = stream.ids, stop_strings(call), _last_choice(stream.last)
    is_included = flag(call, "include_stop_str_in_output")
    chars = lookback(stops) if stops else 0
    seam = Seam()
    if ids.output and (chars or not last.ends_with_text):
        prompt = array("I", map(int, ids.prompt.split(b",")))
        shared: dict[str, Any] = {name: call[name] for name in OF_QUESTIONS if name in call}
        tokens = Generated(str(call.get("model")), prompt, ids.output, shared)
        seam = await find_seam(ask, tokens, Shown(last.text, 0 if is_included else chars), chars=chars)
    search = None
    if stops:
        search = StopStrings(
            stops,
            is_included=is_included,
            tokens_min=integer(call, "min_tokens") or 0,
            before=seam.before,
            tokens_before=len(ids.output),
        )
    continued = continuation_body(call, ids, is_chat=is_chat, context_tokens_max=context_tokens_max)
    wants_logprobs = flag(call, "logprobs") if is_chat else call.get("logprobs") is not None
    return Continuing(continued, Wanted(flag(call, "return_token_ids"), wants_logprobs), seam, search)


async def ask_json(
    upstream: Upstream, headers: Mapping[str, str], path: str, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Post this body to a backend, and return the object that it answers with. Raises UpstreamError."""
    async with await upstream.open("POST", path, headers, orjson.dumps(body)) as exchange:
        answer = json_object(await exchange.read(ASK_BYTES_MAX))
    if exchange.status >= 500 or exchange.status in NOT_NOW:
        raise QuestionFailed(f"status {exchange.status} of {path}", is_fault=exchange.status >= 500)
    if exchange.status != 200 or answer is None:
        raise UpstreamProtocolError(f"status {exchange.status} of {path}")
    return answer


class _LastChoice(NamedTuple):
    """The text of a stream's last event, and its number of tokens."""

    text: str
    tokens: int

    @property
    def ends_with_text(self) -> bool:
        """Whether the text of the event ends where its tokens end: it has one token, and text. A decoder returns no
        text while the last character is incomplete.
        """
        return bool(self.text) and self.tokens == 1


def _last_choice(event: bytes) -> _LastChoice:
    choices = (json_object(payload(event)) or {}).get("choices")
    choice = choices[0] if choices else {}
    text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return _LastChoice(text, len(choice.get("token_ids") or ()))
