"""A chat beside a flood: what keeps the chat's latencies when a batch tenant sends 2,000-token prompts without end?

    python tests/benchmarks/demos/slo.py [--vllm DIR] [--out DIR] [--rounds N] [--arms none,fifo,...]

One real vLLM whose full step stays under the chat's target for the time per token, and that gives no prompt more than
a part of a step (--long-prefill-token-threshold), whatever is in front of it. How many tokens that is depends on the
machine, and follows from what a first engine takes, of which the gateway's step-time model is learnt, too (`fairlead
calibrate`, CALIBRATION_S). The targets are those that an empty engine gives: three times the chat's own median time
to first token and a full step, and three times its median time per output token, or what the smallest useful step
needs where the engine is slower than that: one that holds a part of one long prompt and leaves room for a short one.
The chat arrives at random times (Poisson); the flood has always FLOOD requests in flight. The ways to serve both take
turns, each time with a fresh gateway that starts from what was learnt. One of the ways is the control of a limit: no
gateway, and a flood that never has more requests in flight than leave a part of each step free. The plugin's vLLM runs
beside the other; one of them does nothing. Throughput is what vLLM's own counters moved by. Prints the results and
saves them as text and JSON.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from servers import ROOT, gateway, vllm

from backends.metrics import parse_metrics

import plugin  # isort: skip - servers.py says where it is

HERE = Path(__file__).parent
CHAT = {"tenant": "chat", "prompt": 60, "output": 24}
BATCH = {"tenant": "batch", "prompt": 2_000, "output": 16}
CHAT_PER_S = 6.0
FLOOD = 48  # requests of the batch tenant in flight, more than seats
FLOOD_REQUESTS = 1_500  # more than one turn can serve
SOLO_S = 10.0
WARM_UP_S = 6.0
TURN_S = 12.0
TARGET_FACTOR = 3.0
CALIBRATION_S = 20
FIRST_STEP_TOKENS_MAX = 512  # of the engine that is calibrated
STEP_TOKENS_UNIT = 32
STEP_RATIO_MAX = 0.6  # of the target for the time per token: what a full step takes; the rest is for noise
FREE_TOKENS = 64  # of every step, for a short prompt that may come: the chat's fits one step
SHARE_TOKENS = 64  # about what a long prompt gets of it
POOL = ("--num-gpu-blocks-override", "2048")
WITH_PLUGIN = "VTC + SLO + plugin"
BY_HAND = "flood cut by hand"
BY_HAND_RELAYED = "the same through FIFO"  # through a gateway that limits nothing


@dataclass(frozen=True)
class Steps:
    """The most tokens that a step of the engine computes, and those of one prompt among them."""

    tokens_max: int
    prompt_tokens_max: int

    @property
    def long_prompts(self) -> int:
        """How many at once leave FREE_TOKENS of each step to others."""
        return (self.tokens_max - FREE_TOKENS) // self.prompt_tokens_max

    @property
    def options(self) -> tuple[str, ...]:
        sizes = ("--max-num-batched-tokens", self.tokens_max, "--long-prefill-token-threshold", self.prompt_tokens_max)
        return (*map(str, sizes), *POOL)


@dataclass(frozen=True)
class Targets:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Turn:
    """What the chat saw, and what the engine did meanwhile (prompt and output tokens per second of all)."""

    arm: str
    ttft_s: list[float]
    tpot_s: list[float]
    tokens_per_s: float

    def inside(self, targets: Targets) -> float:
        """The part of the chat's requests that met both targets."""
        met = [
            ttft_s <= targets.ttft_s and tpot_s <= targets.tpot_s
            for ttft_s, tpot_s in zip(self.ttft_s, self.tpot_s, strict=True)
        ]
        return sum(met) / len(met)


def arms(targets: Targets, steps: Steps, step_time: Path) -> dict[str, dict | None]:
    """The configuration of the gateway; None: no gateway."""
    tenants = {
        "auth": {"mode": "open", "trusted_proxies": ["127.0.0.1/32"]},  # the client names its tenant
        "tenants": {"chat": {"tier": "chat"}, "batch": {"tier": "batch"}},
    }
    envelope = {"ttft_ms": 1e3 * targets.ttft_s, "tpot_ms": 1e3 * targets.tpot_s}
    fair = {**tenants, "tiers": {"chat": {}, "batch": {}}}
    fifo = {**fair, "scheduling": {"fairness": "fifo", "limit": "room"}}
    in_time = {
        **tenants,
        "tiers": {"chat": {"envelope": envelope, "reserve_ratio": 0.2}, "batch": {}},
        "scheduling": {"fairness": {"policy": "slack", "second_key": "deadline"}},
    }
    engine = {
        "step_tokens_max": steps.tokens_max,
        "prompt_step_tokens_max": steps.prompt_tokens_max,
        "step_time_file": str(step_time),
    }
    return {
        "no gateway": None,
        BY_HAND: None,
        BY_HAND_RELAYED: fifo,
        "FIFO": fifo,
        "VTC": {**fair, "scheduling": {"fairness": "vtc", "limit": "room"}},
        "VTC + SLO": {**in_time, "backends": engine},
        WITH_PLUGIN: {**in_time, "backends": {"step_time_file": str(step_time)}},
    }


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    started_at = time.monotonic()
    with ExitStack() as running:
        step_time = options.out / "step-time.yaml"
        steps = choose_steps(options.vllm, options.out, step_time)
        stock = running.enter_context(vllm(*steps.options, installed=options.vllm, folder=options.out))
        targets, solo = measure_alone(stock, steps)
        table = arms(targets, steps, step_time)
        table = {name: table[name] for name in options.arms or table}
        backends = dict.fromkeys(table, stock)
        if WITH_PLUGIN in table:
            backends[WITH_PLUGIN] = running.enter_context(vllm_with_plugin(steps, options.vllm, options.out))
        turns = []
        for number in range(options.rounds):
            for name in table if number % 2 == 0 else reversed(table):  # so that a drift cancels out
                backend = backends[name]
                with front(name, table[name], backend, options.out) as server:
                    flood = steps.long_prompts if name in {BY_HAND, BY_HAND_RELAYED} else FLOOD
                    turn = take_turn(name, server, backend, requests_per_s=CHAT_PER_S, seconds=TURN_S, flood_max=flood)
                    turns.append(turn)
                print(f"  {_line(turns[-1], targets)}", flush=True)
    report = "\n".join(report_lines(turns, solo, targets))
    print(report)
    (options.out / "slo-demo.txt").write_text(report + "\n")
    (options.out / "slo-demo.json").write_text(json.dumps([asdict(each) for each in [solo, *turns]]))
    print(f"saved in {options.out}; {time.monotonic() - started_at:.0f} s in all")


def choose_steps(installed: Path, folder: Path, step_time: Path) -> Steps:
    """The largest steps well under the chat's target on this machine, by an engine with steps of another size.
    What `fairlead calibrate` learns of it is kept in `step_time`.
    """
    first = Steps(FIRST_STEP_TOKENS_MAX, FIRST_STEP_TOKENS_MAX)
    with vllm(*first.options, installed=installed, folder=folder) as engine:
        token_s, full_s = median(alone(engine).tpot_s), measure_full_step(engine, first)
        calibrate(engine, step_time)
    # A step takes as long as one of a few decodes, and more in proportion to its tokens.
    room_s = (STEP_RATIO_MAX * TARGET_FACTOR - 1) * token_s
    tokens_max = round(first.tokens_max * room_s / (full_s - token_s) / STEP_TOKENS_UNIT) * STEP_TOKENS_UNIT
    tokens_max = max(FREE_TOKENS + SHARE_TOKENS, tokens_max)
    long_prompts = (tokens_max - FREE_TOKENS) // SHARE_TOKENS
    steps = Steps(tokens_max, (tokens_max - FREE_TOKENS) // long_prompts)
    print(f"{steps}: {long_prompts} long prompts leave {FREE_TOKENS} tokens of a step to short ones", flush=True)
    return steps


def alone(backend) -> Turn:
    """What the chat sees of an engine without other load."""
    return take_turn("solo", backend, backend, requests_per_s=CHAT_PER_S, seconds=SOLO_S, flood_max=0)


def measure_alone(backend, steps: Steps) -> tuple[Targets, Turn]:
    """The same, and the targets that follow."""
    solo, full_s = alone(backend), measure_full_step(backend, steps)
    tpot_s = max(TARGET_FACTOR * median(solo.tpot_s), full_s / STEP_RATIO_MAX)
    targets = Targets(ttft_s=TARGET_FACTOR * median(solo.ttft_s) + full_s, tpot_s=tpot_s)
    print(
        f"alone: TTFT {1e3 * median(solo.ttft_s):.1f} ms, TPOT {1e3 * median(solo.tpot_s):.1f} ms; a full step of"
        f" {steps.tokens_max} tokens {1e3 * full_s:.1f} ms; targets {1e3 * targets.ttft_s:.1f} and"
        f" {1e3 * targets.tpot_s:.1f} ms",
        flush=True,
    )
    return targets, solo


def calibrate(backend, step_time: Path) -> None:
    """Learn the engine's step time from outside, as an operator would."""
    command = [ROOT / ".venv/bin/fairlead", "calibrate", "--backend", f"http://127.0.0.1:{backend.port}"]
    subprocess.run(
        [*command, "--seconds", str(CALIBRATION_S), "--out", step_time], check=True, stderr=subprocess.DEVNULL
    )


@contextmanager
def vllm_with_plugin(steps: Steps, installed: Path, folder: Path) -> Iterator:
    """The same vLLM with FairBatching, which cuts prompts itself."""
    with TemporaryDirectory() as directory:
        site = plugin.install(installed / "venv/bin/python", Path(directory))
        environment = plugin.environment(site, FAIRLEAD_OPEN="1")
        options = ("--max-num-batched-tokens", str(steps.tokens_max), *POOL)
        with vllm(
            *options, *plugin.SCHEDULER, installed=installed, folder=folder, name="vllm-plugin", environment=environment
        ) as server:
            yield server


@contextmanager
def front(name: str, sections: Mapping | None, backend, folder: Path) -> Iterator:
    """What the clients speak to."""
    if sections is None:
        yield backend
        return
    with gateway(backend=backend, name=name.lower().replace(" ", "-"), folder=folder, **sections) as server:
        yield server


def take_turn(arm: str, server, backend, *, requests_per_s: float, seconds: float, flood_max: int) -> Turn:
    """The chat's requests of so many seconds; the flood, so many requests at once, begins before and ends after."""
    rng = Random(arm == "solo")
    at_s, requests = 0.0, []
    while (at_s := at_s + rng.expovariate(requests_per_s)) < seconds:
        requests.append({**CHAT, "at_s": at_s})
    flood = _start(server, [{**BATCH, "at_s": 0.0}] * FLOOD_REQUESTS, flood_max) if flood_max else None
    try:
        if flood:
            time.sleep(WARM_UP_S)
        tokens, began_at = tokens_of(backend), time.monotonic()
        chat = _start(server, requests, None)
        output, _ = chat.communicate()
        wall_s, tokens = time.monotonic() - began_at, tokens_of(backend) - tokens
        if flood and flood.poll() is not None:
            raise SystemExit(f"the flood ended before the chat: exit {flood.returncode}")
    finally:
        if flood:
            flood.kill()
            flood.communicate()
    *rows, _ = [json.loads(line) for line in output.splitlines()]
    failed = [row for row in rows if row["error"]]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(rows)} chat requests failed, the first: {failed[0]}")
    wait_until_idle(backend)
    return Turn(arm, [row["first_s"] for row in rows], [row["tpot_s"] for row in rows], tokens / wall_s)


def measure_full_step(backend, steps: Steps) -> float:
    """Seconds of a step that computes as many tokens as it may: so many prompts at once that all steps are full, until
    the last is computed, and a step's share of that.
    """
    prompts = 2 * (steps.tokens_max // steps.prompt_tokens_max + 1)
    times = []
    for _ in range(5):
        client = _start(backend, [{"tenant": "step", "prompt": 1_024, "output": 1, "at_s": 0.0}] * prompts, None)
        *rows, _ = [json.loads(line) for line in client.communicate()[0].splitlines()]
        times.append(max(row["first_s"] for row in rows) * steps.tokens_max / (prompts * 1_024))
    return median(times)


def tokens_of(backend) -> float:
    """Prompt and output tokens that the engine has computed since it started."""
    metrics = _metrics(backend)
    return metrics.prompt_tokens_total + metrics.generation_tokens_total


def wait_until_idle(backend) -> None:
    """What the flood left behind is over."""
    for _ in range(200):
        metrics = _metrics(backend)
        if not metrics.requests_running and not metrics.requests_waiting:
            return
        time.sleep(0.1)
    raise SystemExit("the engine did not come to rest")


def report_lines(turns: list[Turn], solo: Turn, targets: Targets) -> Iterator[str]:
    """The table; each figure is the median of the rounds."""
    names = list(dict.fromkeys(turn.arm for turn in turns))
    base = median([turn.tokens_per_s for turn in turns if turn.arm == names[0]])
    yield f"\n{CHAT_PER_S:g} chats a second beside a flood; medians of {len(turns) // len(names)} turns of {TURN_S:g} s"
    yield f"{'':22}{'inside':>8}{'TTFT p50':>10}{'p99':>8}{'TPOT p50':>10}{'tokens/s':>10}{'':>8}"
    for name in names:
        mine = [turn for turn in turns if turn.arm == name]
        p50 = median([median(turn.ttft_s) for turn in mine]) / median(solo.ttft_s)
        p99 = median([_p99(turn.ttft_s) for turn in mine]) / median(solo.ttft_s)
        tpot = median([median(turn.tpot_s) for turn in mine]) / median(solo.tpot_s)
        rate = median([turn.tokens_per_s for turn in mine])
        inside = median([turn.inside(targets) for turn in mine])
        yield f"{name:22}{inside:>8.0%}{p50:>9.1f}x{p99:>7.1f}x{tpot:>9.1f}x{rate:>10,.0f}{rate / base:>8.2f}"
    yield "TTFT and TPOT in multiples of the medians alone; tokens/s of everybody, and over the first row's"


def _line(turn: Turn, targets: Targets) -> str:
    return (
        f"{turn.arm}: {turn.inside(targets):.0%} inside, TTFT {1e3 * median(turn.ttft_s):.0f} ms median,"
        f" {1e3 * _p99(turn.ttft_s):.0f} ms p99, TPOT {1e3 * median(turn.tpot_s):.1f} ms,"
        f" {turn.tokens_per_s:,.0f} tokens/s"
    )


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def _start(server, requests: list[dict], concurrency: int | None) -> subprocess.Popen[bytes]:
    """The client, which has read its job."""
    client = subprocess.Popen([sys.executable, HERE / "client.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job = {"port": server.port, "model": "tiny", "concurrency": concurrency, "requests": requests}
    client.stdin.write(json.dumps(job).encode())
    client.stdin.close()
    client.stdin = None
    return client


def _metrics(backend):
    with urllib.request.urlopen(f"http://127.0.0.1:{backend.port}/metrics", timeout=5) as response:
        return parse_metrics(response.read().decode())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=ROOT / ".vllm", help="where tests/vllm/install.sh put it")
    parser.add_argument("--out", type=Path, default=ROOT / "build/slo-demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", type=lambda text: text.split(","), help="only these")
    return parser.parse_args()


if __name__ == "__main__":
    main()
