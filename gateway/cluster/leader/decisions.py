"""Decisions: the decisions of one pool's Scheduler as messages to the members."""

from collections import OrderedDict
from typing import Final

from gateway.cluster.leader.ordered_requests import OrderedRequest, OrderedRequests, Sender
from gateway.cluster.leader.pool_journal import PoolJournal
from gateway.cluster.leader.pool_tenants import PoolTenants
from gateway.cluster.wire import AnyMessage, Dispatched, LimitsOf, Refused, Withdraw
from policies.call_life import ASKED, LIFE, Event
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Action, Dispatch, Reject, Usage

KEPT_MAX: Final = 10_000  # rejections that members may have missed


class Decisions:
    """The converter of one pool's decisions into messages to the members (processes of the cluster). It keeps the last
    rejections, to repeat them to members that missed them. Mutable.
    """

    def __init__(
        self, scheduler: SharedSchedulerProtocol, known: OrderedRequests, tenants: PoolTenants, journal: PoolJournal
    ) -> None:
        self._scheduler, self._known, self._tenants, self._journal = scheduler, known, tenants, journal
        self._refused: OrderedDict[str, Refused] = OrderedDict()  # their members may not have heard them
        self._watched: list[str] = []  # traced requests whose wait has no reason yet
        self._said: list[tuple[Sender, AnyMessage]] = []

    def say(self, sender: Sender, message: AnyMessage) -> None:
        """Send this member a message with the next decisions."""
        self._said.append((sender, message))

    def repeat(self, sender: Sender, id_: str) -> bool:
        """Repeat the refusal of the request, if it was refused; return whether it was."""
        refused = self._refused.get(id_)
        if refused is not None:
            self.say(sender, refused)
        return refused is not None

    def watch(self, id_: str) -> None:
        """A traced request waits: find out why, so that its Dispatch can say it."""
        self._watched.append(id_)

    def decide(self, now: float) -> list[tuple[Sender, AnyMessage]]:
        """Poll the Scheduler. Returns its decisions, and the messages of `say`, each with its member."""
        for action in self._scheduler.poll(now):
            known = self._known.get(action.request_id)
            if known is None:
                continue  # rejected, and gone before it could be told
            self._journal.request(action.request_id, known.asked)
            self._said.append((known.sender, self._carry(action, known, now)))
        for id_ in self._watched:
            if (known_ := self._known.get(id_)) is not None and known_.backend_id is None:
                known_.wait = self._scheduler.waits_for(id_, now)
        self._watched.clear()
        while len(self._refused) > KEPT_MAX:
            self._refused.popitem(last=False)
        said, self._said = self._said, []
        return said

    def _carry(self, action: Action, known: OrderedRequest, now: float) -> AnyMessage:
        """The request goes where the action sends it, and its member is told."""
        if isinstance(action, Dispatch):
            known.backend_id, known.life = action.backend_id, LIFE[known.life, Event.DISPATCHED]
            if not known.asked.produced_tokens:  # else it is continued, and was charged for that
                known.told = Usage(known.asked.prompt_tokens, action.cached_tokens, 0)
            return self._dispatched(known, action, now)
        if isinstance(action, Reject):
            self._known.pop(action.request_id)
            limits = self._tenants.rate_limits(LimitsOf(known.asked.tenant_id, known.asked.key_id), now)
            refused = Refused(known.number, action.reason, action.retry_after_s, action.limit, limits)
            self._refused[action.request_id] = refused
            return refused
        known.life = LIFE[known.life, ASKED[action.cause]]
        return Withdraw(known.number, action.cause)

    def _dispatched(self, known: OrderedRequest, action: Dispatch, now: float) -> Dispatched:
        return Dispatched(
            known.number,
            action.backend_id,
            action.quiet_tokens,
            action.cached_tokens,
            action.may_be_preempted,
            action.number,
            action.output_tokens,
            self._tenants.told_limits(LimitsOf(known.asked.tenant_id, known.asked.key_id), now),
            known.lift,
            known.wait,
            action.expected_tokens,
        )
