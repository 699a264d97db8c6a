"""How much may be in flight at a backend that has seats and memory left? (see `limits.py`)"""

from policies.limit.limits import LIMITS, FixedLimit, Limit, ModelLimit, RoomOnly
from policies.limit.work import EngineWork

__all__ = ["LIMITS", "EngineWork", "FixedLimit", "Limit", "ModelLimit", "RoomOnly"]
