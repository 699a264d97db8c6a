"""The question every placement answers."""

from collections.abc import Sequence
from typing import Protocol

from policies.capacity import BackendCapacity
from policies.types import Request


class Placement(Protocol):
    """Which of these backends, all of which have room, takes this request?"""

    def place(self, request: Request, candidates: Sequence[BackendCapacity]) -> BackendCapacity:
        """One of the candidates, of which there is at least one."""
        ...
