"""What a flood costs each chat beside it, by simulation: the same chats alone and beside a flood, one by one.

    python tests/benchmarks/beside_a_flood/bench.py [--runs 8] [--seconds 200]

The scene and the gateway are those of B2 (docs/results/slo-simulation.md). Prints the time to first token of all chats,
alone and beside the flood, the delay of each (beside less alone), for how long it waited here of that, and the tokens a
second of all. A run is a seed of its own.
"""

import argparse
from collections.abc import Sequence

from backends.simulation.world import World
from tests.evidence.measures import quantile
from tests.evidence.slo_cluster import ENGINE, SCENES, STEP_ENVELOPE, SYSTEMS
from tests.evidence.slo_engines import make_engine
from tests.evidence.slo_scenes import BESIDE_LOAD, FAIR, PATIENT

RATIOS = (0.5, 0.9, 0.95, 0.99)


def run(system_name: str, only: str | None, seconds: float, number: int) -> tuple[dict[float, float], int, float]:
    """Time to first token of every chat by its arrival, all tokens, and when the last of them came."""
    scene, system = SCENES["flood"], SYSTEMS[system_name]
    world = World(
        system.make(scene, number),
        {"engine-1": make_engine(ENGINE, system.order, STEP_ENVELOPE)},
        metrics_every_s=system.metrics_every_s,
        steps=system.steps,
    )
    records = list(world.run(scene.arrivals(BESIDE_LOAD, asks_s=seconds, number=number, only=only)))
    chats = {each.arrived_at: each.first_token_latency_s for each in records if each.tenant_id.startswith("critical")}
    return chats, sum(each.prompt_tokens + each.output_tokens for each in records), world.now


def pair(system_name: str, seconds: float, number: int) -> tuple[list[tuple[float, float]], float]:
    alone, _, _ = run(system_name, "critical", seconds, number)
    beside, tokens, ended_at = run(system_name, None, seconds, number)
    pairs = [(alone[at], beside[at]) for at in sorted(alone.keys() & beside.keys())]
    return pairs, tokens / ended_at


def report(system_name: str, results: Sequence[tuple[list[tuple[float, float]], float]]) -> None:
    pairs = [each for found, _ in results for each in found]
    alone, beside, delays = [a for a, _ in pairs], [b for _, b in pairs], [b - a for a, b in pairs]
    print(f"{system_name}: {len(pairs)} chats, {sum(rate for _, rate in results) / len(results):.0f} tokens/s")
    print(f"{'':12}" + "".join(f"{f'p{ratio * 100:g}':>9}" for ratio in RATIOS))
    for name, values in (("alone, s", alone), ("beside, s", beside), ("delay, s", delays)):
        print(f"{name:12}" + "".join(f"{quantile(values, ratio):9.3f}" for ratio in RATIOS))
    print(f"{'ratio':12}" + "".join(f"{quantile(beside, r) / quantile(alone, r):9.2f}" for r in RATIOS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--system", default=PATIENT, choices=(PATIENT, FAIR))
    options = parser.parse_args()
    report(options.system, [pair(options.system, options.seconds, number) for number in range(options.runs)])


if __name__ == "__main__":
    main()
