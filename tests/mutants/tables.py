"""Do the published tables notice when a mechanism is missing? Breaks the scheduler on purpose, one way at a time.

    python -m tests.mutants.tables [--list] [NAME ...]

Every mutant is one mechanism of policies/ taken out. For each the judged rows that should notice it are run once (by
themselves, on one run of each experiment, with the mutant and without) and it is said which of them killed it: rows
that are in without the mutant and out with it. The exit code is 1 where a mutant survives.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from time import process_time
from typing import Any
from unittest.mock import patch

from policies.accounts.cost import LinearPrice
from policies.accounts.ledger import Charge, Ledger
from policies.fairness.dlpm import DeficitLongestPrefix
from policies.fairness.tree import FairTree
from policies.fairness.vtc import LeastCounterFirst, VirtualTokenCounter, rank_of
from policies.placement.d2lpm import D2lpm
from policies.pool.accounting import Accounting
from policies.pool.backfill import BackfillRound
from policies.scheduler import Scheduler
from tests.evidence.experiment import Row
from tests.evidence.targets import TARGETS
from tests.evidence.vtc_pool import PRICES

RUN = 2  # of five: the middle one of the host's overheads
MEMORY_S = 300.0
Mutation = Callable[[ExitStack], None]
Runs = dict[Any, Any]


def replacing(owner: type, name: str, value: object) -> Mutation:
    return lambda stack: stack.enter_context(patch.object(owner, name, value))


def joined_lifted_only_beside_others(order: VirtualTokenCounter, tenant_id: str, waiting: Any) -> None:
    account = order._account(tenant_id)
    if order._waiting:
        account.counter += max(0.0, order._rank_level() - rank_of(account))
    LeastCounterFirst.joined(order, tenant_id, waiting)


def picked_by_lot(order: LeastCounterFirst, eligible: Callable[[Any], bool], besides: Collection[str] = ()) -> Any:
    accounts = [each for tenant_id, each in order._accounts.items() if each.is_waiting and tenant_id not in besides]
    heads = [account.head() for account in accounts]
    fitting = [head for head in heads if eligible(head)]
    lot = Random(" ".join(head.id for head in heads))  # asked twice, it says the same
    return lot.choice(fitting) if fitting else None


def unsettled_until_the_end(accounting: Accounting, entry: Any) -> None:
    accounting.unsettled.pop(entry.request.id, None)


def charged_without_weights(order: FairTree, tenant: Any, charge: Charge) -> None:
    account_id, node = tenant.id, order.leaf(tenant)
    while node is not None:
        node.order.charged(account_id, *charge)
        account_id, node = node.id, node.outer


def closed_without_refund(ledger: Ledger, entry: Any, *, is_served: bool) -> Charge:
    service, _ = ledger._real_closed(entry, is_served=is_served)
    return service, 0.0


def charged_without_prediction(ledger: Ledger, entry: Any, usage: Any) -> Charge:
    entry.expected_output = 0.0
    return ledger._real_charge(entry, usage)


def without_refund(stack: ExitStack) -> None:
    stack.enter_context(patch.object(Ledger, "_real_closed", Ledger.closed, create=True))
    stack.enter_context(patch.object(Ledger, "closed", closed_without_refund))


def without_prediction(stack: ExitStack) -> None:
    stack.enter_context(patch.object(Ledger, "_real_charge", Ledger.charge, create=True))
    stack.enter_context(patch.object(Ledger, "charge", charged_without_prediction))


def without_memory(stack: ExitStack) -> None:
    """Every five minutes all counters are 0."""
    orders: list[LeastCounterFirst] = []
    begin, poll = LeastCounterFirst.__init__, Scheduler.poll
    forgotten = [0.0]

    def begun(order: LeastCounterFirst) -> None:
        begin(order)
        orders.append(order)

    def polled(scheduler: Scheduler, now: float) -> Any:
        if now // MEMORY_S != forgotten[0]:
            forgotten[0] = now // MEMORY_S
            for order in orders:
                for account in order._accounts.values():
                    account.counter = 0.0
                    if account.is_waiting:
                        order._heap.push(account, order._waiting)
        return poll(scheduler, now)

    stack.enter_context(patch.object(LeastCounterFirst, "__init__", begun))
    stack.enter_context(patch.object(Scheduler, "poll", polled))


def quantum_without_end(kind: type, name: str) -> Mutation:
    """Whatever is configured."""
    begin = kind.__init__

    def begun(order: Any, *arguments: Any, **options: Any) -> None:
        begin(order, *arguments, **options)
        setattr(order, name, 1e12)

    return replacing(kind, "__init__", begun)


def passing_freely(stack: ExitStack) -> None:
    """Whichever request fits goes, however long one waits that does not."""
    stack.enter_context(patch.object(BackfillRound, "may_enter", lambda *_: True))
    stack.enter_context(patch.object(BackfillRound, "_close", lambda *_: None))


# Each mutant, and the rows (by target, and how they begin) that should notice.
MUTANTS: dict[str, tuple[Mutation, tuple[tuple[str, str], ...]]] = {
    "lift": (
        replacing(VirtualTokenCounter, "joined", LeastCounterFirst.joined),
        (("R10", "VTC, middle third: t0 / t1"),),
    ),
    "empty-queue lift": (
        replacing(VirtualTokenCounter, "joined", joined_lifted_only_beside_others),
        (("R14", "lifted to the last"),),
    ),
    "charge at end": (
        replacing(Accounting, "settle", unsettled_until_the_end),
        (("R4", "Table 4 VTC: avg"),),
    ),
    "weight": (
        replacing(FairTree, "charged", charged_without_weights),
        (("R13", "rates against the weights: share of t3"),),
    ),
    "refund": (without_refund, (("R14", "given back"),)),
    "prediction": (without_prediction, (("R2", "Table 5 VTC oracle: avg"), ("R3", "Table 2 avg: VTC / VTC oracle"))),
    "counter memory": (
        without_memory,
        (("R14", "remembered for eight minutes"), ("R10", "LCF, middle third: t0 / t1")),
    ),
    "K_w": (quantum_without_end(D2lpm, "_quantum"), (("D2", "throughput, one loud tenant"),)),
    "choice by lot": (
        replacing(LeastCounterFirst, "pick", picked_by_lot),
        (("R5", "VTC: gap"),),
    ),
    "quantum": (quantum_without_end(DeficitLongestPrefix, "_quantum"), (("D1", "service difference: K_u"),)),
    "output price": (
        lambda stack: stack.enter_context(patch.dict(PRICES, linear=LinearPrice(output=0.0))),
        (("R8", "Fig. 8 VTC: service of t0"), ("R8", "Fig. 8 VTC: service of t1")),
    ),
    "head-of-line": (passing_freely, (("R14", "waited for"),)),
}


def rows(named: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, Row]]:
    for target, begins in named:
        found = [row for row in TARGETS[target].rows if row.says.startswith(begins) and row.band is not None]
        assert len(found) == 1, f"{target}: one judged row begins with {begins!r}, not {len(found)}"
        yield f"{target} {found[0].says}", found[0]


def measured(row: Row, runs: Runs) -> float:
    """The row's figure on one run of each of its experiments; each is run once for all rows."""
    for experiment in row.experiments:
        if experiment not in runs:
            runs[experiment] = experiment.run(min(RUN, experiment.repeats - 1))
    return row.measure(*(runs[experiment] for experiment in row.experiments))


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    with ExitStack() as stack:
        mutation(stack)
        yield


def survives(name: str, whole: Runs) -> bool:
    """Run its rows with and without the mutant, and say which killed it."""
    mutation, named = MUTANTS[name]
    started, killers = process_time(), []
    broken: Runs = {}
    for says, row in rows(named):
        assert row.band is not None
        right = measured(row, whole)
        with mutated(mutation):
            try:
                wrong = measured(row, broken)
            except ZeroDivisionError:  # a tenant got nothing at all
                wrong = float("inf")
        verdict = "killed" if row.band.holds(right) and not row.band.holds(wrong) else "ALIVE"
        killers += [says] if verdict == "killed" else []
        print(f"{verdict:7} {name:17} {says}: {right:.4g}, mutant {wrong:.4g} ({row.band.text})", flush=True)
    print(f"{'':7} {name:17} {process_time() - started:.0f} s of CPU", flush=True)
    return not killers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the names of the mutants and the rows of each")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants; default: all")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in MUTANTS]:
        parser.error(f"there is no mutant {', '.join(map(repr, unknown))}; --list names them")
    names = options.names or list(MUTANTS)
    if options.list:
        for name in names:
            print(f"{name:17} {'; '.join(' '.join(row) for row in MUTANTS[name][1])}")
        return
    whole: Runs = {}
    alive = [name for name in names if survives(name, whole)]
    print(
        f"{len(names) - len(alive)} of {len(names)} mutants are killed" + (": not " if alive else "") + ", ".join(alive)
    )
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
