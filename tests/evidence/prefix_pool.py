"""Runs of the DLPM paper's experiments: locality against fairness.

Engines are those of the catalogue with chunked prefill and a prefix cache. The Scheduler is the gateway's own, made as
from a configuration: price `extend` (cached tokens are free), no prediction, no cap on a tenant's share. No request is
rejected for waiting. Each run draws its arrivals anew.

    beginnings   Poisson requests of equal tenants; each begins with one of its tenant's texts, of equal length and
                 equally likely, and ends with a part of its own
    trees        every tenant requests one tree of thoughts after another, without a pause
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from random import Random

from backends.engine.batching import BATCHING, CHUNK_TOKENS_MAX
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival, RequestRecord
from backends.simulation.world import World
from gateway.config import Config
from gateway.config.scheduling import Scheduling
from gateway.config.sections import QueueSection
from gateway.simulate.choices import Choices
from gateway.simulate.exposure import RunExposure
from gateway.simulate.observer import Observer
from gateway.simulate.report.series import Timeline
from policies.types import Tenant
from tests.simulation.arrivals import merged
from tests.simulation.prefix_workload import Beginnings, Tree, beginnings, tree

ENGINE = "a100-llama2-13b"  # 35,000 tokens of KV: sixteen of the beginnings below
REQUESTS_RUNNING_MAX = 256
PATIENT = Config(
    queue=QueueSection(wait_s_max=86_400, requests_max=1_000_000, tenant_requests_max=1_000_000),
    scheduling=Scheduling.model_validate({"limit": "room"}),  # as the paper's engines, which admit all that fits
)
RUNS = 3


@dataclass(frozen=True, slots=True)
class PrefixWorkload:
    """A workload: its description, its arrivals in order of time, drawn by `rng`, and the seconds for which all tenants
    send.
    """

    says: str
    arrivals: Callable[[Random], Iterator[Arrival]]
    asks_s: float


@dataclass(frozen=True, slots=True)
class PrefixOutcome:
    """The result of one run. `difference` is the largest of two tenants' services while both waited, in service of
    computed tokens; `kv_tokens` are one engine's.
    """

    records: tuple[RequestRecord, ...]
    wall_s: float
    asks_s: float
    hit_ratio: float
    difference: float
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRun:
    """A workload under a policy and a placement, each named as on the command line of `fairlead simulate run`.

    The run stops after `until_s`; requests that have not ended by then have no record.
    """

    workload: str
    fairness: str
    placement: str = "least-reserved"
    engines: int = 1
    until_s: float = float("inf")
    repeats: int = RUNS

    def run(self, number: int) -> PrefixOutcome:
        workload = PREFIX_WORKLOADS[self.workload]
        choices = Choices(
            policies=[self.fairness],
            predictions=["none"],
            placements=[self.placement],
            price="extend",
            share_ratio_max=1.0,
        )
        (policy,) = choices.tried(PATIENT, "", seed=number)
        coefficients = COEFFICIENTS[ENGINE]
        engines = {
            f"engine-{name}": Engine(
                coefficients,
                requests_running_max=REQUESTS_RUNNING_MAX,
                batching=BATCHING["chunked-prefill"](coefficients, coefficients.kv_tokens_max, CHUNK_TOKENS_MAX),
            )
            for name in range(1, self.engines + 1)
        }
        exposure = RunExposure(policy.price, kv_tokens=self.engines * coefficients.kv_tokens_max)
        observer = Observer(
            policy.make_scheduler(), engines=engines, tenant_of=Tenant, exposure=exposure, timeline=Timeline()
        )
        world = World(observer, engines, requests_running_max=REQUESTS_RUNNING_MAX)
        rng = Random(f"{self.workload} {number}")
        records = tuple(takewhile(lambda _: world.now <= self.until_s, world.run(workload.arrivals(rng))))
        gauges = [engine.snapshot() for engine in engines.values()]
        return PrefixOutcome(
            records=records,
            wall_s=world.now,
            asks_s=workload.asks_s,
            hit_ratio=sum(gauge.prefix_hits_total for gauge in gauges)
            / sum(gauge.prefix_queries_total for gauge in gauges),
            difference=observer.difference_max,
            kv_tokens=coefficients.kv_tokens_max,
        )


@dataclass(frozen=True, slots=True)
class TreeCount:
    """Counts the requests of a tree of this height and branch."""

    branch: int
    height: int
    repeats: int = 1

    def run(self, number: int) -> int:
        shape = Tree(self.branch, self.height, 1024, 128, 1.0)
        return len(list(tree("t", shape, at_s=0.0, output_tokens=(1, 1), rng=Random(number))))


def long_beginnings(parts: Sequence[int], shape: Beginnings, *, asks_s: float) -> PrefixWorkload:
    """Make a workload with one tenant per part, which gets its part of the shape's rate."""

    def arrivals(rng: Random) -> Iterator[Arrival]:
        rates = [shape.rate_per_s * part / sum(parts) for part in parts]
        streams = [
            beginnings(f"t{number:02}", replace(shape, rate_per_s=rate), duration_s=asks_s, rng=_apart(rng))
            for number, rate in enumerate(rates)
        ]
        return merged(*streams)

    shares = "in equal parts" if len(set(parts)) == 1 else f"in parts of {', '.join(map(str, parts))}"
    return PrefixWorkload(
        f"{len(parts)} tenants, {shape.rate_per_s:g} req/s (Poisson, {shares}) for {asks_s:g} s; a prompt is one of its"
        f" tenant's {shape.count} texts of {shape.tokens:,} tokens and {_range(shape.end_tokens)} of its own, an output"
        f" {_range(shape.output_tokens)} (all uniform)",
        arrivals,
        asks_s,
    )


def trees(branches: Sequence[int], *, level_s: float, asks_s: float) -> PrefixWorkload:
    """Make a workload with one tenant per branch."""

    def arrivals(rng: Random) -> Iterator[Arrival]:
        streams = [
            _trees(f"t{number}", Tree(branch, 4, 1024, 128, level_s), asks_s, _apart(rng))
            for number, branch in enumerate(branches)
        ]
        return merged(*streams)

    return PrefixWorkload(
        f"{len(branches)} tenants that ask tree after tree of height 4 and branch {', '.join(map(str, branches))} for"
        f" {asks_s:g} s; a level in {level_s:g} s, roots of 1,024 tokens and thoughts of 128, outputs 32-96 (uniform)",
        arrivals,
        asks_s,
    )


def _trees(tenant_id: str, shape: Tree, asks_s: float, rng: Random) -> Iterator[Arrival]:
    tree_s = shape.height * shape.level_s
    at_s = rng.uniform(0.0, tree_s)
    while at_s < asks_s:
        yield from tree(tenant_id, shape, at_s=at_s, output_tokens=(32, 96), rng=rng)
        at_s += tree_s


def _range(numbers: tuple[int, int]) -> str:
    return "-".join(map(str, numbers))


def _apart(rng: Random) -> Random:
    """Return a generator of its own for a stream that is drawn lazily beside others."""
    return Random(rng.getrandbits(64))


# Short ends: uncached beginnings are most of the work. Long ends: the cache matters less, and service grows faster.
SHORT = Beginnings(4, 2048, end_tokens=(32, 160), output_tokens=(16, 64), rate_per_s=10.0)
LONG = Beginnings(4, 2048, end_tokens=(256, 768), output_tokens=(64, 192), rate_per_s=40.0)
ONE_TEXT = replace(LONG, count=1, rate_per_s=24.0)
CLIENTS = (5, 10, 20, 50)
PREFIX_WORKLOADS: dict[str, PrefixWorkload] = {
    "beginnings": long_beginnings([1] * 20, SHORT, asks_s=120.0),
    "beginnings-4": long_beginnings([1] * 20, replace(SHORT, rate_per_s=40.0), asks_s=60.0),
    "unequal-4": long_beginnings([1, 1, 1, 1, 2, 2, 2, 2, 4, 4], LONG, asks_s=150.0),
    "one-loud-4": long_beginnings([12, 1, 1, 1, 1], ONE_TEXT, asks_s=20.0),
    "trees": trees((4, 4, 4, 2, 2, 2), level_s=5.0, asks_s=60.0),
    "trees-4": trees((4,) * 6 + (2,) * 6, level_s=5.0, asks_s=30.0),
    **{f"clients-{count}": long_beginnings([1] * count, SHORT, asks_s=120.0) for count in CLIENTS},
}
