"""What does the live page cost? CPU of the gateway's process with viewers beside without, and what others wait for it.

    python tests/benchmarks/live/bench.py [--tenants 1000] [--backends 64] [--viewers 20] [--relay]

    page    every tenant is served and has requests queued, running and ending, all the time. CPU time of the process
            in windows of 10 s, in turns with and without viewers; bytes; the longest that the event loop is kept
    calls   CPU time of what is recorded of each call when it ends, and of what is recorded without a viewer
    --relay CPU per relayed chunk (tests/benchmarks/relay, test P500) without an admin port, with one, and with viewers

Viewers are another process that reads what comes. CPU time is of the gateway's process alone.
"""

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import uvloop

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "integration"), str(HERE.parents[1] / "relay")]

WINDOW_S = 8.0
WINDOWS = 4
SLICES_PER_S = 50  # of the load that is made in the process itself
QUEUED = 3  # requests of every tenant that wait
SLOTS = 32  # of each backend, all in use
RELAY_TEST = "P500"
RELAY_REPS = 2


def main():
    options = arguments()
    if options.view is not None:
        uvloop.run(view(*options.view, options.viewers, packed=not options.plain))
        return
    if options.relay:
        bench_relay(options.viewers)
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        uvloop.run(bench_page(Path(folder), options))
    bench_calls()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--backends", type=int, default=64)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="viewers that take no gzip")
    parser.add_argument("--relay", action="store_true", help="only CPU per relayed chunk")
    parser.add_argument("--view", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    return parser.parse_args()


# -- viewers ---------------------------------------------------------------------------------------------------------


async def view(url, key, viewers, *, packed):
    """Be these viewers until killed; tells of all bytes so far on stdout every second."""
    headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
    headers["Accept-Encoding"] = "gzip" if packed else "identity"
    read = [0]

    async def one(session):
        async with session.get(f"{url}/admin/v1/live", headers=headers) as response:
            assert response.status == 200, await response.text()
            async for piece in response.content.iter_any():
                read[0] += len(piece)

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        tasks = [asyncio.create_task(one(session)) for _ in range(viewers)]
        while not any(task.done() for task in tasks):
            await asyncio.sleep(1)
            print(*read, flush=True)
        await asyncio.gather(*tasks)


@contextmanager
def viewers_of(url, key, count, *, packed=True, cpu=None):
    command = [sys.executable, str(HERE), "--viewers", str(count), "--view", url, key]
    command += [] if packed else ["--plain"]
    pinned = [] if cpu is None else ["taskset", "-c", str(cpu)]
    child = subprocess.Popen([*pinned, *command], stdout=subprocess.PIPE, text=True)
    try:
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.wait()


# -- the page --------------------------------------------------------------------------------------------------------


async def bench_page(folder, options):
    from admin_rig import admin  # noqa: PLC0415 - the viewers do not wait for them
    from gateway_rig import MODEL, scripted, until  # noqa: PLC0415

    from gateway.serve import _spare_collections  # noqa: PLC0415

    health = {"idle_s": 60.0, "busy_s": 60.0}  # what its polls cost is not the page's
    async with scripted() as backend:
        entries = [
            {"name": f"gpu-{number}", "url": backend.url, "requests_running_max": SLOTS, "kv_tokens_max": 1 << 20}
            for number in range(options.backends)
        ]
        async with admin(folder, *entries, health=health) as api:
            await until(lambda: len(api.rig.gateway.backends.loads().get(MODEL, ())) == options.backends)
            load = Load(api.rig.gateway, options.tenants)
            load.begin()
            _spare_collections()
            driving = asyncio.create_task(load.drive())
            await asyncio.sleep(12)
            print(f"{options.tenants} tenants, {options.backends} backends, {options.viewers} viewers")
            await compare(api, options)
            driving.cancel()
            await holds(api, load)


class Load:
    """Every tenant is served each second, has requests that wait and run, and calls that end."""

    def __init__(self, gateway, count):
        from policies.types import Tenant  # noqa: PLC0415

        self.gateway = gateway
        (self.dispatcher,) = gateway.pools.dispatchers.values()
        self.tenants = [Tenant(f"team-{number:04}", weight=1.0 + number % 3) for number in range(count)]
        self.turn = 0

    def begin(self):
        from gateway_rig import MODEL  # noqa: PLC0415

        from policies.types import Request  # noqa: PLC0415

        views = self.gateway.pools.overviews()[MODEL].backends
        running = sum(view.requests_limit for view in views.values())
        self.waiting = []
        for number in range(running + QUEUED * len(self.tenants)):
            tenant = self.tenants[number % len(self.tenants)]
            request = Request(f"r{number}", tenant.id, MODEL, self.dispatcher.now(), 100, 200)
            self.waiting.append(asyncio.create_task(self._hold(request, tenant)))

    async def _hold(self, request, tenant):
        async with self.dispatcher.lease(request, tenant):
            await asyncio.sleep(1e6)

    async def drive(self):
        every = max(1, len(self.tenants) // SLICES_PER_S)
        while True:
            self.serve(every)
            await asyncio.sleep(1 / SLICES_PER_S)

    def serve(self, count):
        """Charge so many tenants, and end a call of each."""
        from gateway_rig import MODEL  # noqa: PLC0415

        from gateway.observability.telemetry import CallTrace  # noqa: PLC0415
        from policies.types import Outcome, Usage  # noqa: PLC0415

        for _ in range(count):
            self.turn += 1
            tenant = self.tenants[self.turn % len(self.tenants)]
            self.dispatcher.spent(tenant, Usage(100, 20, 50 + self.turn % 7))
            trace = CallTrace("/v1/chat/completions", tenant_id=tenant.id, tier_id="default", model=MODEL, stream=True)
            trace.started_s -= 0.5 + self.turn % 11 / 10
            trace.first_token_s = trace.started_s + 0.1 + self.turn % 5 / 50
            trace.usage, trace.status, trace.outcome = Usage(100, 20, 50), 200, Outcome.COMPLETED
            self.gateway.operators.live.ended.ended(trace)


async def compare(api, options):
    """CPU of the process in turns with viewers and without."""
    cpu = {True: [], False: []}
    for _ in range(WINDOWS):
        with viewers_of(api.url, api.key, options.viewers, packed=not options.plain) as child:
            await asyncio.to_thread(child.stdout.readline)
            cpu[True].append(await measured())
            child.kill()
            lines = child.stdout.read().splitlines()
        await asyncio.sleep(6)  # until nothing is wanted
        cpu[False].append(await measured())
    rate = (int(lines[-1]) - int(lines[0])) / (len(lines) - 1) / options.viewers
    both = {viewed: statistics.median(values) for viewed, values in cpu.items()}
    extra = [(a - b) * 100 for a, b in zip(cpu[True], cpu[False], strict=True)]
    print(f"CPU of the process: {both[False]:.1%} without viewers, {both[True]:.1%} with")
    print(f"for the page: {statistics.median(extra):.2f} % of a core ({min(extra):.2f} to {max(extra):.2f})")
    print(f"{rate / 1e3:.0f} KB/s for each viewer ({'plain' if options.plain else 'gzip'})")


async def measured():
    """CPU seconds of this process per second."""
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(WINDOW_S)
    return (time.process_time() - cpu) / (time.perf_counter() - began)


async def holds(api, load):
    """The longest turns of the loop, in CPU time of this process, while documents are made, encoded and sent."""
    for name, viewers in (("nobody views", 0), ("one begins to, nine do", 9)):
        with ExitStack() as stack:
            if viewers:
                stack.enter_context(viewers_of(api.url, api.key, viewers))
            collections = stack.enter_context(collecting())
            turns, until = [], time.monotonic() + WINDOW_S
            joins_at = time.monotonic() + WINDOW_S / 2
            served_at = time.process_time()
            while time.monotonic() < until:
                if time.process_time() - served_at > 0.02:
                    load.serve(20)
                    served_at = time.process_time()
                if viewers and time.monotonic() > joins_at:
                    stack.enter_context(joined(api))
                    joins_at = until
                collected, last = sum(collections), time.process_time()
                await asyncio.sleep(0)
                turns.append(time.process_time() - last - (sum(collections) - collected))
        turns.sort()
        longest = ", ".join(f"{each * 1e3:.1f}" for each in turns[:-8:-1])
        print(f"turns of the loop, {name}: the longest {longest} ms of {len(turns)}")
        print(f"    garbage collections besides: the longest {max(collections) * 1e3:.1f} ms")


@contextmanager
def collecting():
    """CPU seconds of each garbage collection, the first 0."""
    seconds, began = [0.0], [0.0]

    def note(phase, _info):
        if phase == "start":
            began[0] = time.process_time()
        else:
            seconds.append(time.process_time() - began[0])

    gc.callbacks.append(note)
    try:
        yield seconds
    finally:
        gc.callbacks.remove(note)


@contextmanager
def joined(api):
    """One more viewer, which gets the whole document; not waited for."""
    command = [sys.executable, str(HERE), "--viewers", "1", "--view", api.url, api.key]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()


# -- what is recorded ------------------------------------------------------------------------------------------------


def bench_calls():
    from gateway.live.ended import EndedCalls  # noqa: PLC0415
    from gateway.observability.telemetry import CallTrace  # noqa: PLC0415
    from policies.types import Outcome, Usage  # noqa: PLC0415

    ended = EndedCalls(lambda _model: "pool")
    timed = CallTrace("/v1/chat/completions", tenant_id="a", tier_id="default", model="m", stream=True, status=200)
    timed.outcome, timed.usage, timed.first_token_s = Outcome.COMPLETED, Usage(10, 1, 8), timed.started_s + 0.1
    refused = CallTrace("/v1/chat/completions", tenant_id="a", tier_id="default", model="m", status=429)
    refused.reason = "queue_full"
    whole = CallTrace("/v1/chat/completions", tenant_id="a", tier_id="default", model="m", status=200)
    whole.outcome = Outcome.COMPLETED
    for name, trace in (("a stream", timed), ("a refusal", refused), ("another", whole)):
        least = float("inf")
        for _ in range(7):
            began = time.process_time()
            for _ in range(20_000):
                ended.ended(trace)
            least = min(least, time.process_time() - began)
        print(f"recorded when a call ends, {name}: {least / 20_000 * 1e6:.2f} us")


# -- the relay beside it ---------------------------------------------------------------------------------------------


def bench_relay(viewers):
    """CPU per relayed chunk: no admin port, one without viewers, and one with viewers."""
    import bench as relay  # noqa: PLC0415 - tests/benchmarks/relay/bench.py

    ports = {}

    def fairlead(name):
        def command(directory, port, backend):
            run = relay.fairlead(directory, port, backend)
            ports[name] = relay.free_port(), directory
            admin = f"admin: {{enabled: true, port: {ports[name][0]}, key_file: {directory}/admin-key}}\n"
            config = directory / "fairlead.yaml"
            config.write_text(config.read_text() + ("" if name == "no admin port" else admin))
            main = "from gateway.cli import main; main()"
            return ["env", f"PYTHONPATH={HERE.parents[3]}", sys.executable, "-c", main, *run[1:]]

        return command

    names = ("no admin port", "no viewer", "viewers")
    relay.SYSTEMS.update({name: fairlead(name) for name in names})
    subprocess.run(["make", "-s", "-C", str(HERE.parents[1] / "relay")], check=True)
    relay.RESULTS.mkdir(exist_ok=True)
    found = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory, ExitStack() as stack:
        lab = relay.Lab(Path(directory), stack, one_process=True)
        for rep in range(RELAY_REPS):
            for name in names:
                run = watched_run(lab, ports, name, rep, viewers)
                found[name].append(run["cpu_us_per_chunk"])
    for name, values in found.items():
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"relay, {name}: {statistics.median(values):.2f} us a chunk ({shown})")


def watched_run(lab, ports, name, rep, viewers):
    if name != "viewers":
        return lab._undisturbed_run(name, RELAY_TEST, rep)
    if name not in ports:
        lab._undisturbed_run(name, RELAY_TEST, rep)  # starts it; this run is not counted
    port, directory = ports[name]
    key = (directory / "admin-key").read_text().strip()
    with viewers_of(f"http://127.0.0.1:{port}", key, viewers, cpu=0):
        return lab._undisturbed_run(name, RELAY_TEST, rep)


if __name__ == "__main__":
    main()
