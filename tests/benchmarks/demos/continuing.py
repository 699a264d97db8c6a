"""Streams that outlive their backends: real vLLMs that are killed or restarted in turn, and long answers that give way.

    python tests/benchmarks/demos/continuing.py [--scenes kill,restart,crashes,shares,preempt]

kill      SIGKILL of one of two, with a gateway that continues streams, and with one that does not
restart   each of three is drained, ended and started again, while streams come without end
crashes   each of three is ended (SIGTERM) without notice, and started again
shares    four tenants of unequal weights, before, while and after one of two is away: does fairness hold?
preempt   a chat tier beside long answers that hold every slot

Each says how many streams failed, whether the texts are those of an undisturbed vLLM (temperature 0), how long the
longest pause of each interrupted stream was, and what was charged beside what clients received. Everything listens on
127.0.0.1 and is ended by this run, however it ends but by SIGKILL.
"""

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shares import OUTPUT, Moment, Received, evenness, largest_difference, promised
from streams import Load, Stream, ask, outcome, percentiles, usages

from processes import Gateway, NotStartedError, Vllm, free_port, until  # isort: skip - streams.py says where it is

STREAMS, TOKENS = 14, 600
RESTART_CLIENTS, RESTART_TOKENS = 9, 1_500  # three streams for each vLLM: with three of them on two cores that is much
DRAIN_S = 0.2
SEATS = 4  # of each vLLM where tenants wait
WEIGHTS = {"one": 1.0, "another": 1.0, "double": 2.0, "fourfold": 4.0}
SHARE_TOKENS, SHARE_S, LOOK_S = 150, 10.0, 0.25
BATCH_TOKENS = 1_500
CHATS, CHAT_TOKENS, CHAT_EVERY_S = 20, 8, 0.25
GIVES_WAY = {"enabled": True}
TIERS = {"chat": {"weight": 4, "envelope": {"ttft_ms": 100}}, "batch": {"preemptible": True}}
NAMED = {"auth": {"trusted_proxies": ["127.0.0.1/32"]}}  # whose x-tenant-id names the tenant
RUN_S_MAX = 1_800
LOGS = Path(__file__).parents[3] / "build"


@contextmanager
def gateway_of(folder: Path, servers: Sequence[Vllm], *, seats: int | None = None, **config: Any) -> Any:
    folder.mkdir()
    limit = {} if seats is None else {"requests_running_max": seats}
    backends = [{"name": f"vllm-{n}", "url": server.url, **limit} for n, server in enumerate(servers)]
    listen = {"port": free_port(), "show_backend": True}
    gateway = Gateway(folder, servers[0], config={"listen": listen, "backends": backends, **config})
    gateway.port, gateway.url = listen["port"], f"http://127.0.0.1:{listen['port']}"
    try:
        yield gateway.start()
    finally:
        gateway.stop()


def say(text: str) -> None:
    print(text, flush=True)


def say_charges(streams: Sequence[Stream], charged: float) -> None:
    tokens = usages(streams)
    prompts, outputs = tokens["prompt_tokens"], tokens["completion_tokens"]
    say(f"  received {outputs} output and {prompts} prompt tokens, charged {charged:.12g} units")
    say(f"  which is {OUTPUT:g} x {outputs} + {charged - OUTPUT * outputs:.12g} for prompts")


def kill(servers: Sequence[Vllm], folder: Path) -> None:
    wanted = [ask(servers[0].url, number, TOKENS) for number in range(STREAMS)]
    for continues in (False, True):
        config = {"continuation": {"enabled": continues}}
        with (
            ThreadPoolExecutor(STREAMS) as threads,
            gateway_of(folder / f"kill-{continues}", servers[:2], **config) as gateway,
        ):
            asked = [threads.submit(ask, gateway.url, number, TOKENS) for number in range(STREAMS)]
            until(lambda: servers[1].metrics().requests_running > 2)
            servers[1].kill()
            streams, charged = [each.result() for each in asked], gateway.service()
        say(f"kill, continuation {'on' if continues else 'off'}: {outcome(streams, wanted)}")
        if continues:
            moved = [each.longest_pause_s for each in streams if each.backend == "vllm-1"]
            say(f"  the longest pause of the {len(moved)} that moved: {percentiles(moved)}")
            say_charges(streams, charged)
        servers[1].start()


def restart(servers: Sequence[Vllm], folder: Path, *, name: str, is_drained: bool) -> None:
    """Each in turn, while streams come without end."""
    config = {"continuation": {"drain_s": DRAIN_S}, "queue": {"backend_wait_s_max": 60}}
    cut: list[tuple[str, float]] = []
    with gateway_of(folder / name, servers, **config) as gateway:
        client = partial(ask, gateway.url, tokens=RESTART_TOKENS)
        with Load([client] * RESTART_CLIENTS, pause_s=0.1) as load:
            for number, server in enumerate(servers):
                until(lambda each=server: each.metrics().requests_running > 2, what="it is busy")
                began_s, path = time.perf_counter(), f"/backends/vllm-{number}"
                if is_drained:
                    gateway.admin().ask("PATCH", path, {"draining": True})
                    cut.append((f"vllm-{number}", time.perf_counter() + DRAIN_S))
                    until(lambda each=server: each.metrics().requests_running == 0, what="all have left it")
                else:
                    cut.append((f"vllm-{number}", time.perf_counter()))
                server.stop()
                server.start()
                if is_drained:
                    gateway.admin().ask("PATCH", path, {"draining": False})
                away_s = time.perf_counter() - began_s
                say(f"  vllm-{number} is back after {away_s:.0f} s; {outcome(load.streams)}")
        interruptions, charged = gateway.samples("fairlead_pool_interruptions"), gateway.service()
    streams, moved = load.streams, [s for s in load.streams if any(s.backend == b and s.ran_at(at) for b, at in cut)]
    counts = ", ".join(f"{each.value:g} {each.labels['cause']}" for each in interruptions if "cause" in each.labels)
    say(f"{name}, of {len(servers)}: {outcome(streams)}; interruptions: {counts}")
    say(f"  the longest pause of the {len(moved)} that were cut: {percentiles([s.longest_pause_s for s in moved])}")
    say_charges(streams, charged)


def shares(servers: Sequence[Vllm], folder: Path) -> None:
    """Four tenants with more calls than fit, while one of two is killed and comes back."""
    received, moments = Received(WEIGHTS), list[Moment]()
    tenants = {"tenants": {tenant: {"weight": weight} for tenant, weight in WEIGHTS.items()}}

    def client(url: str, tenant: str, number: int) -> Any:
        return ask(url, number, SHARE_TOKENS, tenant, received.counter(tenant))

    def look_until(condition: Callable[[], bool]) -> Sequence[Moment]:
        begun = len(moments)
        while not condition():
            moments.append(received.look())
            time.sleep(LOOK_S)
        return moments[begun:]

    def look_for(duration_s: float) -> Sequence[Moment]:
        until_s = time.perf_counter() + duration_s
        return look_until(lambda: time.perf_counter() >= until_s)

    with gateway_of(folder / "shares", servers[:2], seats=SEATS, **tenants, **NAMED) as gateway:
        clients = [partial(client, gateway.url, tenant) for tenant in WEIGHTS for _ in range(2 * SEATS)]
        with ThreadPoolExecutor(1) as starter, Load(clients) as load:
            until(lambda: gateway.queued() >= len(clients) - 2 * SEATS - 1, what="all tenants wait")
            phases = {"before": look_for(SHARE_S)}
            servers[1].kill()
            back = starter.submit(servers[1].start)
            phases["while it is away"] = look_until(back.done)
            back.result()
            phases["after"] = look_for(SHARE_S)
        until(lambda: not gateway.in_flight())
        charged = {tenant: each["service"] for tenant, each in gateway.state()["tenants"].items()}
    say(f"shares of {len(WEIGHTS)} tenants, one of 2 vLLMs killed: {outcome(load.streams)}")
    for name, looks in phases.items():
        say(f"  {name} ({looks[-1].at_s - looks[0].at_s:.0f} s): Jain's index {evenness(looks) or 1.0:.4f}")
    prompt = max((each.answer.usage or {}).get("prompt_tokens", 0) for each in load.streams)
    bound = promised(slots=2 * SEATS, backends=2, prompt_tokens=prompt, output_tokens=SHARE_TOKENS)
    difference = largest_difference(moments)
    say(f"  service over weight of two tenants differs by {difference:.0f} at most; VTC promises {bound:.0f}")
    wrong = {tenant: charged.get(tenant, 0.0) - service for tenant, service in received.service.items()}
    say(f"  charged beyond what clients received: {', '.join(f'{each:+.6g}' for each in wrong.values())} units")


def preempt(servers: Sequence[Vllm], folder: Path) -> None:
    """A chat tier beside long answers that hold every slot: they give way, or do not."""
    for gives_way in (False, True):
        config = {
            "tiers": TIERS,
            "tenants": {"chat": {"tier": "chat"}, "batch": {"tier": "batch"}},
            "continuation": {"preempt": GIVES_WAY} if gives_way else {},
            **NAMED,
        }
        callers = 4 * SEATS + CHATS
        with (
            ThreadPoolExecutor(callers) as threads,
            gateway_of(folder / f"preempt-{gives_way}", servers[:2], seats=SEATS, **config) as gateway,
        ):
            begun = time.perf_counter()
            batch = [threads.submit(ask, gateway.url, n, BATCH_TOKENS, "batch") for n in range(4 * SEATS)]
            time.sleep(1.0)
            chats = []
            for number in range(CHATS):
                chats.append(threads.submit(ask, gateway.url, 1000 + number, CHAT_TOKENS, "chat"))
                time.sleep(CHAT_EVERY_S)
            chat, batches = [each.result() for each in chats], [each.result() for each in batch]
            took_s = time.perf_counter() - begun
        what = "give way" if gives_way else "do not give way"
        say(f"chat beside long answers that {what}: {outcome([*chat, *batches])}")
        tokens = usages([*chat, *batches])["completion_tokens"]
        first_tokens = percentiles([each.ttft_s for each in chat if not each.failed])
        say(f"  chat's time to first token: {first_tokens}; {tokens / took_s:.0f} tokens/s")


SCENES: dict[str, Callable[[Sequence[Vllm], Path], None]] = {
    "kill": kill,
    "restart": partial(restart, name="rolling restart", is_drained=True),
    "crashes": partial(restart, name="rolling restart without notice", is_drained=False),
    "shares": shares,
    "preempt": preempt,
}
OF_THREE = {"restart", "crashes"}


def end_all(number: int, _frame: object) -> None:
    """Leave by an exception, so that every process that was started is ended."""
    what = f"it did not end within {RUN_S_MAX} s" if number == signal.SIGALRM else signal.Signals(number).name
    sys.exit(f"ended: {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--scenes", default=",".join(SCENES), help=f"of {','.join(SCENES)}")
    scenes = parser.parse_args().scenes.split(",")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, end_all)
    signal.alarm(RUN_S_MAX)
    # The threads that start vLLMs end when these are ended, so the stack ends those first.
    with TemporaryDirectory() as name, ThreadPoolExecutor() as threads, ExitStack() as stack:
        folder = Path(name)
        servers = [Vllm(folder / f"vllm-{number}.log") for number in range(3 if OF_THREE & {*scenes} else 2)]
        for server in servers:
            stack.callback(server.stop)
        try:
            list(threads.map(Vllm.start, servers))
            for scene in scenes:
                SCENES[scene](servers, folder)
        except NotStartedError as error:
            LOGS.mkdir(exist_ok=True)
            sys.exit(f"{error}\nIts log is {shutil.copy(error.log, LOGS)}.")


if __name__ == "__main__":
    main()
