"""Averages: the two predictors of the VTC paper and its code (VTC with prediction, Alg. 3)."""

from collections import deque

from policies.prediction.base import clamp_prediction
from policies.types import Request

LAST_OUTPUTS = 5  # "mean of the client's last 5 outputs", VTC Sec. 5.1
MEMORY = 4.0  # the authors' code: (4 * average + output) / 5


class LastFiveMean:
    """A predictor: the mean of the tenant's last five output lengths, in tokens; 0 for a new tenant."""

    def __init__(self) -> None:
        self._outputs: dict[str, deque[float]] = {}

    def predict(self, request: Request) -> float:
        outputs = self._outputs.get(request.tenant_id)
        return clamp_prediction(request, sum(outputs) / len(outputs)) if outputs else 0.0

    def observed(self, request: Request, output_tokens: int) -> None:
        outputs = self._outputs.setdefault(request.tenant_id, deque(maxlen=LAST_OUTPUTS))
        outputs.append(output_tokens / request.choices)

    def forget(self, tenant_id: str) -> None:
        self._outputs.pop(tenant_id, None)


class ExponentialAverage:
    """A predictor: the exponential average of the tenant's output lengths, (4 * average + length) / 5 in tokens; 0 for
    a new tenant. The first length is taken as it is.
    """

    def __init__(self) -> None:
        self._average: dict[str, float] = {}

    def predict(self, request: Request) -> float:
        return clamp_prediction(request, self._average.get(request.tenant_id, 0.0))

    def observed(self, request: Request, output_tokens: int) -> None:
        output = output_tokens / request.choices
        before = self._average.get(request.tenant_id)
        self._average[request.tenant_id] = output if before is None else (MEMORY * before + output) / (MEMORY + 1)

    def forget(self, tenant_id: str) -> None:
        self._average.pop(tenant_id, None)
