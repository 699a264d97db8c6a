"""A chat beside a flood of long prompts that share steps, by how far away the engine is, how unequal its steps are and
how wrong the gateway's model of them. Simulated: the same every time.

    python -m tests.benchmarks.shared_steps.bench
"""

import argparse

from policies.limit import RoomOnly
from tests.simulation.shared_steps import FAST, SLOW, play


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| machine | to the engine | steps longer by | model | inside | TTFT p99 | tokens/s over none |")
    print("|---|---|---|---|---|---|---|")
    for name, machine in (("AMX", FAST), ("no AMX", SLOW)):
        for way_steps, noise, model_by in ((0.5, 0, 1), (1, 0, 1), (3, 0, 1), (3, 0.15, 1), (3, 0, 0.85), (3, 0, 1.2)):
            none = play(machine, RoomOnly, way_steps=way_steps, noise=noise)
            found = play(machine, way_steps=way_steps, noise=noise, model_by=model_by)
            print(
                f"| {name} | {way_steps} steps | {noise:.0%} | {model_by} | {found.inside:.0%} |"
                f" {1e3 * found.ttft_p99_s:.0f} ms | {found.tokens_per_s / none.tokens_per_s:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
