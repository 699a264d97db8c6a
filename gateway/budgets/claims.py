"""BudgetClaims: which calls fit into the budgets of all processes of one order, which share their counts.

The leader admits calls to budgets for all processes. A follower asks the leader before each call whose tenant or key
has a budget. With the question it reports the spending and reservations of these budgets so far, so that nothing is
admitted twice. Every EXCHANGE_S it also reports all counts. A single process leads itself.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final

import msgspec

from gateway.budgets.accounts import Unit, named_tally
from gateway.budgets.budgets import BudgetClaim, Budgets, Overrun
from gateway.budgets.ledger import NOTHING_RESERVED, Reserved, Spent
from gateway.others import Others
from gateway.store.base import StoreFull, StoreUnavailable

EXCHANGE_S: Final = 0.25
GONE_S: Final = 3.0  # a process that tells nothing for so long reserves nothing more; as rule 17 has it of slots


class BudgetReport(msgspec.Struct, frozen=True, array_like=True):
    """The report of one process on its spending and reservations (`BudgetLedger.spent_here`), with new claims (its
    calls that ask for room in their budgets). It covers all holders of budgets if `is_whole`, otherwise only the
    holders that the claims are for. Costs are by the prices of version `priced_by`.
    """

    member: str
    writer: str
    is_whole: bool
    priced_by: str
    spent: Spent
    reserved: Mapping[str, int]
    claims: tuple[BudgetClaim, ...] = ()


class BudgetSums(msgspec.Struct, frozen=True, array_like=True):
    """The leader's answer to a BudgetReport: the spending and the reservations of all other processes, for the holders
    (tenants, keys and groups) that the report covers. The spending is by writer (the process that counted it).
    `overruns` has one answer to each claim (a call that asks for room in its budgets) of the report: the budget that it
    would overrun, or None, which grants the claim. Costs are by the prices of version `priced_by`.
    """

    priced_by: str
    spent: Mapping[str, Spent]
    reserved: Mapping[str, int]
    overruns: tuple[Overrun | None, ...]


# As JSON, whose integers have no largest value: costs are in picos.
_pack_counts: Final = msgspec.json.Encoder().encode
_REPORT: Final = msgspec.json.Decoder(BudgetReport)
_SUMS: Final = msgspec.json.Decoder(BudgetSums)


class BudgetClaims:
    """The admission of calls to budgets that several processes share. A follower asks the leader for each of its calls;
    the leader decides for all processes. Mutable.
    """

    def __init__(self, budgets: Budgets, writer: str, others: Others) -> None:
        """`writer` is the name under which this process counts usage."""
        self.budgets = budgets
        self._writer = writer
        self._others = others
        self._waiting: list[_Waiting] = []  # for the leader's answer
        self._is_asked = asyncio.Event()
        self._told_all_at = -inf
        self.lead()
        others.services["budgets"] = self._told

    def lead(self) -> None:
        """Begin to lead, without knowledge of what the other processes have spent and reserved."""
        self._spent: dict[str, dict[str, dict[str, int]]] = {}  # by writer, by day, by tally
        self._priced_by: dict[str, str] = {}  # by writer: the version of the prices of its costs
        self._reserved: dict[str, Counter[str]] = {}  # by member, by tally
        self._told_at: dict[str, float] = {}  # by member
        self.budgets.ledger.reserved_elsewhere = self._sum = Counter[str]()

    async def claim(self, claim: BudgetClaim) -> Reserved | Overrun:
        """Reserve the expected usage of a call if its prompt fits, whether this process or the leader decides.
        `Budgets.ended` releases the reservation.
        """
        budgets = self.budgets
        over = budgets.spent_by(claim)
        if over is not None:
            return over
        if not budgets.ledger.holders(claim.tenant, claim.key):
            return NOTHING_RESERVED
        claim = budgets.with_output(claim)
        if not self._others.is_leading:
            with suppress(StoreUnavailable):  # then what is known here decides
                over = await self._ask(claim)
        return budgets.reserve(claim) if over is None else over

    # -- while it follows ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange counts with the leader, at once while calls wait; one message at a time, to keep them in order."""
        while True:
            waiting, self._waiting = [each for each in self._waiting if not each[1].done()], []
            self._is_asked.clear()
            if self._others.is_leading:
                _answer(waiting, [None] * len(waiting))
            else:
                await self._exchange(waiting)
            # Calls that were granted reserve here what they claimed, before the next report says what is reserved.
            await asyncio.sleep(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(EXCHANGE_S):
                    await self._is_asked.wait()

    async def _ask(self, claim: BudgetClaim) -> Overrun | None:
        answer: asyncio.Future[Overrun | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, answer))
        self._is_asked.set()
        return await answer

    async def _exchange(self, waiting: "list[_Waiting]") -> None:
        budgets, claims = self.budgets, tuple(claim for claim, _ in waiting)
        now = asyncio.get_running_loop().time()
        is_whole = now - self._told_all_at >= EXCHANGE_S
        named = {holder for claim in claims for holder in budgets.ledger.holders(claim.tenant, claim.key)}
        counts = budgets.ledger.spent_here(None if is_whole else named)
        try:
            body = await self._others.ask_leader(
                "budgets",
                _pack_counts(
                    BudgetReport(self._others.name, self._writer, is_whole, budgets.ledger.priced_by, *counts, claims)
                ),
            )
        except (StoreUnavailable, StoreFull) as error:
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(StoreUnavailable(str(error)))
            return
        sums = _SUMS.decode(body)
        self._told_all_at = now if is_whole else self._told_all_at
        for writer, spent in sums.spent.items():
            budgets.ledger.spent_elsewhere(writer, spent, sums.priced_by)
        budgets.ledger.reserved_elsewhere = {**({} if is_whole else budgets.ledger.reserved_elsewhere), **sums.reserved}
        _answer(waiting, sums.overruns)

    # -- while it leads ----------------------------------------------------------------------------------------

    async def _told(self, body: bytes) -> bytes:
        """A follower's report; the answer is what all others have, and whether its claims are granted."""
        if not self._others.is_leading:
            raise StoreUnavailable("this process does not lead")
        report, now = _REPORT.decode(body), asyncio.get_running_loop().time()
        self._told_at[report.member] = now
        for member in [each for each, at in self._told_at.items() if now - at > GONE_S]:
            self.gone(member)
        self.budgets.ledger.spent_elsewhere(report.writer, report.spent, report.priced_by)
        self._priced_by[report.writer] = report.priced_by
        spent = self._spent.setdefault(report.writer, {})
        for day, by_holder in report.spent.items():
            spent[day] = {**({} if report.is_whole else spent.get(day, {})), **by_holder}
        if report.is_whole:
            self._reserve(report.member, dict.fromkeys(self._reserved.get(report.member, ()), 0))
        self._reserve(report.member, report.reserved)
        overruns = tuple(self._claimed(report.member, claim) for claim in report.claims)
        return _pack_counts(self._sums_for(report, overruns))

    def gone(self, member: str) -> None:
        """A process has ended: drop its reservations. Its spending stays."""
        self._told_at.pop(member, None)
        self._reserve(member, dict.fromkeys(self._reserved.get(member, ()), 0))

    def _claimed(self, member: str, claim: BudgetClaim) -> Overrun | None:
        over = self.budgets.spent_by(claim)
        if over is None:
            tokens, cost = self.budgets.expected(claim)
            known, tallies = self._reserved[member], self.budgets.ledger.tally_names(claim.tenant, claim.key)
            expected = {name: tokens if unit is Unit.TOKENS else cost for name, unit in tallies.items()}
            self._reserve(member, {name: known[name] + amount for name, amount in expected.items()})
        return over

    def _reserve(self, member: str, reserved: Mapping[str, int]) -> None:
        known = self._reserved.setdefault(member, Counter())
        for name, amount in reserved.items():
            self._sum[name] += amount - known[name]
            known[name] = amount
            for sums in (self._sum, known):
                if not sums[name]:
                    del sums[name]

    def _sums_for(self, report: BudgetReport, overruns: tuple[Overrun | None, ...]) -> BudgetSums:
        named = {holder for claim in report.claims for holder in self.budgets.ledger.holders(claim.tenant, claim.key)}
        spent, reserved = self.budgets.ledger.spent_here(None if report.is_whole else named)
        names = {*self._sum, *reserved} if report.is_whole else set(reserved)
        theirs = self._reserved[report.member]
        others = {name: self._sum[name] - theirs[name] + reserved.get(name, 0) for name in names}
        wanted = None if report.is_whole else names
        by_writer: dict[str, Spent] = {
            writer: {day: self._told_by(writer, amounts, wanted) for day, amounts in days.items()}
            for writer, days in self._spent.items()
            if writer != report.writer
        }
        return BudgetSums(self.budgets.ledger.priced_by, {self._writer: spent, **by_writer}, others, overruns)

    def _told_by(self, writer: str, amounts: Mapping[str, int], wanted: set[str] | None) -> dict[str, int]:
        """Those of this writer's amounts that are by the prices of now, of these tallies; None: of all."""
        names = amounts.keys() if wanted is None else wanted & amounts.keys()
        is_comparable = self._priced_by[writer] == self.budgets.ledger.priced_by
        return {name: amounts[name] for name in names if is_comparable or named_tally(name)[1] is not Unit.COST}


_Waiting = tuple[BudgetClaim, "asyncio.Future[Overrun | None]"]


def _answer(waiting: list[_Waiting], overruns: Sequence[Overrun | None]) -> None:
    for (_, answer), over in zip(waiting, overruns, strict=True):
        if not answer.done():
            answer.set_result(over)
