"""Prediction protocol: the interface of every output-length predictor."""

from typing import Protocol

from policies.types import Request


class Prediction(Protocol):
    """The interface of predictors: how many output tokens will a request produce, over all its choices?"""

    def predict(self, request: Request) -> float:
        """The expected output tokens, in [0, request.output_tokens_max]."""
        ...

    def observed(self, request: Request, output_tokens: int) -> None:
        """Learn that the request ended by itself after `output_tokens`."""
        ...

    def forget(self, tenant_id: str) -> None:
        """Drop the state of a removed tenant."""
        ...


def clamp_prediction(request: Request, tokens_per_choice: float) -> float:
    """The prediction for all choices of a request. It is at most the number of tokens that the request may produce,
    which bounds later refunds.
    """
    return min(tokens_per_choice * request.choices, request.output_tokens_max)
