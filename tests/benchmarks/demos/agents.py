"""Agents on one real vLLM: without a gateway, through it as it was, and with sessions admitted while they fit.

    python tests/benchmarks/demos/agents.py [--vllm DIR] [--out DIR] [--rounds N] [--seconds S] [--rows NAME,NAME]
        [--chats N]

24 agents of two tenants (A has 20, B has 4) each send turns of one session after another: 1,200 tokens at first, 144
more with each turn, answers of 24 tokens, twelve turns, 0.1 s between an answer and the next turn. The engine is vLLM
on two CPU cores with a Llama of 13 M random parameters and a KV pool of 16,384 tokens, which a third of the sessions
fill. Rows take turns, each time with a fresh gateway; figures are medians over the rounds. The first third of each run
is left out of all but the times of sessions: these are of the sessions that began in the first half, and one that is
not over at the end counts as long as it has lasted. `--chats` adds clients of a third tenant that send short prompts
(agents_client.py); the row "chats" has these alone, "one" has one agent beside them. Prints the table and saves it with
every run's figures as JSON.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from servers import ROOT, gateway, vllm

HERE = Path(__file__).parent
POOL_TOKENS = 16_384
BLOCK_TOKENS = 32
SEATS = 16
TENANTS = {"A": 20, "B": 4}
FIRST_TOKENS, ADDED_TOKENS, OUTPUT_TOKENS, TURNS, GAP_S = 1200, 144, 24, 12, 0.1
WARM_RATIO = 1 / 3  # of a run, left out
BEGUN_RATIO = 1 / 2  # of a run: the times of sessions are of those that began until then
ENGINE = (
    *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--max-num-seqs", str(SEATS)),
    *("--max-num-batched-tokens", "512", "--block-size", str(BLOCK_TOKENS)),
    *("--num-gpu-blocks-override", str(POOL_TOKENS // BLOCK_TOKENS)),
)
SIZES = {"HIDDEN": 512, "LAYERS": 4, "HEADS": 8, "KV_HEADS": 2}  # of 64 each: 13 M parameters


@dataclass(frozen=True)
class Row:
    """A way to reach the engine. `scheduling` is that of the gateway; None: there is none."""

    label: str
    scheduling: dict[str, Any] | None
    is_final_told: bool = False
    tenants: Mapping[str, int] = field(default_factory=lambda: TENANTS)  # agents of each


OFF, ON = {"hold_sessions": False}, {"hold_sessions": True}
ROWS = {
    "direct": Row("no gateway", None),
    "vtc": Row("vtc, sessions not held", {"fairness": "vtc", **OFF}),
    "dlpm": Row("dlpm, sessions not held", {"fairness": "dlpm", **OFF}),
    "sessions": Row("vtc, sessions held", {"fairness": "vtc", **ON}),
    "told": Row("the same, ends of sessions told", {"fairness": "vtc", **ON}, is_final_told=True),
}
CHATS = {
    "chats": Row("chats alone, through the gateway", {"fairness": "vtc", **ON}, tenants={}),
    "one": Row("chats and one agent, no gateway", None, tenants={"A": 1}),
}


@dataclass(frozen=True)
class Figures:
    """One run. Times in seconds; `turns` by tenant."""

    row: str
    tokens_per_s: float
    hits: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    session_p50_s: float
    session_p90_s: float
    chat_p50_s: float
    chat_p99_s: float
    turns: dict[str, int]
    errors: int


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [(ROWS | CHATS)[name] for name in options.rows.split(",")]
    runs: list[Figures] = []
    with vllm(*ENGINE, installed=_model(options.vllm, options.out), folder=options.out) as engine:
        drive(engine, ROWS["direct"], seconds=8.0, seed=0, chats=0)  # the first steps of an engine are slow
        for number in range(options.rounds):
            for place, row in enumerate(rows if number % 2 == 0 else rows[::-1]):  # so that a drift cancels out
                seed = 1 + number * len(rows) + place
                with entrance(engine, row, options.out) as server:
                    runs.append(drive(server, row, seconds=options.seconds, seed=seed, chats=options.chats))
                print(f"  {_line(runs[-1])}", flush=True)
    report = "\n".join(report_lines(rows, runs, options))
    print(report)
    (options.out / "agents-demo.txt").write_text(report + "\n")
    (options.out / "agents-demo.json").write_text(json.dumps([asdict(each) for each in runs]))


@contextmanager
def entrance(engine: Any, row: Row, folder: Path) -> Iterator[Any]:
    """What the agents of a row talk to."""
    if row.scheduling is None:
        yield engine
        return
    backends = {"requests_running_max": SEATS}
    with gateway(backend=engine, name="agents", folder=folder, scheduling=row.scheduling, backends=backends) as server:
        yield server


def drive(server: Any, row: Row, *, seconds: float, seed: int, chats: int) -> Figures:
    """Let the client process play the agents for some seconds."""
    job = {
        "port": server.port,
        "model": "tiny",
        "tenants": dict(row.tenants),
        "chats": chats,
        "first": FIRST_TOKENS,
        "added": ADDED_TOKENS,
        "output": OUTPUT_TOKENS,
        "turns": TURNS,
        "gap_s": GAP_S,
        "seconds": seconds,
        "seed": seed,
        "tell_final": row.is_final_told,
    }
    client = [sys.executable, HERE / "agents_client.py"]
    done = subprocess.run(client, check=True, input=json.dumps(job).encode(), stdout=subprocess.PIPE)
    told = [SimpleNamespace(**json.loads(line)) for line in done.stdout.splitlines()]
    warm_s = seconds * WARM_RATIO
    warm = [each for each in told if each.kind == "turn" and each.error is None and each.ended_s >= warm_s]
    turns = [each for each in warm if each.tenant in TENANTS]
    chats_s = sorted(each.ttft_s for each in warm if each.tenant not in TENANTS)
    begun = [each for each in told if each.kind == "session" and each.began_s <= seconds * BEGUN_RATIO]
    sessions_s = sorted(each.seconds for each in begun)
    ttft_s = sorted(each.ttft_s for each in turns)
    return Figures(
        row.label,
        sum(each.output for each in turns) / (seconds - warm_s),
        sum(each.cached for each in turns) / max(1, sum(each.prompt for each in turns)),
        *(_quantile(ttft_s, part) for part in (0.5, 0.9, 0.99)),
        *(_quantile(sessions_s, part) for part in (0.5, 0.9)),
        *(_quantile(chats_s, part) for part in (0.5, 0.99)),
        turns={tenant: sum(each.tenant == tenant for each in turns) for tenant in TENANTS},
        errors=sum(each.kind == "turn" and each.error is not None for each in told),
    )


def report_lines(rows: list[Row], runs: list[Figures], options: argparse.Namespace) -> Iterator[str]:
    """The table: medians over the rounds, and each row over the first."""
    yield f"\n{options.rounds} round(s) of {options.seconds:.0f} s, the first third of each left out; medians\n"
    names = ("tokens/s", "ratio", "hits", "TTFT p50", "p90", "p99 s", "session p50", "p90 s", "turns A : B")
    names += ("chat p50", "p99 s", "errors")
    yield f"{'':34}" + "".join(f"{name:>12}" for name in names)
    first: float | None = None
    for row in rows:
        mine = [each for each in runs if each.row == row.label]
        middle = {
            name: median(getattr(each, name) for each in mine)
            for name in Figures.__dataclass_fields__
            if name not in {"row", "turns"}
        }
        first = first or middle["tokens_per_s"]
        turns = " : ".join(f"{median(each.turns[tenant] for each in mine):.0f}" for tenant in TENANTS)
        ratio = middle["tokens_per_s"] / (first or nan)
        yield (
            f"{row.label:34}{middle['tokens_per_s']:12.1f}{ratio:12.2f}{middle['hits']:12.3f}"
            f"{middle['ttft_p50_s']:12.3f}{middle['ttft_p90_s']:12.2f}{middle['ttft_p99_s']:12.2f}"
            f"{middle['session_p50_s']:12.1f}{middle['session_p90_s']:12.1f}{turns:>12}"
            f"{middle['chat_p50_s']:12.3f}{middle['chat_p99_s']:12.3f}{middle['errors']:12.0f}"
        )


def _line(run: Figures) -> str:
    return (
        f"{run.row}: {run.tokens_per_s:.0f} tokens/s, hits {run.hits:.3f}, TTFT p50 {run.ttft_p50_s:.2f} s,"
        f" session p50 {run.session_p50_s:.1f} s, p90 {run.session_p90_s:.1f} s, turns {run.turns}, chats' TTFT p50"
        f" {run.chat_p50_s:.3f} s, p99 {run.chat_p99_s:.3f} s, {run.errors} errors"
    )


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def _model(installed: Path, folder: Path) -> Path:
    """A folder as install.sh makes one, with the model of this demo: made as the tiny one is, of other sizes."""
    made = folder / "vllm"
    if not (made / "model").exists():
        made.mkdir(parents=True, exist_ok=True)
        (made / "venv").unlink(missing_ok=True)
        (made / "venv").symlink_to(installed.resolve() / "venv")
        lines = ["import sys, make_tiny_model", *(f"make_tiny_model.{name} = {size}" for name, size in SIZES.items())]
        lines += [f"sys.argv = ['', {str(made / 'model')!r}]", "make_tiny_model.main()"]
        command = [made / "venv/bin/python", "-c", "\n".join(lines)]
        subprocess.run(command, check=True, cwd=ROOT / "tests/vllm")
    return made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=ROOT / ".vllm", help="where tests/vllm/install.sh put it")
    parser.add_argument("--out", type=Path, default=ROOT / "build/agents-demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each run")
    parser.add_argument("--chats", type=int, default=0, help="clients that chat beside the agents")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS | CHATS)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
