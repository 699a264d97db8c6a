"""Output-length prediction: each file is one method. A wrong prediction costs no fairness in the worst case (VTC's
bound does not depend on it), and a good one evens out service (VTC Sec. 4.4, Tables 5 and 6).
"""

from collections.abc import Callable

from policies.prediction.averages import ExponentialAverage, LastFiveMean
from policies.prediction.base import Prediction
from policies.prediction.known import NoisyOracle, NoPrediction, Oracle
from policies.prediction.mixture import MixtureOfExperts
from policies.prediction.quantile import TenantQuantile

PREDICTION: dict[str, Callable[..., Prediction]] = {
    "none": NoPrediction,
    "quantile": TenantQuantile,
    "mixture": MixtureOfExperts,
    "last-five": LastFiveMean,
    "exponential": ExponentialAverage,
    "oracle": Oracle,
    "noisy-oracle": NoisyOracle,
}
SIMULATION_ONLY = ("oracle", "noisy-oracle")

__all__ = [
    "PREDICTION",
    "SIMULATION_ONLY",
    "ExponentialAverage",
    "LastFiveMean",
    "MixtureOfExperts",
    "NoPrediction",
    "NoisyOracle",
    "Oracle",
    "Prediction",
    "TenantQuantile",
]
