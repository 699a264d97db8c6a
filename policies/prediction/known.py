"""Reference predictors: no prediction (plain VTC), the true length (oracle), and the true length with noise.

The oracles are for simulations only: no real request carries its output length.
"""

from hashlib import blake2b
from typing import Protocol

from policies.types import Request

ERROR_RATIO = 0.5  # the paper's "+-50 %": uniform between half and one and a half times the truth


class NoPrediction:
    """A predictor that always predicts 0, so that tokens are charged as they are produced. This is plain VTC (Alg. 2 of
    the VTC paper).
    """

    def predict(self, request: Request) -> float:
        return 0.0

    def observed(self, request: Request, output_tokens: int) -> None: ...

    def forget(self, tenant_id: str) -> None: ...


class Oracle:
    """A predictor that returns the true length of the answer, where a simulated request carries it; otherwise the
    request's limit of output tokens.
    """

    def predict(self, request: Request) -> float:
        known = request.output_tokens_known
        return float(request.output_tokens_max if known is None else min(known, request.output_tokens_max))

    def observed(self, request: Request, output_tokens: int) -> None: ...

    def forget(self, tenant_id: str) -> None: ...


class Chance(Protocol):
    """A source of random numbers in [0, 1), such as random.Random."""

    def random(self) -> float: ...


class NoisyOracle:
    """A predictor that returns the true length of the answer with a random error: uniform in truth * (1 -+ ratio). The
    error follows from the request's id and a salt that is drawn once, so it is the same at each call.
    """

    def __init__(self, *, rng: Chance, error_ratio: float = ERROR_RATIO) -> None:
        self._oracle = Oracle()
        self._salt = rng.random().hex().encode()
        self._error_ratio = error_ratio

    def predict(self, request: Request) -> float:
        digest = blake2b(request.id.encode(), digest_size=8, key=self._salt).digest()
        draw = int.from_bytes(digest, "big") / 2.0**64
        factor = 1.0 + self._error_ratio * (2.0 * draw - 1.0)
        return min(self._oracle.predict(request) * factor, request.output_tokens_max)

    def observed(self, request: Request, output_tokens: int) -> None: ...

    def forget(self, tenant_id: str) -> None: ...
