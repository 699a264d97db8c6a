"""Limits: how many requests may be in flight at a backend that has slots and memory left (see `limits.py`)."""

from policies.limit.engine_work import EngineWork
from policies.limit.limits import LIMITS, FixedLimit, Limit, ModelLimit, RoomOnly

__all__ = ["LIMITS", "EngineWork", "FixedLimit", "Limit", "ModelLimit", "RoomOnly"]
