"""The time of one engine step, as a linear function of what it computes.

T = base + token * new tokens + context_token * context tokens + request * requests: FairBatching's model
(arXiv 2510.14392, 3.2) and a term for every request, which a host that prepares each of them needs. Times are those
of whole cycles, from one start to the next.
"""

from dataclasses import astuple, dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Coefficients in seconds, none negative; raises ValueError for others."""

    base_s: float
    token_s: float
    context_token_s: float = 0.0
    request_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(isfinite(each) and each >= 0.0 for each in astuple(self)) or not any(astuple(self)):
            raise ValueError("coefficients are finite, not negative, and not all zero")

    def step_s(self, *, new_tokens: float, context_tokens: float, requests: float) -> float:
        """Seconds of a step that computes `new_tokens` for `requests`, which read `context_tokens` of KV in all."""
        return (
            self.base_s + self.token_s * new_tokens + self.context_token_s * context_tokens + self.request_s * requests
        )


@dataclass(frozen=True, slots=True)
class StepTime:
    """What is believed of a backend's steps. `error_ratio` is the median relative error of what was predicted lately;
    while it is not `is_sure` nothing may be promised by it.
    """

    model: StepTimeModel
    error_ratio: float
    is_sure: bool
