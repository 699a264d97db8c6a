"""B1 to B3: the combined effect of tiers, fairness and envelopes. Scenes and systems are those of slo_cluster.py.

B1 is the scenario of a blog post that gives no figures: chats that want a first token in half a second, beside prompts
of 8,000 tokens. B2 and B3 are not published anywhere: B2 is a tenant with few requests beside one that floods, B3 a
cluster at and above its capacity.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from backends.simulation.requests import RequestRecord
from tests.evidence import slo_measures as measures
from tests.evidence.experiment import Row, Target, Tolerance, at_most, more_than
from tests.evidence.measures import quantile
from tests.evidence.slo_cluster import CHAT, SCENES, TUNED_TOKENS, ClusterRun
from tests.evidence.slo_pool import SloOutcome

BESIDE_LOAD = 1.5
BESIDE_S = 60.0
BESIDE_RUNS = 3
NO_GATEWAY, ENGINE_ALONE, FIFO, VLLM, FAIR, PATIENT = (
    "no gateway, short steps",
    "no gateway, FB order, short steps",
    "FIFO, short steps",
    "fairlead, vLLM order, short steps",
    "fairlead, short steps",
    "fairlead, short steps, rejecting none",
)
CLUSTER_LOADS = (1.0, 1.3, 2.0)
CLUSTER_S = 20.0
OURS = "fairlead"
OTHERS = ("least requests", "round robin", "Kubernetes")
REPORTED = ("fairlead, rejecting none", "fairlead, vLLM order", "least requests, FB order")
TIERS = [each.tier.id for each in SCENES["three tiers"].populations]
CHAT_TTFT_S = CHAT.envelope.ttft_s or 0.0


def row(
    says: str,
    experiments: Sequence[ClusterRun],
    measure: Callable[..., float],
    tolerance: Tolerance | None = None,
) -> Row:
    return Row(says=says, experiments=tuple(experiments), measure=measure, tolerance=tolerance)


def beside(scene: str, system: str, only: str | None = None) -> ClusterRun:
    return ClusterRun(
        scene=scene, system=system, load_ratio=BESIDE_LOAD, only=only, asks_s=BESIDE_S, repeats=BESIDE_RUNS
    )


def tier_records(outcome: SloOutcome, tier_id: str) -> list[RequestRecord]:
    return [record for record in outcome.records if record.tenant_id.startswith(tier_id)]


def tier_ttft_s(outcome: SloOutcome, ratio: float, tier_id: str = "critical") -> float:
    """Return a quantile of the served requests' TTFT, in seconds."""
    return quantile([record.first_token_latency_s for record in tier_records(outcome, tier_id)], ratio)


def tier_attainment(outcome: SloOutcome, tier_id: str = "critical") -> float:
    return measures.attainment(outcome, {record.tenant_id for record in tier_records(outcome, tier_id)})


def _ahead(ours: SloOutcome, theirs: SloOutcome) -> float:
    return tier_attainment(ours) - tier_attainment(theirs)


def chat_rows(scene: str) -> Iterator[Row]:
    """Yield the results of the chat and of what runs beside it, by system."""
    yield row("chat alone: TTFT p99, s", [beside(scene, PATIENT, "critical")], partial(tier_ttft_s, ratio=0.99))
    for system in (NO_GATEWAY, ENGINE_ALONE, FIFO, VLLM, FAIR, PATIENT):
        run = [beside(scene, system)]
        for ratio in (0.5, 0.95, 0.99):
            yield row(f"{system}: chat TTFT p{ratio * 100:g}, s", run, partial(tier_ttft_s, ratio=ratio))
        yield row(f"{system}: chat in time", run, tier_attainment)
        yield row(f"{system}: the others in time", run, partial(tier_attainment, tier_id="batch"))


def long_prompt_rows() -> Iterator[Row]:
    scene = "long prompts"
    fair, nothing = beside(scene, FAIR), beside(scene, NO_GATEWAY)
    for system in (FAIR, PATIENT):
        yield row(
            f"{system}: chat TTFT p95 over its target",
            [beside(scene, system)],
            lambda outcome: tier_ttft_s(outcome, 0.95) / CHAT_TTFT_S,
            at_most(2.0),
        )
    yield row(
        "chat in time: fairlead less no gateway",
        [fair, nothing],
        _ahead,
        more_than(0.0),
    )
    yield from chat_rows(scene)


def flood_rows() -> Iterator[Row]:
    scene = "flood"
    alone = beside(scene, PATIENT, "critical")
    for system in (PATIENT, FAIR):
        yield row(
            f"{system}: chat TTFT p99 over that alone",
            [beside(scene, system), alone],
            lambda crowded, quiet: tier_ttft_s(crowded, 0.99) / tier_ttft_s(quiet, 0.99),
            at_most(1.15) if system == PATIENT else None,
        )
    yield from chat_rows(scene)


def cluster_rows() -> Iterator[Row]:
    run = partial(ClusterRun, scene="three tiers", asks_s=CLUSTER_S)
    for load in CLUSTER_LOADS:
        ours = run(system=OURS, load_ratio=load)
        for other in OTHERS:
            pair = ours, run(system=other, load_ratio=load)
            ratio = measures.ratio_of(measures.effective_per_s)
            yield row(f"load {load:g}: requests in time, fairlead / {other}", pair, ratio, more_than(1.0))
            yield row(f"load {load:g}: critical in time, fairlead less {other}", pair, _ahead, more_than(0.0))
    for load in CLUSTER_LOADS:
        for system in (OURS, *OTHERS, *REPORTED):
            one, says = [run(system=system, load_ratio=load)], f"load {load:g}, {system}"
            yield row(f"{says}: requests in time a second", one, measures.effective_per_s)
            for tier_id in TIERS:
                yield row(f"{says}: {tier_id} in time", one, partial(tier_attainment, tier_id=tier_id))


def _workload(scene: str, load: str) -> str:
    return f"{SCENES[scene]}. Load: {load} of what they can do; seeded by the run's number"


_SHORT = f"{BESIDE_LOAD:g}, steps of at most {TUNED_TOKENS} tokens"
TARGETS: dict[str, Target] = {
    "B1": Target(
        "chats beside prompts of 8,000 tokens",
        _workload("long prompts", _SHORT),
        tuple(long_prompt_rows()),
        judged=False,
    ),
    "B2": Target(
        "a chat that asks little beside a flood", _workload("flood", _SHORT), tuple(flood_rows()), judged=False
    ),
    "B3": Target(
        "three tiers on a cluster: requests in time",
        _workload("three tiers", "/".join(f"{load:g}" for load in CLUSTER_LOADS)),
        tuple(cluster_rows()),
        judged=False,
    ),
}
