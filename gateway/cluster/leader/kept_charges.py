"""KeptCharges: what the counters have of requests that are not known now, so that each is charged once.

A member that went away may return, and tells its requests again; a checkpoint has what was charged for them, too.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from policies.types import Usage

CHARGED_MAX: Final = 2_000  # requests of members that went away and may return: each checkpoint has them


class KeptCharges:
    """The charged usage of requests that the leader does not know at present, by wire id, oldest first. Mutable."""

    def __init__(self) -> None:
        self._usages: OrderedDict[str, Usage] = OrderedDict()

    def __contains__(self, id_: str) -> bool:
        return id_ in self._usages

    def of(self, id_: str) -> Usage | None:
        return self._usages.get(id_)

    def keep(self, usages: Mapping[str, Usage]) -> list[str]:
        """So much was charged for each of these. Returns which requests are forgotten: the oldest of too many."""
        self._usages.update(usages)
        return [self._usages.popitem(last=False)[0] for _ in range(len(self._usages) - CHARGED_MAX)]

    def take(self, id_: str) -> Usage | None:
        """What was charged for a request that is known again; None: nothing is known."""
        return self._usages.pop(id_, None)
