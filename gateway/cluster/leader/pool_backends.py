"""PoolBackends: the leader's view of one pool's backends, with the members' unreported usage there (rules 8, 11)."""

from dataclasses import replace

from gateway.cluster.leader.ordered_requests import OrderedRequest, Sender
from gateway.cluster.leader.pool_journal import PoolJournal
from policies.facts import Fact, LoadChanged, Measured
from policies.types import BackendLoad, Request


class PoolBackends:
    """The leader's view of one pool's backends. To each measured load of a backend, it adds the KV tokens that requests
    there hold and that the members (the processes that sent these requests) have not reported yet. Mutable.
    """

    def __init__(self, journal: PoolJournal) -> None:
        self._journal = journal
        self._ids: frozenset[str] = frozenset()
        self._available: dict[str, bool] = {}  # as told last
        self._untold: dict[str, dict[str, int]] = {}  # by member and backend

    def told(self, fact: LoadChanged | Measured) -> Fact:
        """The fact for the Scheduler: these loads, each with the members' unreported tokens there."""
        if isinstance(fact, Measured):
            return replace(fact, load=self._load(fact.load))
        fact = replace(fact, loads=tuple(map(self._load, fact.loads)))
        self._ids = frozenset(load.backend_id for load in fact.loads)
        self._available = {each: self._available.get(each, False) for each in self._ids}
        return fact

    def untold(self, sender: Sender, tokens: dict[str, int]) -> None:
        """Record the KV tokens that the member's requests hold at each backend beyond their reported usage."""
        self._untold[sender.member] = tokens

    def forget(self, sender: Sender) -> None:
        """Drop the unreported tokens of a member that is gone."""
        self._untold.pop(sender.member, None)

    def reachable(self, known: OrderedRequest) -> Request:
        """The request with the backends that its sender can reach (rule 8)."""
        asked, unreachable = known.asked, known.sender.unreachable
        if not unreachable:
            return asked
        may = self._ids if asked.backend_ids is None else asked.backend_ids
        return replace(asked, backend_ids=may - unreachable) if may & unreachable else asked

    def _load(self, load: BackendLoad) -> BackendLoad:
        untold = sum(tokens.get(load.backend_id, 0) for tokens in self._untold.values())
        self._ids |= {load.backend_id}
        if self._available.get(load.backend_id) != load.available:
            self._available[load.backend_id] = load.available
            self._journal.backends_changed()
        return replace(load, untold_tokens=untold) if untold else load
