"""What the order adds to a request's latency: how long one that need not wait is in the queue, by where it enters.

    python tests/benchmarks/workers/latency.py [--rounds 3] [--seconds 3]

One worker alone, then two: all requests at the leader, all at the follower. Loads: 100 and 500 answers a second, and 64
connections that ask again at once. The backend takes all at once, so what is measured is the way to the Scheduler and
back, and the turns of event loops in between. The leader has the highest real-time priority where that is allowed,
because with cores of its own it would not wait for the load generator.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
RELAY = HERE.parent / "relay"
sys.path.insert(0, str(RELAY))

from bench import fairlead, free_port, process, tree  # noqa: E402

LOADS = {"100/s": "-r 100 -c 64", "500/s": "-r 500 -c 64", "saturated": "-c 64 -R 0.02"}
CONNECT_S = 0.3  # the other worker is stopped for so long, while connections are made
JOIN_S = 2.0
WARM_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    subprocess.run(["make", "-s", "-C", str(RELAY)], check=True)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        folder = Path(directory)
        backend = free_port()
        mock = [str(RELAY / "bin/mock_backend"), "-p", str(backend)]
        stack.enter_context(process(mock, port=backend, log=folder / "log"))
        gateways = {count: start_gateway(stack, folder, backend, count) for count in (1, 2)}
        for _ in range(options.rounds):
            for load, arguments in LOADS.items():
                for name, count, at in (("one worker", 1, 0), ("at the leader", 2, 0), ("at the follower", 2, 1)):
                    port, pids = gateways[count]
                    running = start_load(arguments, port, options.seconds, [pid for pid in pids if pid != pids[at]])
                    waits = read_waits_of(folder, pids[at], options.seconds)
                    running.wait()
                    found.setdefault((load, name), []).append((percentile(waits, 0.5), percentile(waits, 0.99)))
                    print(load, name, len(waits), *found[load, name][-1], flush=True)
    print(f"\n{'load':12}{'where':18}{'p50 us':>10}{'p99 us':>10}")
    for (load, name), runs in found.items():
        p50, p99 = (statistics.median(run[index] for run in runs) for index in (0, 1))
        print(f"{load:12}{name:18}{p50:10.0f}{p99:10.0f}")


def start_gateway(stack: ExitStack, folder: Path, backend: int, count: int) -> tuple[int, list[int]]:
    """Its port, and its workers' processes, worker 0 first."""
    port, directory = free_port(), folder / f"gateway{count}"
    directory.mkdir()
    arguments = fairlead(directory, port, backend)[1:]
    config = directory / "fairlead.yaml"
    config.write_text(config.read_text() + f"workers: {count}\naccess_log: {{enabled: false}}\n")
    command, waits = [sys.executable, str(HERE / "timed_gateway.py"), *arguments], {"WAITS": str(folder)}
    pid = stack.enter_context(process(command, port=port, log=folder / "log", environment=waits))
    time.sleep(JOIN_S)
    pids = tree(pid)[1:] or [pid]
    with suppress(PermissionError):
        os.sched_setscheduler(pids[0], os.SCHED_RR, os.sched_param(3))
    return port, pids


def start_load(load: str, port: int, seconds: float, others: list[int]) -> subprocess.Popen[bytes]:
    """`others` are stopped while the connections are made."""
    command = [str(RELAY / "bin/loadgen"), "-u", f"127.0.0.1:{port}", "-N", *load.split(), "-w", str(WARM_S)]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    running = subprocess.Popen([*command, "-d", str(seconds), "-g", "2"], stdout=subprocess.DEVNULL)
    time.sleep(CONNECT_S)
    for other in others:
        os.kill(other, signal.SIGCONT)
    time.sleep(WARM_S - CONNECT_S)
    return running


def read_waits_of(folder: Path, pid: int, seconds: float) -> list[float]:
    """The waits of this worker's requests in us, from now on."""
    read_waits(folder, pid)
    time.sleep(seconds * 0.9)
    return read_waits(folder, pid)


def read_waits(folder: Path, pid: int) -> list[float]:
    """Those since it was last asked."""
    path = folder / str(pid)
    os.kill(pid, signal.SIGUSR1)
    while not path.exists():
        time.sleep(0.01)
    waits = json.loads(path.read_text())
    path.unlink()
    return waits


def percentile(values: list[float], ratio: float) -> float:
    return round(sorted(values)[int(ratio * len(values))], 1) if values else 0.0


if __name__ == "__main__":
    main()
