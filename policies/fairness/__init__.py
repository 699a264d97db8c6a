"""Fairness policies: each file defines one order of waiting requests; `node.py` and `tree.py` combine them."""

from collections.abc import Mapping

from policies.fairness.base import Fairness, ServiceRecord
from policies.fairness.dlpm import DeficitLongestPrefix
from policies.fairness.drr import DeficitRoundRobin
from policies.fairness.experimental.equinox import DualCounter
from policies.fairness.experimental.justitia import AgentTags
from policies.fairness.fifo import Fifo
from policies.fairness.slack import SlackCounter
from policies.fairness.vtc import LeastCounterFirst, VirtualTokenCounter

FAIRNESS: Mapping[str, type[Fairness]] = {
    "vtc": VirtualTokenCounter,
    "slack": SlackCounter,
    "dlpm": DeficitLongestPrefix,
    "lcf": LeastCounterFirst,
    "drr": DeficitRoundRobin,
    "fifo": Fifo,
    "equinox": DualCounter,
    "justitia": AgentTags,
}

__all__ = [
    "FAIRNESS",
    "AgentTags",
    "DeficitLongestPrefix",
    "DeficitRoundRobin",
    "DualCounter",
    "Fairness",
    "Fifo",
    "LeastCounterFirst",
    "ServiceRecord",
    "SlackCounter",
    "VirtualTokenCounter",
]
