"""What a second worker gives on the same machine, and what it costs: chunks and answers a second, and CPU.

    python tests/benchmarks/workers/bench.py [--workers 1,2] [--rounds 3] [--seconds 3] [--share 0.3]

Gateways with each number of workers stand before one backend and take turns. Backend and load generator (C, those of
../relay) need a share of the same cores, so a rate says as much about them as about the gateway. Therefore three
figures, each from its own mechanism:

- **whole**: every process takes what it gets. The rate, with the load side's own CPU beside it.
- **derived**: what cores of their own would give, by arithmetic: 1 / the CPU of the busiest worker per piece.
- **shared**: each worker gets `--share` of a core, no more (SCHED_DEADLINE), as if it were a slow core of its own. The
  load side then has more than a core. The ratio of these rates is measured, and is the one to compare. It needs the
  right to set that policy; without it these lines are left out.

C: whole answers, 64 connections. P: streams of 20 ms a token, as many for each worker, fewer than it can relay: beyond
that it finds several chunks in one read, which are cheaper, so a rate would say nothing, and CPU per chunk says all.
What a chunk costs depends on what else the cores do, so "1+1", two gateways of one worker each under the same load, is
what the CPU of two workers is compared with.
F: answers with all connections at worker 1 (worker 0 is stopped while they are made): what worker 0 uses is the order's
cost. In the shared rounds of F, worker 0 has a quarter of the share, so that it is what limits. Beside it: what the
same Scheduler costs in a process that does nothing else. CPU is that of all threads, by /proc/PID/task/*/schedstat. All
run with real-time priority where they may, which keeps neighbours away.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

RELAY = Path(__file__).resolve().parents[1] / "relay"
sys.path.insert(0, str(RELAY))

from bench import fairlead, free_port, get, process, tree  # noqa: E402

from gateway.config.scheduling import Scheduling  # noqa: E402
from gateway.scheduling.assembly import make_scheduler  # noqa: E402
from policies.types import BackendLoad, Dispatch, Outcome, Request, Tenant, Usage  # noqa: E402

CONNECT_S = 0.3  # worker 0 is stopped for so long: less than the silence after which it would be left
JOIN_S = 2.0
PERIOD_NS = 10_000_000  # of a share: shorter than what a client waits for
BATCH = 12  # requests of one poll of the Scheduler alone, as a saturated leader takes in at once
REQUESTS = 10_000


SETTLE_S_MAX = 10.0
IDLE_RATIO = 0.1  # of a core: what is left of the load before is over


@dataclass(frozen=True)
class Load:
    interval_us: int
    arguments: str  # of the load generator
    warm_s: float
    unit: str = "req_s"
    streams: int = 0  # for each worker and core


LOADS = {
    "C": Load(0, "-c 64 -N", 1.0),
    "P": Load(20_000, "-n 1000", 3.0, "chunks_s", streams=300),
    "F": Load(0, "-c 128 -N -R 0.02", 1.0),
}


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs, or two: its port, and its workers' processes, worker 0 first."""

    ports: list[int]
    pids: list[int]


def main() -> None:
    options = arguments()
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    subprocess.run(["make", "-s", "-C", str(RELAY)], check=True)
    counts = options.workers.split(",")
    found: dict[tuple[str, str, str], list[dict]] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        lab = Lab(Path(directory), stack, counts)
        for share in (0.0, options.share):
            if share and not lab.limit(share):
                print("no right to limit a worker's CPU: the shared rounds are left out")
                continue
            for _ in range(options.rounds):
                for count, test in lab.tests():
                    figures = lab.measure(count, test, options.seconds, share)
                    kind = "shared" if share else "whole"
                    found.setdefault((kind, test, count), []).append(figures)
                    print(kind, count, test, line(figures), flush=True)
    print_medians(found, counts)
    print(f"the Scheduler alone: {scheduler_us():.1f} us of CPU per request")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", default="1,2", help="numbers of workers (default 1,2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement (default 3)")
    parser.add_argument("--share", type=float, default=0.3, help="of a core for each worker (default 0.3)")
    return parser.parse_args()


class Lab:
    """One backend, and a gateway for each number of workers."""

    def __init__(self, directory: Path, stack: ExitStack, counts: list[str]) -> None:
        self._backend_port = free_port()
        command = [str(RELAY / "bin/mock_backend"), "-p", str(self._backend_port)]
        self._backend = stack.enter_context(process(command, port=self._backend_port, log=directory / "log"))
        self._gateways = {count: self._start(directory, stack, int(count)) for count in counts}
        ones = [self._start(directory, stack, 1) for _ in range(2)]
        self._gateways["1+1"] = Gateway([one.ports[0] for one in ones], [one.pids[0] for one in ones])

    def _start(self, directory: Path, stack: ExitStack, count: int) -> Gateway:
        port = free_port()
        folder = directory / str(port)
        folder.mkdir()
        command = fairlead(folder, port, self._backend_port)
        config = folder / "fairlead.yaml"
        config.write_text(config.read_text() + f"workers: {count}\naccess_log: {{enabled: false}}\n")
        pid = stack.enter_context(process(command, port=port, log=folder / "log"))
        time.sleep(JOIN_S)
        pids = tree(pid)
        return Gateway([port], pids[1:] or pids)

    def tests(self) -> Iterator[tuple[str, str]]:
        """Each number of workers with each load that it is for, in turns."""
        for test in ("C", "P"):  # all have served the same before: what is predicted depends on it
            yield from ((count, test) for count in self._gateways)
        for count, gateway in self._gateways.items():
            if len(gateway.pids) > len(gateway.ports):
                yield count, "F"

    def limit(self, share: float) -> bool:
        """Give every worker this share of a core. Returns whether that is allowed."""
        return all(limit(pid, share) for gateway in self._gateways.values() for pid in gateway.pids)

    def measure(self, count: str, test: str, seconds: float, share: float) -> dict:
        load, gateway = LOADS[test], self._gateways[count]
        get(
            f"http://127.0.0.1:{self._backend_port}/_ctl?interval_us={load.interval_us}&lockstep=0&ttft_us=0&die_after=0"
        )
        self._settle(gateway)
        command = [str(RELAY / "bin/loadgen"), *load.arguments.split(), "-w", str(load.warm_s), "-d", str(seconds)]
        command += ["-g", "1", *(["-c", str(round(load.streams * (share or 1.0)))] if load.streams else [])]
        leader, workers = gateway.pids[0], len(gateway.pids)
        if test == "F":
            os.kill(leader, signal.SIGSTOP)
        running = [
            subprocess.Popen([*command, "-u", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
            for port in (gateway.ports * workers if load.streams else gateway.ports)[:workers]
        ]
        if test == "F":
            time.sleep(CONNECT_S)
            os.kill(leader, signal.SIGCONT)
            if share:
                limit(leader, share / 4)
        time.sleep(load.warm_s)
        connections = [sum(connections_of(pid, port) for port in gateway.ports) for pid in gateway.pids]
        pids = [*gateway.pids, self._backend, *(each.pid for each in running)]
        before, began = [cpu_ns(pid) for pid in pids], time.monotonic()
        time.sleep(seconds * 0.9)
        used_us = [(cpu_ns(pid) - ns) / 1000 for pid, ns in zip(pids, before, strict=True)]
        elapsed_s = time.monotonic() - began
        said = [json.loads(each.communicate()[0]) for each in running]
        if test == "F" and share:
            limit(leader, share)
        per_s = max(sum(each[load.unit] for each in said), 1.0)
        return {
            "per_s": per_s,
            "workers_us": [us / per_s / elapsed_s for us in used_us[:workers]],
            "load_us": sum(used_us[workers:]) / per_s / elapsed_s,
            "connections": connections,
            "chunks_per_read": max(each["chunks_per_read"] for each in said),
            "errors": sum(value for each in said for name, value in each.items() if name.startswith("err_")),
        }

    def _settle(self, gateway: Gateway) -> None:
        """Wait until the streams of the load before have ended everywhere."""
        deadline = time.monotonic() + SETTLE_S_MAX
        is_busy = True
        while is_busy and time.monotonic() < deadline:
            before = sum(map(cpu_ns, gateway.pids))
            time.sleep(0.2)
            is_busy = sum(map(cpu_ns, gateway.pids)) - before > 0.2e9 * IDLE_RATIO


def limit(pid: int, share: float) -> bool:
    given = ["--sched-runtime", str(int(share * PERIOD_NS)), "--sched-deadline", str(PERIOD_NS)]
    command = ["chrt", "--reset-on-fork", "-d", *given, "--sched-period", str(PERIOD_NS), "-p", "0", str(pid)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def cpu_ns(pid: int) -> int:
    """CPU time that all threads of a process have used."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def connections_of(pid: int, port: int) -> int:
    """How many connections of clients this process holds."""
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:])
    inodes = {row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"}
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links.append(str(each.readlink()))
    return sum(match[1] in inodes for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link)))


def line(figures: dict) -> str:
    workers_us = figures["workers_us"]
    each = " + ".join(f"{us:.1f}" for us in workers_us)
    return (
        f"{figures['per_s']:8.0f}/s  {sum(workers_us):6.1f} us each ({each})  derived {1e6 / max(workers_us):6.0f}/s  "
        f"load side {figures['load_us']:.1f} us  connections {figures['connections']}  "
        f"chunks/read {figures['chunks_per_read']:.2f}  errors {figures['errors']}"
    )


def print_medians(found: dict[tuple[str, str, str], list[dict]], counts: list[str]) -> None:
    """Per kind, load and number of workers; times: to the first number of workers, of the same round."""
    heads = ("workers", "per s", "times", "derived", "times", "us each", "worker 0", "load side")
    print(("\n{:12}" + "{:>10}" * len(heads)).format("", *heads))
    for (kind, test, count), runs in found.items():
        bases = found.get((kind, test, counts[0]), runs)
        times = median(run["per_s"] / max(base["per_s"], 1.0) for run, base in zip(runs, bases, strict=True))
        derived = [1e6 / max(run["workers_us"]) for run in runs]
        ratio = median(rate * max(base["workers_us"]) / 1e6 for rate, base in zip(derived, bases, strict=True))
        rate, cpu_us = median(run["per_s"] for run in runs), median(sum(run["workers_us"]) for run in runs)
        leader_us, load_us = median(run["workers_us"][0] for run in runs), median(run["load_us"] for run in runs)
        print(
            f"{kind:8}{test:4}{count:>10}{rate:10.0f}{times:10.2f}{median(derived):10.0f}{ratio:10.2f}{cpu_us:10.1f}"
            f"{leader_us:10.1f}{load_us:10.1f}"
        )


def median(values: Iterator[float] | list[float]) -> float:
    return statistics.median(values)


# -- the Scheduler without anything around it ----------------------------------------------------------------


def scheduler_us() -> float:
    """CPU per request of a Scheduler in this process, under the load of F: the least of five runs."""
    return min(drive_scheduler() for _ in range(5))


def drive_scheduler() -> float:
    scheduler = make_scheduler(Scheduling())
    load = BackendLoad("gpu", requests_running_max=8192, kv_tokens_max=64_000_000, kv_block_tokens=16)
    scheduler.tenants_changed(changed=[Tenant("tenant")], now=0.0)
    scheduler.load_changed([load], 0.0)
    request = Request("", "tenant", "mock-model", 0.0, 185, 256, body_bytes=871, sender="worker")
    requests = [replace(request, id=str(number), arrived_at=number * 4e-4) for number in range(REQUESTS)]
    running: deque[str] = deque()
    began = time.process_time()
    for first in range(0, REQUESTS, BATCH):
        now = first * 4e-4 + 0.01
        for _ in range(BATCH if len(running) > 64 - BATCH else 0):
            scheduler.finished(running.popleft(), Outcome.COMPLETED, now, None, Usage(184, 0, 26))
        for each in requests[first : first + BATCH]:
            scheduler.submit(each, now)
        running += [action.request_id for action in scheduler.poll(now) if isinstance(action, Dispatch)]
        scheduler.next_wakeup()
    return (time.process_time() - began) / REQUESTS * 1e6


if __name__ == "__main__":
    main()
