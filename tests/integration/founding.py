"""Members that found an order, in a process that calls `found`: neither they nor their Redis wait for what was before.

A member that has just reached the store stands for election SILENT_S later, when a leader that this store does not know
could decide no more (rule 2); and a Redis that is empty takes no change until others could have put back what they
have. Where all is new there is nobody to wait for. A member that has heard of a leader waits as ever. What others have
used is read more often.
"""

from gateway.cluster import election, listed_members, member, promise
from gateway.cluster.election import Candidate
from gateway.cluster.leader import leader, led_members
from gateway.store import mirrored_usage, redis_election
from gateway.store.redis_store import RedisStore

FOUNDS = "import founding; founding.found(); from gateway.cli import main; main()"
SETTLE_S = 0.05
USAGE_PULL_S = 1.0  # instead of 10
LEASES = {"LEASE_S", "LEASE_MARGIN_S", "SILENT_S"}
HAVE_LEASES = (election, leader, led_members, listed_members, member, promise, redis_election)

_begin, _reconnect = Candidate.__init__, Candidate.reconnected


def found(replace=setattr, *, stands=True):
    """Without `stands`, members wait as ever, and Redis alone does not."""
    if stands:
        replace(Candidate, "__init__", begin)
        replace(Candidate, "reconnected", reconnect)
    replace(RedisStore.__init__, "__kwdefaults__", RedisStore.__init__.__kwdefaults__ | {"settle_s": SETTLE_S})
    replace(mirrored_usage, "USAGE_PULL_S", USAGE_PULL_S)


def begin(candidate, member, address="", *, now):
    _begin(candidate, member, address, now=now)
    candidate._stands_from = now


def reconnect(candidate, now):
    if candidate.epoch:
        _reconnect(candidate, now)


def halve_leases(replace):
    """Where a test waits for the end of a lease, or for what is as long. No shorter: a busy machine keeps a process
    from renewing one for half a second.
    """
    for module in HAVE_LEASES:
        for name in LEASES & vars(module).keys():
            replace(module, name, vars(module)[name] / 2)
