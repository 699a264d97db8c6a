"""How long `fairlead simulate run` takes for a long trace, and how much memory.

    python tests/benchmarks/simulate/bench.py [CALLS] [POLICY ...]

The trace is made up here: Poisson arrivals at 80 % of what one engine can do, prompts and outputs of lengths as
in the conversations of LMSYS, 50 tenants by Zipf. The run is a process of its own; its peak memory is what the
system says of it. Prints one line per policy, with what half the trace took for comparison: memory should not grow.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from random import Random

CALLS = 100_000
ENGINES = 4
RATE_PER_S = 6.0  # of four engines that serve some 1.9 such calls each
TENANTS = 50
PROMPT_TOKENS_MEAN, OUTPUT_TOKENS_MEAN, TOKENS_MAX = 136, 256, 1000


def write_trace(path: Path, calls: int) -> None:
    rng = Random(7)
    odds = list(accumulate(1 / rank for rank in range(1, TENANTS + 1)))
    at_s = 0.0
    with path.open("w") as file:
        for _ in range(calls):
            at_s += rng.expovariate(RATE_PER_S)
            line = {
                "arrival_s": round(at_s, 6),
                "tenant": f"t{rng.choices(range(TENANTS), cum_weights=odds)[0]}",
                "prompt_tokens": tokens(rng, PROMPT_TOKENS_MEAN),
                "output_tokens": tokens(rng, OUTPUT_TOKENS_MEAN),
            }
            file.write(json.dumps(line) + "\n")


def tokens(rng: Random, mean: int) -> int:
    return min(TOKENS_MAX, 1 + int(rng.expovariate(1 / mean)))


def measure(path: Path, policy: str) -> tuple[float, float]:
    """Seconds and peak MiB of one run."""
    fairlead = [sys.executable, "-c", "from gateway.cli import main; main()"]
    command = [
        *fairlead,
        "simulate",
        "run",
        "--trace",
        str(path),
        "--policy",
        policy,
        "--engines",
        str(ENGINES),
        "--json",
    ]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, f"exit status {status}"
    return time.monotonic() - began, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", type=int, nargs="?", default=CALLS)
    parser.add_argument("policies", nargs="*", metavar="policy", default=["vtc"])
    options = parser.parse_args()
    calls = options.calls
    print("policy     calls  seconds  us/call  peak MiB")
    with tempfile.TemporaryDirectory() as folder:
        for size in (calls // 2, calls):
            path = Path(folder, f"{size}.jsonl")
            write_trace(path, size)
            for policy in options.policies:
                seconds, peak = measure(path, policy)
                print(f"{policy:8} {size:7} {seconds:8.1f} {seconds / size * 1e6:8.0f} {peak:9.0f}", flush=True)


if __name__ == "__main__":
    main()
