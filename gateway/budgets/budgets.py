"""Budgets of tenants and keys, in tokens and in money, per calendar day and month in UTC.

Money is the cost of the same tokens. The ledger (ledger.py) counts spending; the store has the spending of earlier
processes and of other gateways (past.py).

A call reserves its expected tokens (its prompt, and the mean output of its tenant's calls) until it has ended; then its
actual usage counts. It is admitted if its prompt alone fits into the rest of the budget: an estimate of its output can
hold back other calls, but not the call itself. A call that costs nothing, or has no price, needs no money.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from gateway.budgets.accounts import LIMIT_KINDS, Amounts, BudgetAccount, BudgetLimits, BudgetTally, Holder
from gateway.budgets.ledger import NOTHING_RESERVED, BudgetLedger, Reserved, part_of
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.past import PastSpending
from gateway.budgets.usage import UsageBook
from gateway.observability.telemetry import CallTrace
from gateway.store.base import Store
from gateway.store.periodic import Periodic
from policies.types import LimitKind

LOOK_S = 0.25  # between checks for new budgets
OUTPUT_TOKENS_UNKNOWN = 256  # per call, until the first one has ended

BUDGETED = ("groups", "tenants", "keys")
"""Kinds of entries that may have budgets."""


class Overrun(NamedTuple):
    """The answer to a call that does not fit into a budget: which budget it is, and the seconds until it is renewed."""

    wait_s: float
    period: LimitKind


class BudgetClaim(NamedTuple):
    """A call's claim for room in its budgets: its tenant, key, model, prompt tokens and expected output tokens."""

    tenant: str
    key: str
    model: str
    prompt_tokens: int
    output_tokens: int = 0  # the mean, or the most that it may have


class Budgets:
    """The budgets of one gateway: their limits, and whether a call fits into them. Mutable; used on one loop."""

    def __init__(
        self,
        book: UsageBook,
        store: Store,
        *,
        is_shared: bool,
        prices: PriceBook | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`is_shared`: other gateways write the store too. `clock`: seconds since 1970."""
        self.book = book
        self.prices = PriceBook() if prices is None else prices
        self._amounts = Amounts(self.prices, book.today)
        self._clock = clock
        self.ledger = BudgetLedger(book, self._amounts, self.prices.version)
        self.past = PastSpending(self.ledger, book, store, self._amounts, is_shared=is_shared, clock=clock)
        self._reader = Periodic(self.read, LOOK_S, "read what budgets have spent")

    async def start(self) -> None:
        """Read past usage before any call is admitted, as far as the store can be read."""
        await self.read()
        self._reader.start()

    async def stop(self) -> None:
        await self._reader.stop()

    async def read(self) -> None:
        """Read the stored usage, without tenants that were deleted in earlier months."""
        for tenant in self.ledger.groups.deleted_before(self.book.today()[:7]):
            self.put_group(tenant, None)
        await self.past.read()

    # -- limits --------------------------------------------------------------------------------------------

    def put(self, holder: Holder, limits: BudgetLimits) -> None:
        """Set the budgets of a holder; no limits remove its budgets."""
        if limits == BudgetLimits():
            self.ledger.accounts.pop(holder, None)
            return
        account = self.ledger.accounts.setdefault(holder, BudgetAccount(limits))
        account.limits, before = limits, account.tallies
        self.ledger.touched.add(holder)
        account.tallies = {unit: before.get(unit) or BudgetTally() for unit in limits.units()}
        self.past.count(holder, account.tallies.keys() - before.keys())

    def put_group(self, tenant: str, group: str | None) -> None:
        """Set the tenant's group. Its budgets count the usage of its tenants this month, even before they joined."""
        reserved = self.ledger.outstanding.get(tenant, NOTHING_RESERVED)
        for holder, sign in zip(self.ledger.groups.move(tenant, group), (-1, 1), strict=True):
            if holder is not None and holder in self.ledger.accounts:
                tallies = self.ledger.accounts[holder].tallies
                for unit, before in tallies.items():
                    tallies[unit] = BudgetTally(reserved=max(0, before.reserved + sign * part_of(reserved, unit)))
                self.past.count(holder, tallies)

    def tenant_deleted(self, tenant: str) -> None:
        """Keep counting the usage and the running calls of a deleted tenant for its group until the month ends.
        Otherwise a group would get budget back for every tenant that it deletes.
        """
        self.ledger.groups.delete(tenant, self.book.today()[:7])

    def forget_key(self, key: str) -> None:
        """Remove the budgets of a deleted key."""
        for holder in [holder for holder in self.ledger.accounts if holder[1] == key]:
            self.put(holder, BudgetLimits())

    # -- calls ---------------------------------------------------------------------------------------------

    def spent_by(self, claim: BudgetClaim) -> Overrun | None:
        """The budget that the prompt does not fit into, of several the last one to reset; None if it fits into all."""
        if not self.ledger.accounts:
            return None
        over = [
            Overrun(use.renewed_at_s - self._clock(), LIMIT_KINDS[use.unit, use.period])
            for holder in self.ledger.holders(claim.tenant, claim.key)
            for use in self.ledger.uses(holder)
            if self._amounts.exceeds(use, claim.model, claim.prompt_tokens)
        ]
        return max(over, default=None)

    def reserve(self, claim: BudgetClaim) -> Reserved:
        """Reserve the expected usage of a call, and return it; `ended` releases it."""
        reserved = self.expected(claim)
        self.ledger.reserve(claim.tenant, claim.key, reserved)
        return reserved

    def with_output(self, claim: BudgetClaim) -> BudgetClaim:
        """The claim of a call that has budgets, with its expected output: its tenant's mean, or the call's limit."""
        account = self.ledger.accounts[self.ledger.holders(claim.tenant, claim.key)[0]]
        mean = account.output_tokens / account.calls if account.calls else OUTPUT_TOKENS_UNKNOWN
        return claim._replace(output_tokens=min(round(mean), claim.output_tokens))

    def expected(self, claim: BudgetClaim) -> Reserved:
        """The tokens of a call with this prompt and output, and their cost."""
        cost = self._amounts.cost(claim.model, claim.prompt_tokens, claim.output_tokens)
        return claim.prompt_tokens + claim.output_tokens, cost

    def ended(self, trace: CallTrace) -> None:
        """Release the reservation of an ended call, which the usage book has counted before."""
        if trace.reserved != NOTHING_RESERVED and trace.tenant_id is not None:
            self.ledger.reserve(trace.tenant_id, trace.key_id, (-trace.reserved[0], -trace.reserved[1]))
            if trace.usage is not None:
                for holder in self.ledger.holders(trace.tenant_id, trace.key_id):
                    account = self.ledger.accounts[holder]
                    account.calls += 1
                    account.output_tokens += trace.usage.output_tokens
            trace.reserved = NOTHING_RESERVED
