"""Step-time model: the time of one engine step, as a linear function of its computed and read tokens.

T = base + token * new tokens + context_token * context tokens + request * requests: FairBatching's model (arXiv
2510.14392, 3.2) with one more term, the host's time to prepare each request. A step lasts a whole cycle, from its start
to the start of the next.
"""

from dataclasses import astuple, dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """A linear model of the time of one engine step: `base_s`, plus `token_s` for each new token, `context_token_s` for
    each KV token that the step reads, and `request_s` for each request. These coefficients are in seconds, finite, not
    negative and not all zero; otherwise ValueError is raised.
    """

    base_s: float
    token_s: float
    context_token_s: float = 0.0
    request_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(isfinite(each) and each >= 0.0 for each in astuple(self)) or not any(astuple(self)):
            raise ValueError("coefficients are finite, not negative, and not all zero")

    def step_s(self, *, new_tokens: float, context_tokens: float, requests: float) -> float:
        """Seconds of a step that computes `new_tokens` for `requests`, which read `context_tokens` of KV in total."""
        return (
            self.base_s + self.token_s * new_tokens + self.context_token_s * context_tokens + self.request_s * requests
        )


@dataclass(frozen=True, slots=True)
class StepTime:
    """The current step-time model of a backend. `error_ratio` is the median relative error of recent predictions. While
    it is not `is_sure`, no forecast may rely on it.
    """

    model: StepTimeModel
    error_ratio: float
    is_sure: bool
