"""ListedMembers: the members that the store lists, and until when a new leader waits for each (rule 2)."""

from typing import Final

from gateway.cluster.election_store import StoreView
from gateway.cluster.promise import SILENT_S

JOIN_S: Final = 0.5  # from an election: all that are there have asked by then, HURRY_S apart, and connected by TLS
ABORT_S: Final = 0.25  # from a process's end until engines have dropped its requests, with their next steps


class ListedMembers:
    """The members (processes) that the store lists, or has listed within the last SILENT_S seconds. Mutable."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """Of each by name."""
        self.strangers: frozenset[str] = frozenset()
        """Those that speak another version of the protocol."""
        self.has_forgotten = False
        """The store had forgotten epochs when it gave the present one: it may not list all."""
        self._former: str | None = None  # the leader before
        self._listed_at: dict[str, float] = {}
        self._heard_from: dict[str, float] = {}  # when the store did, at the latest; those of its last list alone
        self._ended: dict[str, float] = {}  # those of the list whose processes have ended, and when that was seen

    def listed(self, view: StoreView, now: float, *, before: str | None) -> None:
        """The store lists these members; `before` was the leader until now. Members listed a moment ago are kept: a
        store that loses its data must not shorten the last list.
        """
        self._former = self._former if before in (None, view.leader) else before
        self._ended = {member: at for member, at in self._ended.items() if member in view.members}
        self._heard_from = {member: now - view.silent_s.get(member, 0.0) for member in view.members}
        for member, address in view.members.items():
            self.addresses[member] = address
            self._listed_at[member] = now
        for member in [each for each, at in self._listed_at.items() if now - at > SILENT_S]:
            self.forget(member)
        self.strangers = (self.strangers | view.strangers) & self.addresses.keys()

    def forget(self, member: str) -> None:
        """Wait for this member no more."""
        self.addresses.pop(member, None)
        self._listed_at.pop(member, None)

    def ended(self, member: str, now: float) -> bool:
        """The process of this member has ended: nobody waits for it any more. Returns whether that is new."""
        is_new = member in self.addresses and member not in self._ended
        if is_new:
            self._ended[member] = now
        return is_new

    def has_ended(self, member: str | None) -> bool:
        """Whether the process of this member is known to have ended."""
        return member in self._ended

    def waits(self, now: float) -> dict[str, float]:
        """The times, by this clock, until which a leader elected now waits for each member: SILENT_S after the store
        heard from the member, because by then every promise and lease has ended. A member that is there gets JOIN_S to
        report. For a member that has ended, backends get ABORT_S to abort its requests before they are measured. If the
        store has lost its data, members that are not listed may still carry out an old leader's actions: the name ""
        stands for them.
        """
        ended = {name: at + ABORT_S for name, at in self._ended.items()}
        unknown = {"": now + SILENT_S} if self.has_forgotten else {}
        heard = {name: self._heard_from.get(name, at) + SILENT_S for name, at in self._listed_at.items()}
        known = {name: at if name == self._former else max(at, now + JOIN_S) for name, at in heard.items()}
        return known | ended | unknown
