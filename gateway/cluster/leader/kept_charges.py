"""KeptCharges: the charges of requests that are not known now, so that each request is charged once.

A member that went away may return and report its requests again; a checkpoint has their charges, too.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from policies.types import Usage

CHARGED_MAX: Final = 2_000  # requests of members that went away and may return: each checkpoint has them


class KeptCharges(OrderedDict[str, Usage]):
    """The usage that was charged for requests which the leader does not know at present, by wire id (`member.number`),
    oldest first. If a member reports such a request again, its entry is taken out, and only its further usage is
    charged.
    """

    def keep(self, usages: Mapping[str, Usage]) -> list[str]:
        """Keep the charged usage of these requests. Returns the ids of dropped requests: the oldest of too many."""
        self.update(usages)
        return [self.popitem(last=False)[0] for _ in range(len(self) - CHARGED_MAX)]
