"""When the gateway itself is short of CPU: do those that ask for little get it, beside those that ask for too much?

    python tests/benchmarks/overload/two_halves.py [--rate 3200] [--modest 20] [--seconds 6] [--rounds 1]

50 tenants by API key send short calls (whole answers) to a backend that answers at once, on a schedule, whatever
becomes of their calls (open loop): 25 modest ones `--modest` calls a second each, 25 greedy ones all that is missing to
`--rate`. The gateway has CPU 1 for itself, backend and load generators (C, those of ../relay) share CPU 0. Latencies
count from when a call was due. Before it, the modest ones run alone: what they are served then is their measure.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

RELAY = Path(__file__).resolve().parents[1] / "relay"
sys.path.insert(0, str(RELAY))

from bench import fairlead, free_port, pinned, process, tree  # noqa: E402

TENANTS = 25  # in each half
CONNECTIONS = 4000  # of each half, at most: what is due and finds none waits in the generator
WARM_S = 6.0  # thousands of connections have to be made first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=float, default=3200.0, help="calls a second of all tenants (default 3200)")
    parser.add_argument("--modest", type=float, default=20.0, help="calls a second of a modest tenant (default 20)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a measurement (default 6)")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(RELAY)], check=True)
    modest = options.modest * TENANTS
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            port, pid = gateway(Path(directory), stack)
            (alone,) = measure(port, pid, {"modest": modest}, options.seconds)
            both = measure(port, pid, {"modest": modest, "greedy": options.rate - modest}, options.seconds)
        show("modest, alone", alone)
        for half in both:
            show(half["label"], half)
        print(f"modest p99 beside the greedy over alone: {both[0]['e2e_p99'] / alone['e2e_p99']:.1f}", flush=True)


def gateway(directory: Path, stack: ExitStack) -> tuple[int, int]:
    """Its port and its process, and a backend behind it, until the stack ends."""
    port, backend = free_port(), free_port()
    command = [str(RELAY / "bin/mock_backend"), "-p", str(backend)]
    stack.enter_context(process(command, cpu=0, log=directory / "backend.log", port=backend))
    command = fairlead(directory, port, backend)
    return port, stack.enter_context(process(command, cpu=1, log=directory / "log", port=port))


def measure(port: int, pid: int, rates: dict[str, float], seconds: float) -> list[dict]:
    """Each half's calls at its rate, all at once."""
    running = []
    for number, (label, rate) in enumerate(rates.items()):
        load = ["-u", f"127.0.0.1:{port}", "-l", label, "-N", "-n", "1", "-b", "200", "-c", str(CONNECTIONS)]
        load += ["-r", str(rate), "-k", f"{number * TENANTS}:{TENANTS}", "-w", str(WARM_S), "-d", str(seconds)]
        load += ["-g", "1", "-P", ",".join(map(str, tree(pid)))]
        command = pinned([str(RELAY / "bin/loadgen"), *load], cpu=0)
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    halves = [json.loads(child.communicate()[0]) for child in running]
    for half, rate in zip(halves, rates.values(), strict=True):
        half["served"] = half["req_s"] / rate
        half["refused"] = half["err_status"] / half["win_s"] / rate
    return halves


def show(name: str, half: dict) -> None:
    print(
        f"{name:14} served {half['served']:6.1%} of its demand, refused {half['refused']:6.1%}, "
        f"p50 {half['e2e_p50'] / 1000:.0f} ms, p99 {half['e2e_p99'] / 1000:.0f} ms, gateway {half['cpu_pct']:.0f} % CPU"
    )


if __name__ == "__main__":
    main()
