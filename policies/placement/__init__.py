"""Which backend takes this request? The candidates are those where it fits."""

from collections.abc import Callable

from policies.placement.base import ArrivalPlacement, Placement, Worker
from policies.placement.least_reserved import LeastReserved

PLACEMENT: dict[str, Callable[[], Placement | ArrivalPlacement]] = {"least-reserved": LeastReserved}

__all__ = ["PLACEMENT", "ArrivalPlacement", "LeastReserved", "Placement", "Worker"]
