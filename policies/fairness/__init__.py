"""Who is served next? Each file is one order of tenants; `tiers.py` puts one above another."""

from collections.abc import Callable

from policies.fairness.base import Fairness, Standing
from policies.fairness.drr import DeficitRoundRobin
from policies.fairness.fifo import Fifo
from policies.fairness.vtc import LeastCounterFirst, VirtualTokenCounter

FAIRNESS: dict[str, Callable[[], Fairness]] = {
    "vtc": VirtualTokenCounter,
    "lcf": LeastCounterFirst,
    "drr": DeficitRoundRobin,
    "fifo": Fifo,
}

__all__ = [
    "FAIRNESS",
    "DeficitRoundRobin",
    "Fairness",
    "Fifo",
    "LeastCounterFirst",
    "Standing",
    "VirtualTokenCounter",
]
