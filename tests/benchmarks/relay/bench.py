"""What a relayed token costs: CPU of the gateway's processes, beside nginx and a naive relay in the same run.

    python tests/benchmarks/relay/bench.py [--systems nginx,naive,token-path,fairlead] [--tests P500,C,S2000] [--reps 3]
                                           [--beside CHECKOUT] [--one-process]

--beside runs the fairlead of another checkout (a worktree of an older commit) in turn with this one, as "beside".
--one-process runs S2000 in the process of the tests before it, too: a limit that is learnt in one test must not
throttle the next (--tests P500,C,P100,S2000,P500: the rates are those of what is asked, 50 or 10 chunks/s a stream).

The backend and the load generator (C, epoll) run on CPU 0, the proxies on CPU 1, one at a time and taking
turns, so that a neighbour's noise meets all of them. CPU time is the sum of /proc/PID/task/*/schedstat over
the proxy's processes in the window: it contains the kernel's work for its own reads and writes, which is
most of it. Wall-clock latencies suffer more from neighbours than CPU time does; ratios between the systems of
one run are what to compare.

P100, P500: streams of 20 ms per token with independent phases, one chunk per wake-up: the honest cost of a chunk.
F350: as these, for the time to the first token, in us; the backend's own share is the same for all systems.
C: whole responses, 32 connections. S2000: 2,000 streams of 100 ms per token; memory per stream is the growth of
RSS of a fresh process. S1000: as S2000, at 2 s per token, which a busy machine can do, too. A paced run in which chunks
arrived in lumps was short of CPU and is repeated.
Every run is appended to results/runs.jsonl.
"""

import argparse
import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RESULTS = HERE / "results"
START_S_MAX = 30.0
STOP_S_MAX = 10.0
CHUNKS_PER_READ_MAX = 1.03
DISTURBED_RUNS_MAX = 4  # then the last one counts, and the table says so
OPEN_FILES = 20_000

# What we promise, by test: figure, limit, unit.
TARGETS = {
    "P500": ("cpu_us_per_chunk", 18.0, "us per chunk"),
    "C": ("cpu_us_per_req", 120.0, "us per request"),
    "S2000": ("kb_per_stream", 60.0, "KB per stream"),
}


@dataclass(frozen=True)
class Test:
    interval_us: int
    load: str  # arguments of the load generator
    unit: str
    fresh: bool = False  # memory is compared with a process that has done nothing yet


TESTS = {
    "P100": Test(20_000, "-c 100 -n 100 -w 1 -d 2.5 -g 4", "cpu_us_per_chunk"),
    "P500": Test(20_000, "-c 500 -n 150 -w 2 -d 3 -R 1.5 -g 6", "cpu_us_per_chunk"),
    "F350": Test(20_000, "-c 350 -n 60 -w 2 -d 4 -R 1.5 -g 3", "ttft_p50"),
    "C": Test(0, "-c 32 -N -w 0.5 -d 2 -g 2", "cpu_us_per_req"),
    "S2000": Test(100_000, "-c 2000 -n 50 -w 4.5 -d 4 -R 4 -g 9", "kb_per_stream", fresh=True),
    "S1000": Test(2_000_000, "-c 1000 -n 50 -w 12 -d 1 -R 6 -g 1", "kb_per_stream", fresh=True),
}

NGINX = """
worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/nginx.err warn; worker_rlimit_nofile 20000;
events {{ worker_connections 16384; multi_accept on; }}
http {{
  access_log off; client_body_buffer_size 64k; keepalive_requests 1000000; keepalive_timeout 75; tcp_nodelay on;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream backend {{ server 127.0.0.1:{backend}; keepalive 4096; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=8192; client_max_body_size 64m;
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_cache off; proxy_read_timeout 600s;
    }}
  }}
}}
"""

# As it is served, access log included. The backend is said to be large, so that nothing waits in the queue.
FAIRLEAD = """
listen: {{port: {port}}}
backends: [{{url: "http://127.0.0.1:{backend}", requests_running_max: 8192}}]
"""


# A system's command, of a folder for its files, its port and the backend's.
Command = Callable[[Path, int, int], list[str]]


def nginx(directory: Path, port: int, backend: int) -> list[str]:
    conf = directory / "nginx.conf"
    conf.write_text(NGINX.format(dir=directory, port=port, backend=backend))
    return [shutil.which("nginx") or "nginx", "-p", str(directory), "-c", str(conf)]


def fairlead(directory: Path, port: int, backend: int, *, continues: bool = True) -> list[str]:
    config = directory / "fairlead.yaml"
    off = "" if continues else "continuation: {enabled: false}"
    config.write_text(FAIRLEAD.format(port=port, backend=backend) + off)
    return [str(Path(sys.executable).with_name("fairlead")), "serve", "--config", str(config)]


def fairlead_of(checkout: Path) -> Command:
    """The fairlead of another checkout, with the packages of this one."""

    def command(directory: Path, port: int, backend: int) -> list[str]:
        serve = fairlead(directory, port, backend)[1:]
        run = "from gateway.cli import main; main()"
        return ["env", f"PYTHONPATH={checkout.resolve()}", sys.executable, "-c", run, *serve]

    return command


def script(name: str) -> Command:
    def command(_directory: Path, port: int, backend: int) -> list[str]:
        return [sys.executable, str(HERE / name), str(port), f"http://127.0.0.1:{backend}"]

    return command


SYSTEMS: dict[str, Command] = {
    "nginx": nginx,
    "naive": script("naive_relay.py"),
    "token-path": script("token_path.py"),
    "fairlead": fairlead,
    "not-continued": partial(fairlead, continues=False),  # whose streams' token ids are not kept
}


def main() -> int:
    options = arguments()
    if options.beside is not None:
        SYSTEMS["beside"] = fairlead_of(options.beside)
        options.systems.append("beside")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard) if hard > 0 else OPEN_FILES, hard))
    subprocess.run(["make", "-s", "-C", str(HERE)], check=True)
    RESULTS.mkdir(exist_ok=True)
    systems = [name for name in options.systems if available(name)]
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory, ExitStack() as stack:
        lab = Lab(Path(directory), stack, one_process=options.one_process)
        runs = list(lab.measure(systems, options.tests, options.reps))
    print_table(runs, systems, list(dict.fromkeys(options.tests)))
    return 1 if options.check and missed(runs) else 0


def arguments() -> argparse.Namespace:
    def names(known: dict) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            if unknown := set(chosen) - set(known):
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
            return chosen

        return parse

    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--systems",
        type=names(SYSTEMS),
        default=["nginx", "naive", "token-path", "fairlead"],
        help=f"of {','.join(SYSTEMS)}",
    )
    parser.add_argument("--tests", type=names(TESTS), default=["P500", "C", "S2000"], help=f"of {','.join(TESTS)}")
    parser.add_argument("--reps", type=int, default=3, help="repetitions, interleaved (default 3)")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout, whose fairlead takes turns")
    parser.add_argument("--one-process", action="store_true", help="no fresh process for any test")
    parser.add_argument("--check", action="store_true", help="exit 1 when fairlead misses a target")
    return parser.parse_args()


def available(name: str) -> bool:
    program = {"nginx": "nginx", "fairlead": str(Path(sys.executable).with_name("fairlead"))}.get(name)
    if program is not None and shutil.which(program) is None:
        print(f"{name} is not installed: left out")
        return False
    return True


class Lab:
    """The backend on CPU 0 and the proxies on CPU 1, each started when it is first needed."""

    def __init__(self, directory: Path, stack: ExitStack, *, one_process: bool) -> None:
        self._directory = directory
        self._one_process = one_process
        self._stack = stack
        self._backend_port = free_port()
        self._proxies: dict[str, Proxy] = {}
        command = [str(HERE / "bin/mock_backend"), "-p", str(self._backend_port)]
        stack.enter_context(process(command, cpu=0, log=directory / "backend.log", port=self._backend_port))

    def measure(self, systems: list[str], tests: list[str], reps: int) -> Iterator[dict]:
        for rep in range(reps):
            for test in tests:
                for system in systems:
                    yield self._undisturbed_run(system, test, rep)

    def _undisturbed_run(self, system: str, test: str, rep: int) -> dict:
        for _ in range(DISTURBED_RUNS_MAX):
            run = self._run(system, test)
            print(f"{rep} {test:6} {system:11} {line(run)}", flush=True)
            with (RESULTS / "runs.jsonl").open("a") as file:
                file.write(json.dumps(run) + "\n")
            if not run["disturbed"]:
                break
        return run

    def _run(self, system: str, test: str) -> dict:
        if self._one_process or not TESTS[test].fresh:
            if system not in self._proxies:
                self._proxies[system] = self._stack.enter_context(self._proxy(system))
            return self._load(self._proxies[system], system, test)
        with self._proxy(system) as proxy:
            return self._load(proxy, system, test)

    @contextmanager
    def _proxy(self, system: str) -> Iterator["Proxy"]:
        port = free_port()
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        command = SYSTEMS[system](directory, port, self._backend_port)
        with process(command, cpu=1, log=directory / "log", port=port) as pid:
            yield Proxy(port, pid)

    def _load(self, proxy: "Proxy", system: str, name: str) -> dict:
        test = TESTS[name]
        self._settle(test.interval_us)
        command = [str(HERE / "bin/loadgen"), "-u", f"127.0.0.1:{proxy.port}", "-l", system]
        load = ["-P", ",".join(map(str, tree(proxy.pid))), *test.load.split()]
        warm_up = ["-c", "1", "-n", "2", "-w", "0.1", "-d", "0.1", "-g", "2"]
        subprocess.run(pinned([*command, *warm_up], cpu=0), check=True, capture_output=True)
        rss_before_mb = rss_mb(tree(proxy.pid))
        output = subprocess.run(
            pinned([*command, *load], cpu=0), check=True, capture_output=True, text=True, timeout=90
        )
        run = json.loads(output.stdout) | {"test": name, "system": system, "at": time.time()}
        # Without a CPU of its own a proxy finds several chunks in one read: cheap per chunk, and not what was asked.
        run["disturbed"] = test.interval_us > 0 and run["chunks_per_read"] > CHUNKS_PER_READ_MAX
        run["kb_per_stream"] = (run["rss_mb"] - rss_before_mb) * 1024 / run["conns"]
        return run

    def _settle(self, interval_us: int) -> None:
        base = f"http://127.0.0.1:{self._backend_port}"
        deadline = time.monotonic() + STOP_S_MAX
        while get(f"{base}/_stats")["active"] and time.monotonic() < deadline:
            time.sleep(0.1)
        get(f"{base}/_ctl?interval_us={interval_us}&lockstep=0&ttft_us=0&die_after=0&reset=1")


@dataclass(frozen=True)
class Proxy:
    port: int
    pid: int


@contextmanager
def process(
    command: list[str],
    *,
    log: Path,
    port: int,
    cpu: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[int]:
    """Run a server until the block ends, on this CPU or on any; entered when it accepts connections."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = command if cpu is None else pinned(command, cpu=cpu)
    with log.open("a") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent, env=environment)
    try:
        deadline = time.monotonic() + START_S_MAX
        while not accepts(port):
            if child.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"did not start: {' '.join(command)}\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        time.sleep(0.5)
        yield child.pid
    finally:
        child.terminate()
        child.terminate()  # twice: no drain
        try:
            child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def pinned(command: list[str], *, cpu: int) -> list[str]:
    cpus = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cpus[min(cpu, len(cpus) - 1)]), *command]


def accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.load(response)


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(leaf for child in children for leaf in tree(int(child)))]


def rss_mb(pids: list[int]) -> float:
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(match[1]) for text in statuses if (match := re.search(r"VmRSS:\s+(\d+)", text))) / 1024


def errors(run: dict) -> dict:
    return {key: value for key, value in run.items() if key.startswith("err_") and value}


def line(run: dict) -> str:
    return (
        f"{run['cpu_us_per_chunk']:6.2f} us/chunk {run['cpu_us_per_req']:8.1f} us/req {run['cpu_pct']:5.1f} % CPU "
        f"lat {run['lat_p50']:.0f}/{run['lat_p99']:.0f} us ttft {run['ttft_p50']:.0f}/{run['ttft_p99']:.0f} us "
        f"{run['kb_per_stream']:6.1f} KB/stream {run['chunks_s']:.0f} chunks/s {errors(run) or ''}"
        f"{' disturbed by others' if run['disturbed'] else ''}"
    )


def print_table(runs: list[dict], systems: list[str], tests: list[str]) -> None:
    for test in tests:
        unit = TESTS[test].unit
        print(f"\n{test}: loadgen {TESTS[test].load}; backend {TESTS[test].interval_us} us per token")
        heads = ("system", unit, "min-max", "x nginx", "x naive", "lat p50/p99 us", "CPU %")
        print("{:11} {:>18} {:>15} {:>8} {:>8} {:>16} {:>6}".format(*heads))
        for system in systems:
            mine = of(runs, system, test)
            figure = median(mine, unit)
            spread = f"{min(run[unit] for run in mine):.1f}-{max(run[unit] for run in mine):.1f}"
            ratios = [ratio(figure, of(runs, other, test), unit) for other in ("nginx", "naive")]
            latency = "ttft" if unit in {"cpu_us_per_req", "ttft_p50"} else "lat"
            lat = f"{median(mine, latency + '_p50'):.0f}/{median(mine, latency + '_p99'):.0f}"
            cpu = f"{median(mine, 'cpu_pct'):6.1f}"
            print(f"{system:11} {figure:18.2f} {spread:>15} {ratios[0]:>8} {ratios[1]:>8} {lat:>16} {cpu}")
            if disturbed := sum(run["disturbed"] for run in mine):
                print(f"{'':11} {disturbed} of {len(mine)} runs were disturbed by others: repeat on a quiet machine")
            if any(errors(run) for run in mine):
                print(f"{'':11} errors: {[errors(run) for run in mine]}")
    for text in missed(runs):
        print(text)


def missed(runs: list[dict]) -> list[str]:
    """The promises that the whole gateway did not keep in these runs."""
    found = []
    for test, (figure, limit, unit) in TARGETS.items():
        mine = of(runs, "fairlead", test)
        if mine and median(mine, figure) > limit:
            found.append(f"MISSED {test}: {median(mine, figure):.1f} {unit}, promised {limit}")
        if any(errors(run) for run in mine):
            found.append(f"FAILED {test}: requests went wrong")
    return found


def of(runs: list[dict], system: str, test: str) -> list[dict]:
    return [run for run in runs if run["system"] == system and run["test"] == test]


def median(runs: list[dict], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def ratio(figure: float, reference: list[dict], unit: str) -> str:
    base = median(reference, unit) if reference else 0
    return f"{figure / base:.2f}" if base > 0 else "-"


if __name__ == "__main__":
    sys.exit(main())
