"""Fails when fairlead has become dearer beside the naive relay than ratios.json says.

    python tests/benchmarks/relay/check.py [--calls] [--record] [--slowed 0.3]

A chunk and a whole answer, in short runs that take turns with the naive relay: their ratio depends little on the
machine and on what else it does. A ratio may be WORSE_MAX above the recorded one. What other programs do makes a try
worse by chance, so one of TRIES tries within the limits is enough; a run of chunks that came in lumps tells nothing.
--record writes the median of all tries into ratios.json. --slowed measures a fairlead that is slowed down by this
share (slowed.py), which has to fail.

Calls of functions and builtins are counted as well, of an answer, of a stream of four events and of a chunk (answer.py,
chunk.py). No neighbour disturbs them: they may be CALLS_WORSE_MAX above the recorded ones, in one try.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

# This file is a program in the folder of bench.py.
import bench

RATIOS = bench.HERE / "ratios.json"
TRIES = 3
WORSE_MAX = 0.15  # of the recorded ratio; the ratio of one try wanders by about half as much on a shared machine
CALLS_WORSE_MAX = 0.05  # of the recorded count; runs with one client differ by 0.5 %
COUNTS = {  # commands that print a count first
    "answer_calls": ["answer.py", "--calls", "--clients", "1", "--answers", "1000", "--top", "0"],
    "stream_calls": ["answer.py", "--calls", "--stream", "--clients", "1", "--answers", "1000", "--top", "0"],
    "chunk_calls": ["chunk.py", "--calls", "--streams", "50"],
    "chunk_with_ids_calls": ["chunk.py", "--calls", "--streams", "50", "--token-ids"],
}
TESTS = {
    "chunk": bench.Test(20_000, "-c 100 -n 100 -w 1.5 -d 2.5 -R 1 -g 3", "cpu_us_per_chunk"),
    "answer": bench.Test(0, "-c 32 -N -w 0.4 -d 1.5 -g 1", "cpu_us_per_req"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--record", action="store_true", help="write the median of all tries into ratios.json")
    parser.add_argument("--slowed", type=float, metavar="SHARE", help="slow fairlead down by this share, on purpose")
    parser.add_argument("--calls", action="store_true", help="count calls alone, which takes seconds")
    options = parser.parse_args()
    if options.slowed is not None:
        bench.SYSTEMS["fairlead"] = slowed(options.slowed)
    if options.record:
        RATIOS.write_text(json.dumps(median(measured()) | counted(), indent=2) + "\n")
        return 0
    bench.DISTURBED_RUNS_MAX = 2  # in all it takes two minutes at most
    recorded = json.loads(RATIOS.read_text())
    missed = more_calls(recorded, counted())
    if not options.calls:
        missed += dearer({name: recorded[name] for name in TESTS}, measured())
    for text in missed:
        print(text)
    return 1 if missed else 0


def median(tries: Iterable[dict[str, float]]) -> dict[str, float]:
    """Of each ratio, over the tries in which it was measured. Exits where one never was, and nothing is recorded."""
    by_name: dict[str, list[float]] = {name: [] for name in TESTS}
    for ratios in tries:
        for name, ratio in ratios.items():
            by_name[name].append(ratio)
    if unmeasured := [name for name, ratios in by_name.items() if not ratios]:
        sys.exit(f"NOT MEASURED {', '.join(unmeasured)}: other programs took the CPU in each try")
    return {name: round(statistics.median(ratios), 3) for name, ratios in by_name.items()}


def dearer(recorded: dict[str, float], tries: Iterator[dict[str, float]]) -> list[str]:
    """What no try had within its limit, in words. Stops at the first try after which that is nothing."""
    best: dict[str, float] = {}
    for ratios in tries:
        best |= {name: min(ratio, best.get(name, ratio)) for name, ratio in ratios.items()}
        missed = [name for name in best if best[name] > recorded[name] * (1 + WORSE_MAX)]
        if not missed and best.keys() == recorded.keys():
            break
    for name in recorded.keys() - best.keys():
        print(f"NOT MEASURED {name}: other programs took the CPU in each try")
    return [f"DEARER {name}: {best[name]:.2f} of the naive relay, recorded {recorded[name]}" for name in missed]


def more_calls(recorded: dict[str, float], counts: dict[str, float]) -> list[str]:
    """The counts that are over their limit, in words."""
    return [
        f"MORE {name}: {count}, recorded {recorded[name]}"
        for name, count in counts.items()
        if count > recorded[name] * (1 + CALLS_WORSE_MAX)
    ]


def counted() -> dict[str, float]:
    """Calls an answer, a stream and a chunk."""
    found = {}
    for name, (program, *arguments) in COUNTS.items():
        command = [sys.executable, str(bench.HERE / program), *arguments]
        found[name] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])
        print(f"{name}: {found[name]}")
    return found


def measured() -> Iterator[dict[str, float]]:
    """For each try, the CPU of fairlead over that of the naive relay, by test."""
    bench.TESTS.update(TESTS)
    subprocess.run(["make", "-s", "-C", str(bench.HERE)], check=True)
    bench.RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-check-") as directory, ExitStack() as stack:
        lab = bench.Lab(Path(directory), stack, one_process=True)
        for _ in range(TRIES):
            runs = list(lab.measure(["naive", "fairlead"], list(TESTS), reps=1))
            if any(bench.errors(run) for run in runs):
                sys.exit("requests went wrong")
            cost = {(run["system"], run["test"]): run[TESTS[run["test"]].unit] for run in runs}
            lumps = {run["test"] for run in runs if run["disturbed"]}
            yield {name: cost["fairlead", name] / cost["naive", name] for name in TESTS if name not in lumps}


def slowed(share: float) -> bench.Command:
    def command(directory: Path, port: int, backend: int) -> list[str]:
        serve = bench.fairlead(directory, port, backend)[1:]
        return [sys.executable, str(bench.HERE / "slowed.py"), str(share), *serve]

    return command


if __name__ == "__main__":
    sys.exit(main())
