"""Placement: the policies that choose a request's backend, at dispatch or on arrival (see `base.py`)."""

from collections.abc import Callable

from policies.placement.base import ArrivalPlacement, Placement, Worker
from policies.placement.d2lpm import D2lpm
from policies.placement.least_reserved import LeastReserved
from policies.placement.longest_prefix import LongestPrefix
from policies.placement.pab import LargestBudget
from policies.placement.preble import Preble
from policies.placement.predicted_ttft import PredictedTtft
from policies.placement.round_robin import RoundRobin, TenantRoundRobin

LATE_PLACEMENT: dict[str, Callable[[], Placement]] = {
    "least-reserved": LeastReserved,
    "longest-prefix": LongestPrefix,
    "predicted-ttft": PredictedTtft,
    "pab": LargestBudget,
}
ARRIVAL_PLACEMENT: dict[str, Callable[[], ArrivalPlacement]] = {
    "round-robin": RoundRobin,
    "tenant-round-robin": TenantRoundRobin,
    "preble": Preble,
    "d2lpm": D2lpm,
}
PLACEMENT: dict[str, Callable[[], Placement | ArrivalPlacement]] = {**LATE_PLACEMENT, **ARRIVAL_PLACEMENT}

__all__ = [
    "ARRIVAL_PLACEMENT",
    "LATE_PLACEMENT",
    "PLACEMENT",
    "ArrivalPlacement",
    "D2lpm",
    "LargestBudget",
    "LeastReserved",
    "LongestPrefix",
    "Placement",
    "Preble",
    "PredictedTtft",
    "RoundRobin",
    "TenantRoundRobin",
    "Worker",
]
