"""FairBatching: divide one engine step between decodes and prompts so that both keep their targets.

A stream that is ahead of its deadlines can skip a step. So a step may last as long as the most urgent decode allows, or
one TPOT target if that is longer. Decodes that would be late by the end of the step plus one more token come first.
Prompts come next, by slack, cut to the time that is left, and then the other decodes, as far as they fit.
(FairBatching, arXiv 2510.14392, algorithm 1, from its prose.)

Two rules are ours. A decode without a TPOT target runs in every step, as in vLLM: it has no deadline that would ever
make it urgent. And prompts can have a `rank` that is compared before their slack, so that an order of tenants decides
among waiting prompts.

The algorithm does not know memory or slots: an engine offers the prompts that it could begin, and runs less if it must.
"""

from collections.abc import Hashable, Iterable, Sequence
from math import floor, inf
from typing import Generic, NamedTuple, TypeVar

from policies.step_time.model import StepTimeModel

Key = TypeVar("Key", bound=Hashable)
"""The engine's name of a request."""


class Decode(NamedTuple, Generic[Key]):
    """A running request whose prompt is computed. The next engine step may compute `tokens` for it, all or none: one
    token, or more if it verifies drafts (speculative decoding). The step then reads its `context_tokens` of KV. Its
    next token is late in `slack_s` seconds from now. `tpot_s` is its target per token, above zero. Both are infinite
    without a target.
    """

    key: Key
    slack_s: float
    tpot_s: float
    context_tokens: int
    tokens: int = 1


class Prefill(NamedTuple, Generic[Key]):
    """A request with prompt tokens that are not computed yet. Its first token is late in `slack_s` seconds from now;
    infinite without a target.
    """

    key: Key
    slack_s: float
    computed_tokens: int
    remaining_tokens: int
    rank: int = 0


def time_budget_s(decodes: Iterable[Decode[Key]]) -> float:
    """Return the most seconds from the start of a step to that of the next; infinite where no decode has a target."""
    slack_min_s = tpot_min_s = inf
    for decode in decodes:
        slack_min_s = min(slack_min_s, decode.slack_s)
        tpot_min_s = min(tpot_min_s, decode.tpot_s)
    return inf if tpot_min_s == inf else max(slack_min_s, tpot_min_s)


def form_batch(
    decodes: Sequence[Decode[Key]],
    prefills: Sequence[Prefill[Key]],
    *,
    model: StepTimeModel,
    tokens_max: int,
) -> dict[Key, int]:
    """Return the tokens that each request computes in this step, in the order in which they were chosen; none is zero.
    Urgent decodes run even where that exceeds the time: under overload decodes come first, as in Sarathi. At least one
    request runs if one was offered and `tokens_max` has room for it. Ties keep the order of `decodes` and `prefills`.
    """
    step_s = time_budget_s(decodes)
    urgent_s = step_s + min((decode.tpot_s for decode in decodes), default=inf)
    step = _Step[Key](model, time_left_s=step_s - model.base_s, tokens_left=tokens_max)
    at_ease = []
    for decode in sorted(decodes, key=lambda decode: decode.slack_s):
        if decode.slack_s < urgent_s or decode.tpot_s == inf:
            step.decode(decode, within_time=False)
        else:
            at_ease.append(decode)
    for prefill in sorted(prefills, key=lambda prefill: (prefill.rank, prefill.slack_s)):
        step.prefill(prefill)
    for decode in at_ease:
        step.decode(decode, within_time=True)
    return step.taken


class _Step(Generic[Key]):
    """One step while it is filled. The time left may become negative, the tokens left never."""

    def __init__(self, model: StepTimeModel, *, time_left_s: float, tokens_left: int) -> None:
        self.taken: dict[Key, int] = {}
        self._model = model
        self._time_left_s = time_left_s
        self._tokens_left = tokens_left

    def decode(self, decode: Decode[Key], *, within_time: bool) -> None:
        cost_s = self._cost_s(decode.tokens, decode.context_tokens)
        if decode.tokens <= self._tokens_left and (cost_s <= self._time_left_s or not within_time):
            self._take(decode.key, decode.tokens, cost_s)

    def prefill(self, prefill: Prefill[Key]) -> None:
        tokens = min(prefill.remaining_tokens, self._tokens_left, self._tokens_in_time(prefill.computed_tokens))
        if tokens > 0:
            self._take(prefill.key, int(tokens), self._cost_s(tokens, prefill.computed_tokens + tokens))

    def _tokens_in_time(self, computed_tokens: int) -> float:
        """The number of further tokens that fit, of a prompt of which `computed_tokens` are computed. Each is computed,
        and read as context.
        """
        model = self._model
        time_s = self._time_left_s - model.request_s - model.context_token_s * computed_tokens
        per_token_s = model.token_s + model.context_token_s
        if time_s == inf or per_token_s == 0.0:
            return inf if time_s >= 0.0 else 0.0
        return floor(time_s / per_token_s)

    def _cost_s(self, tokens: float, context_tokens: float) -> float:
        model = self._model
        return model.token_s * tokens + model.context_token_s * context_tokens + model.request_s

    def _take(self, key: Key, tokens: int, cost_s: float) -> None:
        self.taken[key] = tokens
        self._tokens_left -= tokens
        self._time_left_s -= cost_s
