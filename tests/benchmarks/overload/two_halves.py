"""When the gateway itself is short of CPU: do those that ask for little get it, beside those that ask for too much?

    python tests/benchmarks/overload/two_halves.py [--rate 3200] [--modest 20] [--seconds 6] [--rounds 1]
                                                      [--tenant-queue N] [--beside CHECKOUT] [--replicas 2]

50 tenants by API key send short calls (whole answers) to a backend that answers at once, on a schedule, whatever
becomes of their calls (open loop): 25 modest ones `--modest` calls a second each, 25 greedy ones all that is missing to
`--rate`. The gateway has CPU 1 for itself, backend and load generators (C, those of ../relay) share CPU 0. Latencies
count from when a call was due. Before it, the modest ones run alone: what they are served then is their measure.
--tenant-queue is the queue limit of a tenant, beyond which its calls get 429; the default one is not reached here.
--beside runs the fairlead of another checkout (a worktree of an older commit) in turn with this one, as "beside".
--replicas runs so many gateways with one order, all on CPU 1, each with its part of the calls; their Redis is on CPU 0.
Of a half, the latencies are those of the replica with the worst.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

RELAY = Path(__file__).resolve().parents[1] / "relay"
sys.path[:0] = [str(RELAY), str(RELAY.parents[1] / "integration")]

import bench  # noqa: E402
from bench import fairlead, fairlead_of, free_port, pinned, process, tree  # noqa: E402
from redis_server import RedisServer  # noqa: E402

Command = Callable[[Path, int, int], list[str]]

TENANTS = 25  # in each half
CONNECTIONS = 4000  # of each half, at most: what is due and finds none waits in the generator
WARM_S = 6.0  # thousands of connections have to be made first
SECRET = "0123456789abcdef" * 2
JOIN_S = 5.0  # a replica that has just started has joined the order by then


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=float, default=3200.0, help="calls a second of all tenants (default 3200)")
    parser.add_argument("--modest", type=float, default=20.0, help="calls a second of a modest tenant (default 20)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a measurement (default 6)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tenant-queue", type=int, default=2000, help="queue.tenant_requests_max (default 2000)")
    parser.add_argument("--beside", type=Path, help="another checkout of fairlead")
    parser.add_argument("--replicas", type=int, default=1, help="gateways with one order, on one CPU (default 1)")
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(RELAY)], check=True)
    bench.FAIRLEAD += f"queue: {{{{tenant_requests_max: {options.tenant_queue}}}}}\n"
    systems = {"": fairlead}
    if options.beside is not None:
        systems["beside: "] = fairlead_of(options.beside)
    modest = options.modest * TENANTS
    for _ in range(options.rounds):
        for name, command in systems.items():
            with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
                started = gateways(Path(directory), stack, command, options.replicas)
                (alone,) = measure(started, {"modest": modest}, options.seconds)
                both = measure(started, {"modest": modest, "greedy": options.rate - modest}, options.seconds)
            show(f"{name}modest, alone", alone)
            for half in both:
                show(f"{name}{half['label']}", half)
            ratio = both[0]["e2e_p99"] / alone["e2e_p99"]
            print(f"{name}{sum(half['req_s'] for half in both):.0f} calls/s, modest p99 beside over alone: {ratio:.1f}")


def gateways(directory: Path, stack: ExitStack, command: Command, count: int) -> dict[int, int]:
    """Ports and processes of the gateways, with a backend behind them, until the stack ends."""
    backend = free_port()
    mock = [str(RELAY / "bin/mock_backend"), "-p", str(backend)]
    stack.enter_context(process(mock, cpu=0, log=directory / "backend.log", port=backend))
    if count == 1:
        return dict([gateway(directory, stack, command, backend)])
    redis = stack.enter_context(RedisServer(directory)).url
    alone, started = bench.FAIRLEAD, {}
    for number in range(count):
        folder = directory / str(number)
        folder.mkdir()
        member = {"name": f"replica-{number}", "host": "127.0.0.1", "port": (peer := free_port())}
        section = {
            "state": {"redis": {"url": redis}},
            "cluster": {**member, "advertise": f"127.0.0.1:{peer}"},
            "auth": {"mode": "open", "secret": SECRET},
        }
        # Each line of JSON is YAML; the template takes doubled braces.
        lines = (f"{name}: {json.dumps(value)}\n" for name, value in section.items())
        bench.FAIRLEAD = alone + "".join(lines).replace("{", "{{").replace("}", "}}")
        started |= dict([gateway(folder, stack, command, backend)])
    bench.FAIRLEAD = alone
    time.sleep(JOIN_S)
    return started


def gateway(directory: Path, stack: ExitStack, command: Command, backend: int) -> tuple[int, int]:
    """Its port and its process, until the stack ends."""
    port = free_port()
    serve = command(directory, port, backend)
    return port, stack.enter_context(process(serve, cpu=1, log=directory / "log", port=port))


def measure(started: dict[int, int], rates: dict[str, float], seconds: float) -> list[dict]:
    """Each half's calls at its rate, all at once, evenly over the gateways."""
    running: dict[str, list[subprocess.Popen[str]]] = {label: [] for label in rates}
    for number, (label, rate) in enumerate(rates.items()):
        for port, pid in started.items():
            load = ["-u", f"127.0.0.1:{port}", "-l", label, "-N", "-n", "1", "-b", "200", "-c", str(CONNECTIONS)]
            load += ["-r", str(rate / len(started)), "-k", f"{number * TENANTS}:{TENANTS}"]
            load += ["-w", str(WARM_S), "-d", str(seconds), "-g", "1", "-P", ",".join(map(str, tree(pid)))]
            command = pinned([str(RELAY / "bin/loadgen"), *load], cpu=0)
            running[label].append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return [
        half_of([json.loads(each.communicate()[0]) for each in children], rates[label])
        for label, children in running.items()
    ]


def half_of(parts: list[dict], rate: float) -> dict:
    """The figures of a half, whose calls went to several gateways."""
    half = dict(max(parts, key=lambda each: each["e2e_p99"]))
    for figure in ("req_s", "cpu_pct", "err_status"):
        half[figure] = sum(each[figure] for each in parts)
    half["served"] = half["req_s"] / rate
    half["refused"] = half["err_status"] / half["win_s"] / rate
    return half


def show(name: str, half: dict) -> None:
    print(
        f"{name:22} served {half['served']:6.1%} of its demand, refused {half['refused']:6.1%}, "
        f"p50 {half['e2e_p50'] / 1000:.0f} ms, p99 {half['e2e_p99'] / 1000:.0f} ms, "
        f"gateway {half['cpu_pct']:.0f} % CPU",
        flush=True,
    )


if __name__ == "__main__":
    main()
