"""What a backend is asked for to continue a stream, and how its answer is written."""

from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from backends.meters.events import StreamCall, json_object, payload
from backends.upstream import Upstream, UpstreamProtocolError
from gateway.continuation.body import DECODING, continuation_body, stop_strings
from gateway.continuation.continued import ContinuedMeter, Wanted
from gateway.continuation.seam import Ask, Generated, Seam, find_seam
from gateway.continuation.stops import StopStrings, lookback
from gateway.continuation.stream import ResumableStream

ASK_BYTES_MAX: Final = 16 << 20  # the text of a whole prompt, at most


class Continuing(NamedTuple):
    """A prepared continuation: its body, and what its meter needs to know."""

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
    ids, stops, chars = stream.ids, stop_strings(call), 0
    if stops:
        chars = lookback(stops)
    seam = Seam()
    if ids.output and (chars or not _ends_with_text(stream.last)):
        prompt = array("I", map(int, ids.prompt.split(b",")))
        decoding = {name: call[name] for name in DECODING if name in call}
        seam = await find_seam(ask, Generated(str(call.get("model")), prompt, ids.output, decoding), chars=chars)
    search = None
    if stops:
        search = StopStrings(
            stops,
            is_included=bool(call.get("include_stop_str_in_output")),
            tokens_min=call.get("min_tokens") or 0,
            before=seam.before,
            tokens_before=len(ids.output),
        )
    continued = continuation_body(call, ids, is_chat=is_chat, context_tokens_max=context_tokens_max)
    logprobs = call.get("logprobs")
    wants_logprobs = bool(logprobs) if is_chat else logprobs is not None
    return Continuing(continued, Wanted(bool(call.get("return_token_ids")), wants_logprobs), seam, search)


async def ask_json(
    upstream: Upstream, headers: Mapping[str, str], path: str, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Post this to a backend, and return the object that it answers with. Raises UpstreamError."""
    async with await upstream.open("POST", path, headers, orjson.dumps(body)) as exchange:
        answer = json_object(await exchange.read(ASK_BYTES_MAX))
    if exchange.status != 200 or answer is None:
        raise UpstreamProtocolError(f"status {exchange.status} of {path}")
    return answer


def _ends_with_text(event: bytes) -> bool:
    """Whether this event's text ends where its tokens end: it has one token, and text. A decoder returns no text while
    the last character is incomplete.
    """
    choices = (json_object(payload(event)) or {}).get("choices")
    choice = choices[0] if choices else {}
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return bool(text) and len(choice.get("token_ids") or ()) == 1
