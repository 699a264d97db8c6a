"""Streams that outlive their backends: SIGKILL of one of two real vLLMs, a rolling restart of three, and preemption.

    python tests/benchmarks/demos/continuing.py [--scenes kill,restart,preempt]

Each scene says how many streams failed, whether the texts are those of an undisturbed vLLM (temperature 0), how long
the longest pause of each interrupted stream was, and what was charged beside what clients received. The scene `kill`
takes turns with a gateway whose continuation is off. Everything listens on 127.0.0.1 and is ended by this run.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "tests/vllm/continue")]
from answers import Answer, read  # noqa: E402
from processes import Gateway, Vllm, free_port, until  # noqa: E402
from wire import CHAT, COMPLETIONS, Call  # noqa: E402

from gateway.admin.client import AdminClient  # noqa: E402

STREAMS = 14
TOKENS = 600
OUTPUT_PRICE = 2.0
SEATS = 4  # of each vLLM in the scene of preemption
BATCH_TOKENS = 1_500
CHATS, CHAT_TOKENS, CHAT_EVERY_S = 20, 8, 0.25
GIVES_WAY = {"enabled": True, "times_max": 8, "tokens_between_min": 64}
TIERS = {"chat": {"weight": 4, "envelope": {"ttft_ms": 100}}, "batch": {"preemptible": True}}


class Stream(NamedTuple):
    """One stream as its client saw it. Times in seconds."""

    answer: Answer
    backend: str
    ttft_s: float
    longest_pause_s: float


def ask(url: str, number: int, tokens: int, tenant: str = "demo") -> Stream:
    """A stream of chat or completions, by turns."""
    path = CHAT if number % 2 else COMPLETIONS
    words = {"messages": [{"role": "user", "content": f"Say {number}"}]} if number % 2 else {"prompt": f"Once {number}"}
    body = {"model": "tiny", "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": tokens, **words}
    body["stream_options"] = {"include_usage": True}
    asked, times = time.perf_counter(), []

    def timed(payloads: Iterator[str]) -> Iterator[str]:
        for payload in payloads:
            times.append(time.perf_counter())
            yield payload

    with Call(url, path, body, headers={"x-tenant-id": tenant}) as call:
        answer, backend = read(timed(call.events())), call.response.getheader("x-fairlead-backend", "")
    pauses = [after - before for before, after in pairwise(times)]
    return Stream(answer, backend, times[0] - asked, max(pauses, default=0.0))


def gateway_of(folder: Path, servers: Sequence[Vllm], **config: Any) -> Gateway:
    folder.mkdir()
    backend = {"requests_running_max": SEATS} if "tiers" in config else {}
    backends = [{"name": f"vllm-{n}", "url": server.url, **backend} for n, server in enumerate(servers)]
    port = free_port()
    gateway = Gateway(
        folder, servers[0], config={"listen": {"port": port, "show_backend": True}, "backends": backends, **config}
    )
    gateway.port, gateway.url = port, f"http://127.0.0.1:{port}"
    return gateway


def shown(streams: Sequence[Stream], wanted: Sequence[Stream] | None = None) -> str:
    failed = sum(each.answer.error is not None or not each.answer.is_done for each in streams)
    text = f"{failed} of {len(streams)} streams failed"
    if wanted is not None:
        equal = sum(one.answer.text == other.answer.text for one, other in zip(streams, wanted, strict=True))
        text += f", {equal} texts equal the undisturbed ones"
    return text


def percentiles(values: Sequence[float]) -> str:
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return f"p50 {median(values) * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms"


def kill(servers: Sequence[Vllm], folder: Path) -> None:
    """SIGKILL of one of two while both answer."""
    wanted = [ask(servers[0].url, number, TOKENS) for number in range(STREAMS)]
    for continues in (False, True):
        gateway = gateway_of(folder / f"kill-{continues}", servers[:2], continuation={"enabled": continues})
        with ExitStack() as stack:
            stack.callback(gateway.stop)
            gateway.start()
            with ThreadPoolExecutor(STREAMS) as threads:
                asked = [threads.submit(ask, gateway.url, number, TOKENS) for number in range(STREAMS)]
                until(lambda: servers[1].metrics().requests_running > 2)
                servers[1].kill()
                streams = [each.result() for each in asked]
            outputs = sum((each.answer.usage or {}).get("completion_tokens", 0) for each in streams)
            prompts = sum((each.answer.usage or {}).get("prompt_tokens", 0) for each in streams)
            print(f"kill, continuation {'on' if continues else 'off'}: {shown(streams, wanted)}")
            if continues:
                moved = [each.longest_pause_s for each in streams if each.backend == "vllm-1"]
                print(f"  the longest pause of the {len(moved)} that moved: {percentiles(moved)}")
                charged = gateway.service()
                print(f"  received {outputs} output and {prompts} prompt tokens, charged {charged:g} units")
                print(f"  which is {OUTPUT_PRICE:g} x {outputs} + {charged - OUTPUT_PRICE * outputs:g} for prompts")
        servers[1].start()


def restart(servers: Sequence[Vllm], folder: Path) -> None:
    """Each of three is drained, ended and started again, while streams come without end."""
    config = {"continuation": {"drain_s": 0.5}, "queue": {"backend_wait_s_max": 60}}
    gateway = gateway_of(folder / "restart", servers, **config)
    streams: list[Stream] = []
    numbers, over = iter(range(100_000)), threading.Event()

    def load() -> None:
        while not over.is_set():
            streams.append(ask(gateway.url, next(numbers), TOKENS))
            time.sleep(0.2)

    with ExitStack() as stack:
        stack.callback(gateway.stop)
        gateway.start()
        admin = AdminClient(
            f"http://127.0.0.1:{gateway._admin.section['port']}", gateway._admin._key_file.read_text().strip()
        )
        with ThreadPoolExecutor(6) as threads:
            loads = [threads.submit(load) for _ in range(6)]
            for number, server in enumerate(servers):
                time.sleep(1.0)
                admin.ask("PATCH", f"/backends/vllm-{number}", {"draining": True})
                time.sleep(2.0)  # as long as a preStop hook may take
                server.stop()
                server.start()
                admin.ask("PATCH", f"/backends/vllm-{number}", {"draining": False})
            over.set()
            for each in loads:
                each.result()
        text = gateway_metric(gateway, "fairlead_pool_interruptions_total")
    print(f"rolling restart of {len(servers)}: {shown(streams)}; {text}")
    print(f"  the longest pause of each stream: {percentiles([each.longest_pause_s for each in streams])}")


def gateway_metric(gateway: Gateway, name: str) -> str:
    admin = AdminClient(
        f"http://127.0.0.1:{gateway._admin.section['port']}", gateway._admin._key_file.read_text().strip()
    )
    try:
        body = admin.ask("GET", "/metrics", None).body
    except Exception:  # noqa: BLE001 - a figure beside others
        return f"{name} not read"
    lines = body.splitlines() if isinstance(body, str) else []
    return "; ".join(line for line in lines if line.startswith(name)) or f"{name} not read"


def preempt(servers: Sequence[Vllm], folder: Path) -> None:
    """A chat tier beside long answers that hold every slot: they give way, or do not."""
    for gives_way in (False, True):
        config = {
            "tiers": TIERS,
            "tenants": {"chat": {"tier": "chat"}, "batch": {"tier": "batch"}},
            "continuation": {"preempt": GIVES_WAY} if gives_way else {},
            "auth": {"trusted_proxies": ["127.0.0.1/32"]},  # whose x-tenant-id names the tenant
        }
        gateway = gateway_of(folder / f"preempt-{gives_way}", servers[:2], **config)
        with ExitStack() as stack:
            stack.callback(gateway.stop)
            gateway.start()
            begun = time.perf_counter()
            with ThreadPoolExecutor(4 * SEATS + CHATS) as threads:
                batch = [threads.submit(ask, gateway.url, n, BATCH_TOKENS, "batch") for n in range(4 * SEATS)]
                time.sleep(1.0)
                chats = []
                for number in range(CHATS):
                    chats.append(threads.submit(ask, gateway.url, 1000 + number, CHAT_TOKENS, "chat"))
                    time.sleep(CHAT_EVERY_S)
                chat = [each.result() for each in chats]
                batches = [each.result() for each in batch]
            took_s = time.perf_counter() - begun
        tokens = sum(each.answer.usage["completion_tokens"] for each in (*chat, *batches))
        what = "give way" if gives_way else "do not give way"
        print(f"chat beside long answers that {what}: {shown([*chat, *batches])}")
        first_tokens = percentiles([each.ttft_s for each in chat])
        print(f"  chat's time to first token: {first_tokens}; {tokens / took_s:.0f} tokens/s")


SCENES = {"kill": kill, "restart": restart, "preempt": preempt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--scenes", default=",".join(SCENES), help=f"of {','.join(SCENES)}")
    scenes = parser.parse_args().scenes.split(",")
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        servers = [Vllm(folder / f"vllm-{number}.log") for number in range(3 if "restart" in scenes else 2)]
        for server in servers:
            stack.callback(server.stop)
        with ThreadPoolExecutor() as threads:
            list(threads.map(Vllm.start, servers))
        for scene in scenes:
            SCENES[scene](servers, folder)


if __name__ == "__main__":
    main()
