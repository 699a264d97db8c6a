"""Settlement: reports the usage of a call to its lease, its trace and, once, to the estimator of prompt tokens.

Reported usage is charged as it stands, up to the most that the call's parameters allow. Where a server reports none,
all text of the answer is counted: by the configured encoding if there is one, else by the tokens per byte of this
tenant's prompts. After a client's disconnect, the call is charged for its backend's work so far: by the reported usage;
else the prompt by the step-time model, and the answer by the steps that the backend counted, or else by the time. All
usage that is not reported is marked as estimated.
"""

import time
from collections.abc import Callable
from typing import Any

from backends.meters import ANSWERS, AnswerKind
from backends.meters.events import StreamMeter
from backends.meters.usage import audio_tokens, texts
from gateway.api.token_counts import OutputTokens
from gateway.forwarding.answers.decode_pace import DecodePace
from gateway.forwarding.answers.long_answers import is_long, read_answer
from gateway.forwarding.sending import Sending
from gateway.intake.admission import RequestAdmission
from policies.types import NO_USAGE, Usage

_MEMBERS = ("usage", "id", "meta")


class Settlement:
    """The charging of one call for its use of one backend: by the usage that the backend reports, or else by an
    estimate. It passes the usage to the call's lease and trace.
    """

    __slots__ = (
        "_call",
        "_learnt",
        "_lease",
        "_meter",
        "_on_id",
        "_output_tokens",
        "_pace",
        "_request_admission",
        "_trace",
        "_unread_s",
    )

    def __init__(
        self,
        sending: Sending,
        *,
        request_admission: RequestAdmission,
        output_tokens: OutputTokens,
        pace: DecodePace,
        on_id: Callable[[str], None],
    ) -> None:
        self._request_admission = request_admission
        self._output_tokens = output_tokens
        self._pace = pace
        self._call, self._lease, self._trace = sending.call, sending.lease, sending.trace
        self._on_id = on_id
        self._meter: StreamMeter | None = None
        self._learnt = False
        self._unread_s = 0.0

    def tokens(self, reported: Usage) -> float:
        """Charge this cumulative usage. Returns the number of output tokens at which to call this method again."""
        tell_at = self._report(reported if reported.prompt_tokens else self._true(reported))
        if not self._learnt and reported.prompt_tokens:
            self._learnt = True
            if not self._trace.overstated:
                self._request_admission.learn(self._call, reported.prompt_tokens)
        return tell_at

    def streams(self, meter: StreamMeter) -> None:
        """The answer is a stream that this meter counts."""
        self._meter = meter

    def passed(self) -> Usage | None:
        """The usage of the stream so far; None: nothing is known about it."""
        usage = None if self._meter is None else self._meter.usage
        return None if usage is None else self._believed(self._true(usage))

    def _true(self, usage: Usage) -> Usage:
        """The usage, with the gateway's estimate of the prompt where the server reports none."""
        if usage.prompt_tokens or not usage.output_tokens:
            return usage
        return self._estimated(usage.output_tokens)

    async def whole(self, status: int, body: bytes | bytearray) -> None:
        """Settle an answer that was not streamed. An error response costs nothing, whatever usage it reports."""
        if status != 200:
            self.tokens(NO_USAGE)
            return
        shape = ANSWERS[self._call.parsed.answer]
        # An answer without text (embeddings: nothing but numbers) is searched for these members, however short it is.
        answer = await read_answer(body, _MEMBERS, search=shape.text_key is None)
        if self._call.parsed.answer is AnswerKind.RESPONSES and type(id_ := answer.get("id")) is str:
            self._on_id(id_)
        usage = shape.usage(answer)
        if (
            usage is None and is_long(body) and shape.text_key is not None
        ):  # its text is not searched for: counted by the clock
            self._produced(self._estimated(0), self._pace.tokens_after(self._elapsed_s()))
            return
        if usage is None:
            self._trace.estimated = True
            is_sound = self._call.parsed.answer is AnswerKind.TRANSCRIPTION
            told = self._trace.believed(Usage(audio_tokens(answer) if is_sound else 0, 0, 0))
            prompt_tokens = told.prompt_tokens or self._call.request.prompt_tokens
            self._report(Usage(prompt_tokens, 0, await self._count(answer, body, shape.text_key)), is_counted=True)
        else:
            self.tokens(usage)
        if (usage := self._trace.usage) is not None and usage.output_tokens:
            self._pace.whole(tokens=usage.output_tokens / self._call.parsed.choices, duration_s=self._elapsed_s())

    async def streamed(self, usage: Usage | None, text: str | None) -> None:
        """Settle a stream at its end. `text` is its text that the server did not count; None: it counted all."""
        if usage is None:
            self._trace.estimated = True
            self._report(self._estimated(0))
            return
        exact = await self._output_tokens.exact(text) if text else None
        if exact is not None:
            self._report(self._true(Usage(usage.prompt_tokens, usage.cached_tokens, exact)), is_counted=True)

    def paced(self, usage: Usage | None) -> None:
        """Observe the decode pace of a completed stream that did not wait for its client."""
        first_token_s, dispatched_s = self._trace.first_token_s, self._trace.dispatched_s
        if usage is not None and usage.output_tokens and first_token_s is not None and dispatched_s is not None:
            self._pace.streamed(
                tokens=self._believed(usage).output_tokens / self._call.parsed.choices,
                first_s=first_token_s - dispatched_s,
                duration_s=self._elapsed_s(),
            )

    def unread(self, seconds: float) -> None:
        """Note for how many seconds before the disconnect the stream was paused while its backend worked on."""
        self._unread_s = seconds

    def disconnected(self, since_s: float = 0.0) -> None:
        """Settle an answer that is not streamed after a disconnect `since_s` ago; until then its backend worked."""
        request, prompt = self._call.request, self._lease.prefilled()
        is_decoded = prompt.prompt_tokens >= request.prompt_tokens and request.output_tokens_max > 0
        self._produced(prompt, self._pace.tokens_after(self._elapsed_s(), since_s) if is_decoded else 0.0)

    def disconnected_stream(self, meter: StreamMeter | None, since_s: float = 0.0) -> None:
        """Settle a stream after a disconnect `since_s` ago. `meter` has counted it so far; None: it had not begun."""
        usage = None if meter is None else meter.usage
        if meter is None or usage is None:  # before its first token
            self._produced(self._lease.prefilled(), 0.0)
        elif (tokens := self._decoded(meter, since_s)) is not None:
            self._produced(usage._replace(output_tokens=0), tokens)
        elif self._unread_s:
            self._produced(usage, self._pace.tokens_in(self._unread_s))

    def _decoded(self, meter: StreamMeter, since_s: float) -> float | None:
        """The tokens of each sequence of a stream, from the steps that its backend counted since the first token; None
        where the stream reported them, or the backend does not count.
        """
        if not meter.tokens_estimated or self._trace.first_token_s is None:
            return None
        counted = self._pace.counted(time.perf_counter() - self._trace.first_token_s, since_s)
        # The backend's last report may be old: a token that has passed was decoded in any case.
        return None if counted is None else max(1.0 + counted, meter.pieces / self._call.parsed.choices)

    def _produced(self, usage: Usage, tokens: float) -> None:
        """Charge this usage, and for each sequence an estimated number of tokens that did not reach the gateway."""
        request = self._call.request
        most = max(request.output_tokens_max, usage.output_tokens)
        output_tokens = round(min(usage.output_tokens + tokens * request.choices, most))
        self._trace.estimated = True
        self._report(self._true(Usage(usage.prompt_tokens, usage.cached_tokens, output_tokens)))

    def _believed(self, usage: Usage, *, is_counted: bool = False) -> Usage:
        """The usage, within what the call can use. It was reported, or `is_counted` here by the text that has passed:
        then more is an error of the count, and no evidence against the backend.
        """
        if is_counted or (self._meter is not None and self._meter.tokens_estimated):
            return usage if self._trace.usage_max is None else usage.within(self._trace.usage_max)
        return self._trace.believed(usage)

    def _report(self, usage: Usage, *, is_counted: bool = False) -> float:
        usage = self._believed(usage, is_counted=is_counted)
        self._trace.passed(usage)
        tell_at = self._lease.tokens(usage)
        if not usage.output_tokens:
            return 1.0  # call again at the first token, whose time matters
        # Each of several prompts is reported with its own first token: until then their sum is too small.
        return tell_at if self._call.parsed.prompts == 1 else usage.output_tokens + 1

    def _estimated(self, output_tokens: int) -> Usage:
        return Usage(self._call.request.prompt_tokens, 0, output_tokens)

    async def _count(self, answer: dict[str, Any], body: bytes | bytearray, text_key: str | None) -> int:
        if text_key is None:
            return 0
        # A transcription may be plain text.
        pieces = texts(answer.get(text_key)) if answer else [body.decode(errors="replace")]
        request = self._call.request
        return await self._output_tokens.count("".join(pieces), tenant_id=request.tenant_id, model=request.model)

    def _elapsed_s(self) -> float:
        return time.perf_counter() - (self._trace.dispatched_s or time.perf_counter())
