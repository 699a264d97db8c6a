"""Engines whose size nothing tells beside the same with the size given, before a flood of eight clients a seat and a
quiet tenant of two calls a second, 40 s each, over ten phases of the scrape. Simulated: the same every time.

    python -m tests.benchmarks.sizes.bench [--seats 4,12,64] [--steps] [--whole]
"""

import argparse

from backends.simulation.world import KnownSteps
from tests.simulation.closed_loop import LONG, SHORT, ClosedLoop, engine, percentile

PHASES = 10
HEAD = "| slots | prompts | waiting inside, mean (most) | size given | tokens | quiet p50, s | quiet p99, s |"


def row(seats: int, name: str, *, steps: bool, streamed: bool) -> str:
    options = {"mix": {"short": SHORT, "long": LONG}[name], "steps": KnownSteps(learnt=steps), "is_streamed": streamed}
    pairs = [
        (
            ClosedLoop({"x": engine(seats)}, given=seats, seed=number, **options).play(),
            ClosedLoop({"x": engine(seats)}, phase=(number + 0.5) / PHASES, seed=number, **options).play(),
        )
        for number in range(PHASES)
    ]
    sides = [[pair[side] for pair in pairs] for side in (1, 0)]
    waiting = [
        f"{max(each.waiting_mean('x') for each in side):.2f} ({max(each.inside['x'].most for each in side)})"
        for side in sides
    ]
    kept = min(learnt.tokens / given.tokens for given, learnt in pairs)
    quiet = [sorted(seconds for each in side for seconds in each.ttft_s) for side in sides]
    times = [" / ".join(f"{percentile(each, part):.2f}" for each in quiet) for part in (0.5, 0.99)]
    return f"| {seats:,} | {name} | {waiting[0]} | {waiting[1]} | {kept:.3f} | {times[0]} | {times[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seats", default="4,12,64,256,1024")
    parser.add_argument("--steps", action="store_true", help="step times are learnt from counters")
    parser.add_argument("--whole", action="store_true", help="answers are not streamed")
    asked = parser.parse_args()
    print(HEAD, "|---|---|---|---|---|---|---|", sep="\n")
    for seats in map(int, asked.seats.split(",")):
        for name in ("short", "long") if seats <= 256 else ("short",):
            print(row(seats, name, steps=asked.steps, streamed=not asked.whole), flush=True)


if __name__ == "__main__":
    main()
