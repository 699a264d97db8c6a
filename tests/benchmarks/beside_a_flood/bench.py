"""What a flood costs each chat beside it, by simulation: the same chats alone and beside a flood, one by one.

    python -m tests.benchmarks.beside_a_flood.bench [--runs 8] [--seconds 200]

The scene and the gateway are those of B2 (docs/results/tables.md). Prints the time to first token of all chats,
alone and beside the flood, the delay of each (beside less alone), what of it is waiting here and what the engine's, and
the tokens a second of all. A run is a seed of its own.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from backends.engine.engine import REQUESTS_RUNNING_MAX
from backends.simulation.world import World
from policies.scheduler_protocol import SchedulerProtocol
from policies.types import Action, Dispatch, Request
from tests.evidence.measures import quantile
from tests.evidence.slo_cluster import ENGINE, SCENES, STEP_ENVELOPE, SYSTEMS
from tests.evidence.slo_engines import make_engine
from tests.evidence.slo_scenes import BESIDE_LOAD, FAIR, PATIENT

RATIOS = (0.5, 0.9, 0.95, 0.99)


class Chat(NamedTuple):
    """Seconds until a chat's first token, and those of them that it waited here."""

    ttft_s: float
    waited_s: float


class Watched:
    """A scheduler that remembers how long each request waited, by its arrival."""

    def __init__(self, scheduler: SchedulerProtocol) -> None:
        self._scheduler = scheduler
        self.tokens, self.finished, self.told = scheduler.tokens, scheduler.finished, scheduler.told
        self.next_wakeup = scheduler.next_wakeup
        self._arrived_at: dict[str, float] = {}
        self.waited_s: dict[float, float] = {}

    def submit(self, request: Request, now: float) -> None:
        self._arrived_at[request.id] = now
        self._scheduler.submit(request, now)

    def poll(self, now: float) -> list[Action]:
        actions = self._scheduler.poll(now)
        for action in actions:
            if isinstance(action, Dispatch):
                arrived_at = self._arrived_at[action.request_id]
                self.waited_s[arrived_at] = now - arrived_at
        return actions


def run(system_name: str, only: str | None, seconds: float, number: int) -> tuple[dict[float, Chat], int, float]:
    """Every chat by its arrival, all tokens, and when the last of them came."""
    scene, system = SCENES["flood"], SYSTEMS[system_name]
    watched = Watched(system.make(scene, number))
    world = World(
        watched,
        {"engine-1": make_engine(ENGINE, system.order, STEP_ENVELOPE)},
        requests_running_max=REQUESTS_RUNNING_MAX,
        metrics_every_s=system.metrics_every_s,
        steps=system.steps,
    )
    records = list(world.run(scene.arrivals(BESIDE_LOAD, asks_s=seconds, number=number, only=only)))
    chats = {
        each.arrived_at: Chat(each.first_token_latency_s, watched.waited_s[each.arrived_at])
        for each in records
        if each.tenant_id.startswith("critical") and each.first_token_latency_s is not None
    }
    return chats, sum(each.prompt_tokens + each.output_tokens for each in records), world.now


def pair(system_name: str, seconds: float, number: int) -> tuple[list[tuple[Chat, Chat]], float]:
    alone, _, _ = run(system_name, "critical", seconds, number)
    beside, tokens, ended_at = run(system_name, None, seconds, number)
    pairs = [(alone[at], beside[at]) for at in sorted(alone.keys() & beside.keys())]
    return pairs, tokens / ended_at


def report(system_name: str, results: Sequence[tuple[list[tuple[Chat, Chat]], float]]) -> None:
    pairs = [each for found, _ in results for each in found]
    alone, beside = [a.ttft_s for a, _ in pairs], [b.ttft_s for _, b in pairs]
    values_of = {
        "alone, s": alone,
        "beside, s": beside,
        "delay, s": [b.ttft_s - a.ttft_s for a, b in pairs],
        "waited here, s": [b.waited_s for _, b in pairs],
        "in engine, s": [b.ttft_s - b.waited_s for _, b in pairs],
        "delay in engine, s": [b.ttft_s - b.waited_s - (a.ttft_s - a.waited_s) for a, b in pairs],
    }
    print(f"{system_name}: {len(pairs)} chats, {sum(rate for _, rate in results) / len(results):.0f} tokens/s")
    print(f"{'':24}" + "".join(f"{f'p{ratio * 100:g}':>9}" for ratio in RATIOS))
    for name, values in values_of.items():
        print(f"{name:24}" + "".join(f"{quantile(values, ratio):9.3f}" for ratio in RATIOS))
    waiting = sum(b.waited_s - a.waited_s for a, b in pairs) / sum(b.ttft_s - a.ttft_s for a, b in pairs)
    print(f"of the delay, waiting here is {waiting:.0%}")
    print(f"{'ratio':24}" + "".join(f"{quantile(beside, r) / quantile(alone, r):9.2f}" for r in RATIOS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--system", default=PATIENT, choices=(PATIENT, FAIR))
    options = parser.parse_args()
    report(options.system, [pair(options.system, options.seconds, number) for number in range(options.runs)])


if __name__ == "__main__":
    main()
