"""The price of a request: what its tokens so far are worth, in service units.

A price is a function of totals, h(prompt, cached, output), not of differences: whoever charges takes
h(now) - h(before), so the parts telescope to h(prompt, cached, output) however the tokens arrived
(VTC, Sheng et al., OSDI '24, Alg. 4).
"""

from dataclasses import dataclass
from typing import Protocol


class Price(Protocol):
    """What is this request's service worth so far?"""

    def service(self, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Service units for the totals so far; cached tokens are part of the prompt tokens."""
        ...


@dataclass(frozen=True, slots=True)
class LinearPrice:
    """A weight per token (VTC Alg. 2; 1 and 2 as in the paper).

    Prompt tokens found in the prefix cache cost the engine no prefill and have their own, small price.
    """

    prompt: float = 1.0
    cached_prompt: float = 0.1
    output: float = 2.0

    def service(self, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        return (
            self.prompt * (prompt_tokens - cached_tokens)
            + self.cached_prompt * cached_tokens
            + self.output * output_tokens
        )


@dataclass(frozen=True, slots=True)
class ProfiledQuadraticPrice:
    """Milliseconds of amortised GPU time, fitted on Llama-7B / A10G with a pool of 10,000 tokens.

    The defaults are an ordinary least-squares fit to the 23 points of the VTC authors' cost profile.
    Cached prompt tokens still occupy the pool and are attended to: they only save their linear prefill part.
    """

    prompt_ms: float = 0.21001891
    output_ms: float = 0.10075395
    prompt_output_ms: float = 0.0039868
    output_output_ms: float = 0.00324733
    request_ms: float = 1.14601454

    def service(self, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        return (
            self.prompt_ms * (prompt_tokens - cached_tokens)
            + self.output_ms * output_tokens
            + self.prompt_output_ms * prompt_tokens * output_tokens
            + self.output_output_ms * output_tokens * output_tokens
            + self.request_ms
        )
