"""The question every predictor answers."""

from typing import Protocol

from policies.types import Request


class Prediction(Protocol):
    """How many output tokens will this request produce, over all its choices?"""

    def predict(self, request: Request) -> float:
        """Expected output tokens, in [0, request.output_tokens_max]."""
        ...

    def observed(self, request: Request, output_tokens: int) -> None:
        """The request ended by itself after `output_tokens`."""
        ...

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone."""
        ...


def clamp_prediction(request: Request, tokens_per_choice: float) -> float:
    """The prediction for all choices; never more than the request may produce, which bounds later refunds."""
    return min(tokens_per_choice * request.choices, request.output_tokens_max)
