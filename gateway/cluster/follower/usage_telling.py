"""UsageTelling: how much of its requests' usage a member reports to its leader, and when (rule 11)."""

from collections import Counter
from math import inf
from typing import Final

from gateway.cluster.follower.leader_link import LeaderLink
from gateway.cluster.follower.leader_reports import LeaderReports
from gateway.cluster.follower.member_requests import MemberRequests, OwnRequest
from gateway.cluster.wire import Untold, Used
from policies.types import KV_BLOCK_TOKENS, Usage

UNTOLD_S: Final = 0.25
PROGRESS_S: Final = 1.0
STEP_S: Final = 0.02


class UsageTelling:
    """The reporter of the usage of running requests from one member (a process of the cluster) to its leader. A
    request's usage is reported when a decision can depend on it, and else every PROGRESS_S. The sum of unreported
    tokens at each backend is reported every UNTOLD_S. Mutable.
    """

    def __init__(self, link: LeaderLink, requests: MemberRequests, reports: LeaderReports) -> None:
        self._link, self._requests, self._reports = link, requests, reports
        self._untold_at = self._told_all_at = -inf

    def begin(self, now: float) -> None:
        """The member joins a leader, which gets all usages then."""
        self._untold_at = self._told_all_at = now

    def used(self, own: OwnRequest, usage: Usage, now: float) -> None:
        """A dispatched request has used this much; the leader gets the usage when a decision can depend on it."""
        if own.dispatch is None:
            return
        before, own.usage = own.told, usage
        if self._link.leader is None or not self._reports.has_told(own):
            return
        if own.told_at == -inf or before is None or usage[:2] != before[:2]:
            self.tell(own, now)
        elif usage.output_tokens > own.dispatch.quiet_tokens and now - own.told_at >= STEP_S:
            is_larger = usage.output_tokens // KV_BLOCK_TOKENS > before.output_tokens // KV_BLOCK_TOKENS
            if is_larger:  # its reservation may grow by a block
                self.tell(own, now)

    def tell(self, own: OwnRequest, now: float) -> None:
        """Send the newest usage of this request."""
        if own.usage is not None:
            own.told, own.told_at = own.usage, now
            self._link.outbox.say_newest(own.number, own.pool, Used(own.number, own.usage))

    def due(self) -> float:
        """When `tell_held` is due; inf: there is no leader."""
        return inf if self._link.leader is None else self._untold_at + UNTOLD_S

    def is_due(self, now: float) -> bool:
        """Whether `tell_held` is due; before that call, all usages have to be brought up to date with `used`."""
        return self._link.leader is not None and now - self._untold_at >= UNTOLD_S

    def tell_held(self, now: float) -> None:
        """Send all usages every PROGRESS_S, and the sum of unreported tokens at each backend every UNTOLD_S."""
        self._untold_at = now
        if now - self._told_all_at >= PROGRESS_S:
            self._told_all_at = now
            for own in self._requests:
                if own.dispatch is not None and own.usage not in (None, own.told) and self._reports.has_told(own):
                    self.tell(own, now)
        held: Counter[str] = Counter()
        for own in self._requests:
            if own.dispatch is not None:
                held[own.dispatch.backend_id] += own.untold_tokens
        self._link.say("", Untold({each: tokens for each, tokens in held.items() if tokens}))
