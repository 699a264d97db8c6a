"""D1 to D5: the claims of the DLPM paper, on our own workloads: its traces and engines are not published as data.

Ratios between policies are judged by the paper's direction with a margin, and the bounds of its theorems strictly. The
paper's largest factors are reported beside ours and not judged: they are the best of many workloads.
"""

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from gateway.observability.metrics.service_gap import jain_index
from tests.evidence.experiment import Row, Target, Tolerance, at_least, at_most, more_than, plus_minus
from tests.evidence.prefix_pool import (
    CLIENTS,
    ENGINE,
    PREFIX_WORKLOADS,
    RUNS,
    PrefixOutcome,
    PrefixRun,
    TreeCount,
)
from tests.simulation.fairness_metric import accumulated_service, throughput

QUANTUM = 8_000  # K_u, service of computed tokens: the cost of four uncached prompts
QUANTA = (500, 2_000, 8_000, 32_000)
WORKER_QUANTA = (2_000, 10_000, 40_000)  # K_w
PUBLISHED_JAIN = {2_000: 0.855, 40_000: 0.83}
DLPM = f"dlpm:quantum_service={QUANTUM}"
LPM = "slack:second_key=prefix,slack_service=1e12"  # all tenants are always level
ORDERS = {"DLPM": DLPM, "VTC": "vtc", "LPM": LPM}
ENGINES = 4
WARM_UP_S = 20.0

Measure = Callable[[PrefixOutcome], float]


def speed(outcome: PrefixOutcome) -> float:
    """Return the prompt and output tokens served per second."""
    return throughput(outcome.records, outcome.wall_s)


def latency_s(outcome: PrefixOutcome) -> float:
    """Return the mean seconds from arrival to the last token."""
    return fmean(record.total_latency_s for record in outcome.records if record.total_latency_s is not None)


def hits(outcome: PrefixOutcome) -> float:
    return outcome.hit_ratio


def difference(outcome: PrefixOutcome) -> float:
    """Return the largest difference of two tenants' services while both waited, in service of computed tokens."""
    return outcome.difference


def equality(outcome: PrefixOutcome) -> float:
    """Return Jain's index of the tenants' services, full prompts counted, while all tenants send requests."""
    services = accumulated_service(outcome.records, [WARM_UP_S, outcome.asks_s]).values()
    return jain_index([until - since for since, until in services]) or 0.0


def part_of_bound(outcome: PrefixOutcome, *, engines: int) -> float:
    """Return the largest difference of two tenants that both waited, over 2 D (U + K_u)."""
    longest = max(record.prompt_tokens for record in outcome.records)
    unit = max(longest, 2 * outcome.kv_tokens)  # w_e = 1, w_q = 2
    return outcome.difference / (2 * engines * (unit + QUANTUM))


def _ratio(measure: Measure, one: PrefixOutcome, other: PrefixOutcome) -> float:
    return measure(one) / measure(other)


def _fall(measure: Measure, one: PrefixOutcome, other: PrefixOutcome) -> float:
    return measure(one) - measure(other)


def compared(
    says: str,
    measure: Measure,
    one: PrefixRun,
    other: PrefixRun,
    *,
    published: float | None = None,
    tolerance: Tolerance | None = None,
) -> Row:
    experiments, ours = (one, other), partial(_ratio, measure)
    return Row(says=says, experiments=experiments, measure=ours, published=published, tolerance=tolerance)


def figure(
    says: str,
    experiment: Any,
    measure: Callable[..., float],
    published: float | None = None,
    tolerance: Tolerance | None = None,
) -> Row:
    return Row(says=says, experiments=(experiment,), measure=measure, published=published, tolerance=tolerance)


ONE = {name: PrefixRun(workload="beginnings", fairness=order) for name, order in ORDERS.items()}
_four = partial(PrefixRun, workload="beginnings-4", engines=ENGINES)
D2LPM = _four(fairness=DLPM, placement="d2lpm")
FOUR = {
    "D2LPM": D2LPM,
    "VTC, round robin per tenant": _four(fairness="vtc", placement="tenant-round-robin"),
    "LPM, round robin": _four(fairness=LPM, placement="round-robin"),
    "FCFS, Preble": _four(fairness="fifo", placement="preble"),
    "DLPM, one queue": _four(fairness=DLPM, placement="longest-prefix"),
}
BY_QUANTUM = {
    quantum: PrefixRun(workload="beginnings", fairness=f"dlpm:quantum_service={quantum}") for quantum in QUANTA
}
BY_WORKER_QUANTUM = {
    quantum: PrefixRun(
        workload="unequal-4",
        fairness=DLPM,
        placement=f"d2lpm:quantum_service={quantum}",
        engines=ENGINES,
        until_s=PREFIX_WORKLOADS["unequal-4"].asks_s,
    )
    for quantum in WORKER_QUANTA
}
NO_END = "1e12"
ONE_LOUD = {
    quantum: PrefixRun(
        workload="one-loud-4", fairness=DLPM, placement=f"d2lpm:quantum_service={quantum}", engines=ENGINES
    )
    for quantum in ("10000", NO_END)
}
BOUNDED = {
    workload: PrefixRun(workload=workload, fairness=DLPM, placement=placement, engines=engines)
    for workload, placement, engines in (
        ("beginnings", "least-reserved", 1),
        ("trees", "least-reserved", 1),
        ("beginnings-4", "d2lpm", ENGINES),
        ("trees-4", "d2lpm", ENGINES),
    )
}
BY_CLIENTS = {
    (name, count): PrefixRun(workload=f"clients-{count}", fairness=order)
    for name, order in ORDERS.items()
    for count in CLIENTS
}


def _workload(*names: str, also: str = "") -> str:
    on = f"engines {ENGINE}, chunked prefill; arrivals drawn anew in each of {RUNS} runs, seeded by its number"
    return "; or ".join(f"{name}: {PREFIX_WORKLOADS[name].says}" for name in names) + f"{also}; {on}"


TARGETS: dict[str, Target] = {
    "D1": Target(
        "throughput and latency of DLPM and D2LPM",
        _workload("beginnings", "beginnings-4"),
        (
            compared(
                "throughput: DLPM / VTC", speed, ONE["DLPM"], ONE["VTC"], published=2.87, tolerance=more_than(1.2)
            ),
            compared("throughput: DLPM / LPM", speed, ONE["DLPM"], ONE["LPM"], tolerance=at_least(0.9)),
            *(figure(f"hit rate: {name}", run, hits) for name, run in ONE.items()),
            *(figure(f"throughput, K_u = {quantum:,}", run, speed) for quantum, run in BY_QUANTUM.items()),
            *(figure(f"service difference, K_u = {quantum:,}", run, difference) for quantum, run in BY_QUANTUM.items()),
            compared(
                "service difference: K_u = 2,000 / K_u = 32,000",
                difference,
                BY_QUANTUM[2_000],
                BY_QUANTUM[32_000],
                tolerance=at_most(0.5),
            ),
            *(
                compared(
                    f"throughput, {ENGINES} engines: D2LPM / {name}",
                    speed,
                    D2LPM,
                    run,
                    published=published,
                    tolerance=tolerance,
                )
                for (name, run), published, tolerance in zip(
                    list(FOUR.items())[1:],
                    (2.87, 2.22, None, None),
                    (more_than(1.2), more_than(1.0), None, None),
                    strict=True,
                )
            ),
            *(figure(f"hit rate, {ENGINES} engines: {name}", run, hits) for name, run in FOUR.items()),
            compared("mean latency: Preble / D2LPM", latency_s, FOUR["FCFS, Preble"], D2LPM, published=7.18),
        ),
    ),
    "D2": Target(
        "Jain's index of services against the worker quantum K_w",
        _workload("unequal-4", "one-loud-4"),
        (
            *(
                figure(f"K_w = {quantum:,}", run, equality, PUBLISHED_JAIN.get(quantum))
                for quantum, run in BY_WORKER_QUANTUM.items()
            ),
            Row(
                says=f"fall from K_w = {WORKER_QUANTA[0]:,} to {WORKER_QUANTA[-1]:,}",
                experiments=(BY_WORKER_QUANTUM[WORKER_QUANTA[0]], BY_WORKER_QUANTUM[WORKER_QUANTA[-1]]),
                measure=partial(_fall, equality),
                published=PUBLISHED_JAIN[2_000] - PUBLISHED_JAIN[40_000],
                tolerance=at_most(0.06),
            ),
            compared(
                "throughput, one loud tenant with one text: K_w = 10,000 / without end",
                speed,
                ONE_LOUD["10000"],
                ONE_LOUD[NO_END],
                tolerance=more_than(1.5),
            ),
        ),
    ),
    "D3": Target(
        "sizes of the tree workloads",
        "one tree of height 4",
        tuple(
            figure(f"requests of branch {branch}", TreeCount(branch, 4), float, requests, plus_minus(0.0))
            for branch, requests in ((4, 340.0), (2, 30.0))
        ),
    ),
    "D4": Target(
        "service difference of waiting tenants, as a part of 2 D (U + K_u)",
        _workload(*BOUNDED, "unequal-4"),
        tuple(
            figure(f"{name}, D = {run.engines}", run, partial(part_of_bound, engines=run.engines), 1.0, at_most(1.0))
            for name, run in (*BOUNDED.items(), ("unequal-4", BY_WORKER_QUANTUM[10_000]))
        ),
    ),
    "D5": Target(
        f"throughput with {CLIENTS[0]} to {CLIENTS[-1]} tenants at one total rate",
        _workload("clients-5", also=f"; and the same of {', '.join(map(str, CLIENTS[1:]))} tenants"),
        (
            *(
                compared(f"{count} tenants: {name} / LPM", speed, BY_CLIENTS[name, count], BY_CLIENTS["LPM", count])
                for count in CLIENTS
                for name in ("DLPM", "VTC")
            ),
            *(
                compared(
                    f"{count} tenants: DLPM / VTC",
                    speed,
                    BY_CLIENTS["DLPM", count],
                    BY_CLIENTS["VTC", count],
                    tolerance=more_than(1.0),
                )
                for count in CLIENTS
            ),
        ),
    ),
}
