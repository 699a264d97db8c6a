"""The two ends: predicting nothing (plain VTC) and knowing the truth (simulation only)."""

from policies.types import Request


class NoPrediction:
    """Expect nothing, charge tokens as they come: plain VTC (Alg. 2)."""

    def predict(self, request: Request) -> float:
        return 0.0

    def observed(self, request: Request, output_tokens: int) -> None: ...

    def forget(self, tenant_id: str) -> None: ...


class Oracle:
    """The true length where the request carries it, the limit where it does not."""

    def predict(self, request: Request) -> float:
        known = request.output_tokens_known
        return float(request.output_tokens_max if known is None else min(known, request.output_tokens_max))

    def observed(self, request: Request, output_tokens: int) -> None: ...

    def forget(self, tenant_id: str) -> None: ...
