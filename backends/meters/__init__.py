"""Meters: counters of the tokens of an answer, one for each API. One table, one row per API.

A row names the meter of the API's event stream, the function that reads a whole body's usage, and the field with the
text, which is counted when there is no usage. Paths and request fields are the gateway's concern, not this package's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from backends.meters.chunks import ChunkMeter, TranscriptionMeter
from backends.meters.cohere import CohereMeter
from backends.meters.events import StreamCall, StreamMeter
from backends.meters.messages import MessagesMeter
from backends.meters.responses import ResponsesMeter
from backends.meters.usage import cohere_usage, message_usage, openai_usage, pooling_usage, response_usage
from policies.types import Usage

MeterOf = Callable[[StreamCall], StreamMeter]


class AnswerKind(StrEnum):
    """The API of an answer, which decides how its tokens are counted."""

    CHOICES = "choices"  # chat completions (batches too), completions
    RESPONSES = "responses"
    MESSAGES = "messages"
    COHERE = "cohere"
    TRANSCRIPTION = "transcription"
    POOLING = "pooling"  # embeddings, scores, ranks, classes: a prompt and no output
    NONE = "none"  # no tokens


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """How the tokens of one API's answers are counted: `meter` for a stream, `usage` for a whole body. Where a body has
    no usage, the text in its field `text_key` is counted.
    """

    meter: MeterOf
    usage: Callable[[Any], Usage | None]
    text_key: str | None


def _no_usage(_body: Any) -> Usage | None:
    return None


ANSWERS: Final[Mapping[AnswerKind, AnswerShape]] = {
    AnswerKind.CHOICES: AnswerShape(ChunkMeter, openai_usage, "choices"),
    AnswerKind.RESPONSES: AnswerShape(ResponsesMeter, response_usage, "output"),
    AnswerKind.MESSAGES: AnswerShape(MessagesMeter, message_usage, "content"),
    AnswerKind.COHERE: AnswerShape(CohereMeter, cohere_usage, "message"),
    AnswerKind.TRANSCRIPTION: AnswerShape(TranscriptionMeter, openai_usage, "text"),
    AnswerKind.POOLING: AnswerShape(ChunkMeter, pooling_usage, None),
    AnswerKind.NONE: AnswerShape(ChunkMeter, _no_usage, None),
}
