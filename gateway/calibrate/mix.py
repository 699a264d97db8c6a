"""Mix: the load for a calibration: every kind of step that a backend will see, in a fixed order.

PHASES are numbers of concurrent calls, one after the other. Prompts have from a few words to thousands, answers from
two tokens to hundreds, both on a logarithmic scale, so that steps vary in all their terms. No two prompts begin alike,
because the prefix cache would reduce the work otherwise.
"""

from dataclasses import dataclass
from math import exp, log
from random import Random

PHASES = (4, 16, 1, 32, 8, 24)  # calls at once, each for an equal part of the time
PROMPT_WORDS_MIN, PROMPT_WORDS_MAX = 16, 3000
ANSWER_TOKENS_MIN, ANSWER_TOKENS_MAX = 2, 400
TOKENS_PER_WORD_MAX = 2  # of the text below; most are one token
DEFAULT_CONTEXT_TOKENS = 4096
TEXT = (
    "the time of one step is what it takes to read all weights once and to do some more for each new token that was"
    " not there before while old ones only wait in memory until their turn comes again so that we learn from many"
    " small steps how long a large one will be and then know which call to send next"
)


@dataclass(frozen=True, slots=True)
class LoadCall:
    """One call of a calibration's load: its prompt, and the number of tokens of its answer."""

    prompt: str
    output_tokens: int


class Mix:
    """A generator of the calls of a calibration, with random lengths. Prompt and answer fit into the model's context of
    `context_tokens_max` tokens.
    """

    def __init__(self, rng: Random, *, context_tokens_max: int | None) -> None:
        context = context_tokens_max or DEFAULT_CONTEXT_TOKENS
        self._rng = rng
        self._words = TEXT.split()
        self._output_tokens_max = max(min(ANSWER_TOKENS_MAX, context // 4), ANSWER_TOKENS_MIN)
        words_max = (context - self._output_tokens_max) // TOKENS_PER_WORD_MAX
        self._words_max = max(min(PROMPT_WORDS_MAX, words_max), PROMPT_WORDS_MIN)

    def call(self) -> LoadCall:
        words = self._rng.choices(self._words, k=self._log_uniform(PROMPT_WORDS_MIN, self._words_max))
        return LoadCall(" ".join(words), self._log_uniform(ANSWER_TOKENS_MIN, self._output_tokens_max))

    def _log_uniform(self, low: int, high: int) -> int:
        return round(exp(self._rng.uniform(log(low), log(high))))
