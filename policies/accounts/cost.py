"""Price of a request: the value of its tokens so far, in service units.

A price is a function of totals, h(prompt, cached, output), not of differences. The ledger charges h(now) - h(before),
so the parts add up to h(prompt, cached, output) however the tokens arrived (VTC, Sheng et al., OSDI '24, Alg. 4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Price(Protocol):
    """The interface of price functions: how many service units does a request cost its tenant, by its tokens so far?"""

    def service(self, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Service units for the totals so far; cached tokens are part of the prompt tokens."""
        ...


@dataclass(frozen=True, slots=True)
class LinearPrice:
    """A price with a fixed number of service units for each kind of token. The prices of prompt and output tokens, 1
    and 2, are those of the VTC paper (Alg. 2).

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
    """A price in milliseconds of GPU time, with quadratic terms. It was measured on Llama-7B / A10G with a KV pool of
    10,000 tokens.

    The defaults are an ordinary least-squares fit to the 23 points of the VTC authors' cost profile. Cached prompt
    tokens save only the linear part of their prefill, because they occupy the KV pool and later tokens attend to them.
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


@dataclass(frozen=True, slots=True)
class ExtendPrice:
    """The price of the fairness policy DLPM: a fixed number of service units for each token that has to be computed.
    Prompt tokens in the prefix cache are free.

    *Extend tokens* are the prompt tokens that are not cached. The prices of extend and output tokens, 1 and 2, are
    those of the DLPM paper's evaluation.
    """

    extend: float = 1.0
    output: float = 2.0

    def service(self, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        return self.extend * (prompt_tokens - cached_tokens) + self.output * output_tokens


@dataclass(frozen=True, slots=True)
class FlopsPrice:
    """A price in billions of floating-point operations of a dense transformer (defaults: Llama-2-7B).

    A computed token costs two operations per parameter. It also attends to its context, at four operations per layer,
    hidden unit and token of context (two products of matrices, a multiplication and an addition each). The n-th token
    of a sequence has n tokens of context, whether it is prefilled or decoded. So the first n tokens of a sequence cost

        F(n) = 2 * parameter_count * n + 2 * layers * hidden * n * (n + 1)

    and a request costs F(prompt + output) - F(cached): the cached prefix was computed by an earlier request, but every
    later token attends to it. `hidden` is the number of heads times their dimension.
    """

    parameter_count: float = 6.74e9
    layers: int = 32
    hidden: int = 4096

    def service(self, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        return self._gigaflops(prompt_tokens + output_tokens) - self._gigaflops(cached_tokens)

    def _gigaflops(self, tokens: float) -> float:
        attention = 2.0 * self.layers * self.hidden * tokens * (tokens + 1.0)
        return (2.0 * self.parameter_count * tokens + attention) / 1e9


PRICES: dict[str, Callable[..., Price]] = {
    "linear": LinearPrice,
    "profiled": ProfiledQuadraticPrice,
    "flops": FlopsPrice,
    "extend": ExtendPrice,
}
