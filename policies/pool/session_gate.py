"""Gate of sessions: connects a Scheduler with the ledger of sessions. It asks the ledger which turns are held, and
reports facts to it.

Held turns wait outside of the order, as the requests of an API key at its limit do. A turn that may run enters the
order, bound to the one backend that has room for its session. The binding lapses if the backend is gone, or if the turn
has waited too long: then the turn may go to any backend that can serve it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

from policies.accounts.cost import Price
from policies.accounts.ledger import InFlight
from policies.fairness.tree import FairTree
from policies.fairness.vtc import VirtualTokenCounter
from policies.group_state import GroupState
from policies.pool.tenants import Tenants
from policies.sessions.checkpoint import SessionsCheckpoint
from policies.sessions.ledger import QUANTUM_PREFILLS, SESSIONS_MAX, SessionLedger
from policies.sessions.prompt_tails import BLOCKS_MIN, INFERRED, PromptTails
from policies.sessions.views import sessions_of, sessions_view, states_of
from policies.types import Request, SessionsView, Tenant, TenantView, Usage


class SessionRules(NamedTuple):
    """The rules by which turns (calls) of agents' sessions are held: they wait until a KV pool has room for the context
    of their session. A turn that was held for `wait_s_max` seconds gets room, whatever this costs other sessions; None:
    half of the queue timeout. At most `sessions_max` sessions are known per tenant. `eta`, from 0 to 1, is the part of
    a KV pool that the contexts of sessions may fill; None: it is learnt. A session makes room for others after it has
    used the engine for `quantum` times as long as the prefill of its context.
    """

    wait_s_max: float | None = None
    sessions_max: int = SESSIONS_MAX
    eta: float | None = None
    quantum: float = QUANTUM_PREFILLS


class _Bound(NamedTuple):
    """What holds for a waiting turn that is to go to this backend, until then; later it may go to `backend_ids`."""

    backend_id: str
    until: float
    backend_ids: frozenset[str] | None


class SessionGate:
    """The part of a Scheduler that holds turns (calls) of agents' sessions outside of the queues' order. A turn enters
    the order when the context of its session has room at a backend. Mutable.
    """

    def __init__(self, rules: SessionRules, tenants: Tenants, price: Price, wait_s_max: float) -> None:
        """`wait_s_max` is the queue timeout."""
        self._tenants, self._price = tenants, price
        self._wait_s_max = wait_s_max / 2.0 if rules.wait_s_max is None else rules.wait_s_max
        self.ledger = SessionLedger(
            self._make_order,
            self._known,
            sessions_max=rules.sessions_max,
            wait_s_max=self._wait_s_max,
            eta=rules.eta,
            quantum=rules.quantum,
        )
        self._prompt_tails = PromptTails()
        self.tenants, self.others = self.ledger.table.tenants, self.ledger.others
        """What says whether a call without a session concerns the ledger: tenants that have sessions, and calls without
        one that it counts. To read.
        """
        self.forgiven: dict[str, Usage] = {}
        """What requests have used that compute again what a pause made them lose, by id. To read."""
        self._bound: dict[str, _Bound] = {}  # waiting requests by id
        self._bound_until = inf  # none of them lapses before

    # -- whose turn it is ----------------------------------------------------------------------------------------

    def named(self, request: Request) -> Request:
        """The arriving request, with the session that its prompt shows if it names none."""
        if request.program_id is not None or len(request.prefix) < BLOCKS_MIN:
            return request
        session_id = self._prompt_tails.session_of(request)
        return request if session_id is None else replace(request, program_id=session_id)

    def restored(self, sessions: SessionsCheckpoint, now: float) -> None:
        """Take over the sessions that another gate knew, before any turn arrives."""
        self.ledger.restored(sessions, now)
        for (tenant_id, session_id), told in sessions.sessions.items():
            if told is not None and session_id.startswith(INFERRED) and told.tail[0]:
                self._prompt_tails.restored(tenant_id, session_id, told.tail[1])

    # -- what waits --------------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Whether turns are held, or may become held."""
        return self.ledger.engagement.is_on or bool(self.ledger.held)

    def may_hold(self, now: float) -> bool:
        """Whether a request of a session that arrives now may be held, so that `enters` has to be asked."""
        return self.ledger.is_engaged(now) or bool(self.ledger.held.turns)

    def is_held(self, request: Request) -> bool:
        return request.id in self.ledger.held.turns

    def enters(self, request: Request, now: float) -> Request | None:
        """The request as it enters the order now; None: the request is held."""
        if request.program_id is None:
            return request
        turn = self.ledger.turns.get(request.id)
        if turn is None:
            if self.ledger.arrived(request, now) is None:
                return None
            turn = self.ledger.turns[request.id]
        until = request.arrived_at + self._wait_s_max
        if not turn.backend_id or until <= now:
            return request
        self._bound[request.id] = _Bound(turn.backend_id, until, request.backend_ids)
        self._bound_until = min(self._bound_until, until)
        return replace(request, backend_ids=frozenset((turn.backend_id,)))

    def wait_s(self, request: Request, now: float) -> float:
        """Seconds for which the request is still held at most."""
        return max(0.0, self.ledger.held.turns[request.id].arrived_at + self._wait_s_max - now)

    def released(self, now: float) -> Iterator[str]:
        """Yield the ids of requests that were held and enter the order now."""
        return (entry.request_id for entry in self.ledger.released(now))

    def lapsed(self, now: float, *, is_due: bool) -> list[str]:
        """The ids of waiting requests that are not bound to a backend any more. `is_due`: look only if the time of a
        binding has ended, because no backend has gone since the last call.
        """
        if not self._bound or (is_due and now < self._bound_until):
            return []
        available = self.ledger.available
        self._bound_until = min((each.until for each in self._bound.values() if each.until > now), default=inf)
        return [id_ for id_, each in self._bound.items() if each.until <= now or each.backend_id not in available]

    def free(self, request: Request) -> Request:
        """The request with all backends that can serve it, even if it is bound to one of them."""
        bound = self._bound.get(request.id)
        return request if bound is None else replace(request, backend_ids=bound.backend_ids)

    def unbound(self, request: Request) -> Request:
        """Drop the request's binding; return it with all backends that can serve it."""
        free = self.free(request)
        if self._bound.pop(request.id, None) is not None:
            self.ledger.turns[request.id].backend_id = ""
        return free

    def left(self, request_id: str, now: float) -> None:
        """A waiting request is gone, or set aside: `enters` has to be asked again before it can wait."""
        self._bound.pop(request_id, None)
        self.ledger.left(request_id, now)

    def next_at(self) -> float | None:
        """When to call `released` and `lapsed` although no fact arrives; None: not before a fact arrives."""
        at = self.ledger.next_at()
        return at if not self._bound else self._bound_until if at is None else min(at, self._bound_until)

    def home_of(self, request: Request) -> str:
        """The id of the backend that is believed to have the context of the request's session; empty if none has."""
        of_tenant = self.ledger.table.tenants.get(request.tenant_id)
        session = None if of_tenant is None else of_tenant.sessions.get(request.program_id or "")
        return session.backend_id if session is not None and session.is_admitted else ""

    # -- what runs ---------------------------------------------------------------------------------------------

    def sent(self, entry: InFlight) -> int:
        """A request was dispatched. Returns the tokens of its prompt that its backend is expected to have cached."""
        request, ledger = entry.request, self.ledger
        if request.program_id is None:
            ledger.sent(request, entry.backend_id, entry.dispatched_at)
            return 0
        if request.id in self._bound:
            request = entry.request = self.unbound(request)
        turn = ledger.turns.get(request.id)
        if turn is None:
            turn = ledger.adopted(request, entry.backend_id, entry.dispatched_at)
        else:
            ledger.sent(request, entry.backend_id, entry.dispatched_at)
            if turn.resumes and turn.continues and turn.session.context:
                self.forgiven[request.id] = entry.usage
        return 0 if turn.resumes else min(turn.known, request.prompt_tokens)

    def charged(self, request_id: str, usage: Usage) -> Usage:
        """The usage that a request with this usage is charged for."""
        if request_id not in self.forgiven:
            return usage
        self.forgiven[request_id] = usage
        turn = self.ledger.turns.get(request_id)
        return usage if turn is None else turn.charged(usage)

    def returned(self, request_id: str, now: float) -> None:
        """A dispatched request waits in the order again."""
        self.forgiven.pop(request_id, None)
        self.ledger.returned(request_id, now)

    def ended(self, entry: InFlight, now: float) -> None:
        """A dispatched request has ended."""
        request, ledger, usage = entry.request, self.ledger, entry.usage
        ledger.ended(request.id, self.forgiven.pop(request.id, usage) if self.forgiven else usage, now)
        of_tenant = ledger.table.tenants.get(request.tenant_id)
        if of_tenant is None:
            return
        tenant = self._tenants.admitted(request.tenant_id)
        if tenant is None:
            ledger.tenant_removed(request.tenant_id)
        elif of_tenant.sessions:
            ledger.held.charged(tenant, self._price.service(*entry.usage))

    # -- tenants -----------------------------------------------------------------------------------------------

    def removed(self, tenants: Iterable[Tenant]) -> None:
        """These tenants are gone, and none of their requests waits."""
        for tenant in tenants:
            self.ledger.tenant_removed(tenant.id)
            self._prompt_tails.removed(tenant.id)
            self.ledger.held.forget(tenant)

    # -- views -------------------------------------------------------------------------------------------------

    def view(self, now: float) -> SessionsView:
        return sessions_view(self.ledger, now)

    def shown_in(self, views: dict[str, TenantView]) -> dict[str, TenantView]:
        """The given views of tenants, each with the tenant's sessions added."""
        for tenant_id in views.keys() & self.ledger.table.tenants.keys():
            sessions = sessions_of(self.ledger, tenant_id, self._wait_s_max)
            states = states_of(self.ledger, tenant_id)
            views[tenant_id] = replace(views[tenant_id], sessions=sessions, session_states=states)
        return views

    def _known(self, tenant_id: str) -> Tenant:
        return self._tenants.states[tenant_id].tenant

    def _make_order(self) -> FairTree:
        """An order of its own: no group is at its limit here, because what is held does not run."""
        tenants = self._tenants
        groups = {id_: GroupState(replace(of.group, in_flight_max=None)) for id_, of in tenants.groups.items()}
        return FairTree(
            VirtualTokenCounter,
            tenants.tiers.values(),
            _none_cached,
            groups=groups,
            grouped={of.group.tier_id for of in groups.values()},
            tenant=tenants.admitted,
        )


def _none_cached(request: Request) -> int:  # noqa: ARG001
    return 0
