"""FIFO against VTC on real traffic: 27 tenants of a chat service share one real vLLM through the gateway.

    python -m tests.benchmarks.demos.fairness [--vllm DIR] [--out DIR] [--budget-s SECONDS]

The trace is the one behind tables 2 and 3 of the VTC paper (1,500 requests of 600 s, LMSYS Chatbot Arena). The
engine has the paper's shape: 32 seats, about 10,000 tokens of KV cache. First its capacity is measured through
the gateway with a closed loop; then time is compressed until 1.25 of that is offered, as it was in the paper, and
the windows of the paper's metric are compressed alike. Policies take turns, each time with a fresh gateway;
how often follows from the time budget. Prompts are random token ids of the recorded lengths, answers have exactly
the recorded length. Prints the results and saves them as text, SVG and JSON.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from backends.simulation.requests import Arrival, RequestRecord
from policies.accounts.cost import LinearPrice
from tests.benchmarks.demos.plot import svg
from tests.benchmarks.demos.servers import ROOT, gateway, vllm
from tests.simulation.arrivals import from_csv
from tests.simulation.fairness_metric import (
    ServiceDifference,
    Windows,
    accumulated_service,
    mean_ttft_s,
    service_difference,
    tenants_by_requests,
    throughput,
    window_gaps,
)

HERE = Path(__file__).parent
TRACE = HERE.parents[2] / "tests/evidence/data/vtc_lmsys_real_trace.csv"
TRACE_S = 600.0
POLICIES = ("fifo", "vtc")
OVERLOAD = 1.25  # offered service over capacity
ROUNDS_MAX = 2
CALIBRATION_REQUESTS = 240
CALIBRATION_CONCURRENCY = 96  # three times the seats: the queue is never empty
RANKS = (1, 2, 13, 14)
TOKENS = LinearPrice(prompt=1.0, cached_prompt=1.0, output=1.0)


@dataclass(frozen=True)
class Replay:
    """One pass of the trace under one policy. Times are seconds of this run, rates are per second of it."""

    fairness: str
    records: list[RequestRecord]
    wall_s: float
    difference: ServiceDifference
    gaps: list[float]
    throughput: float
    ttft_s: dict[str, float]
    service: dict[str, float]
    """Every tenant's service until the last arrival: later every tenant has received all that it asked for."""
    gateway_cpu_ratio: float
    vllm_cpu_ratio: float
    client_cpu_ratio: float


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    with TRACE.open() as lines:
        trace = list(from_csv(lines))
    started_at = time.monotonic()
    with vllm(installed=options.vllm, folder=options.out) as backend:
        capacity = calibrate(trace, backend, options.out)
        trace_tokens = sum(arrival.prompt_tokens + arrival.output_tokens for arrival in trace)
        left_s = options.budget_s - (time.monotonic() - started_at)
        rounds = max(1, min(ROUNDS_MAX, int(left_s / (len(POLICIES) * trace_tokens / capacity))))
        speed = OVERLOAD * capacity / (trace_tokens / TRACE_S)
        print(f"capacity {capacity:,.0f} tokens/s; the trace's 600 s become {TRACE_S / speed:.0f} s; {rounds} round(s)")
        replays = []
        for number in range(rounds):
            for fairness in POLICIES if number % 2 == 0 else reversed(POLICIES):  # so that a drift cancels out
                replays.append(replay(trace, speed=speed, fairness=fairness, backend=backend, folder=options.out))
                print(f"  {fairness}: {_line(replays[-1])}", flush=True)
    report = "\n".join(report_lines(trace, replays, speed=speed, capacity=capacity))
    print(report)
    (options.out / "fairness-demo.txt").write_text(report + "\n")
    (options.out / "fairness-demo.svg").write_text(figure(replays, speed=speed))
    (options.out / "fairness-demo.json").write_text(json.dumps([asdict(each) for each in replays]))
    print(f"saved in {options.out}; {time.monotonic() - started_at:.0f} s in all")


def calibrate(trace: list[Arrival], backend, folder: Path) -> float:
    """Prompt and output tokens per second with always more in the queue than fits, through the gateway."""
    with gateway(backend=backend, name="fifo", folder=folder, scheduling={"fairness": "fifo"}) as server:
        records, _ = drive(trace[:CALIBRATION_REQUESTS], server, concurrency=CALIBRATION_CONCURRENCY)
    last_sent_s = max(record.arrived_at for record in records)
    start_s = last_sent_s / 3  # the first answers teach the gateway how long answers are
    totals = accumulated_service(records, [start_s, last_sent_s], price=TOKENS)
    return sum(series[1] - series[0] for series in totals.values()) / (last_sent_s - start_s)


def replay(trace: list[Arrival], *, speed: float, fairness: str, backend, folder: Path) -> Replay:
    """Send the whole trace at its own times, `speed` times as fast, through a fresh gateway."""
    windows = Windows().scaled(1 / speed)
    backend_cpu_s = backend.cpu_s()
    with gateway(backend=backend, name=fairness, folder=folder, scheduling={"fairness": fairness}) as server:
        gateway_cpu_s = server.cpu_s()
        records, client_cpu_s = drive(trace, server, speed=speed)
        gateway_cpu_s = server.cpu_s() - gateway_cpu_s
    wall_s = max(record.arrived_at + record.total_latency_s for record in records)
    totals = accumulated_service(records, [TRACE_S / speed])
    return Replay(
        fairness=fairness,
        records=records,
        wall_s=wall_s,
        difference=service_difference(records, windows=windows),
        gaps=window_gaps(records, windows=windows),
        throughput=throughput(records, wall_s),
        ttft_s=mean_ttft_s(records),
        service={tenant: series[0] for tenant, series in totals.items()},
        gateway_cpu_ratio=gateway_cpu_s / wall_s,
        vllm_cpu_ratio=(backend.cpu_s() - backend_cpu_s) / wall_s,
        client_cpu_ratio=client_cpu_s / wall_s,
    )


def drive(
    arrivals: Iterable[Arrival], server, *, speed: float = 1.0, concurrency: int | None = None
) -> tuple[list[RequestRecord], float]:
    """Let the client process send the arrivals; the records and the CPU time it took. SystemExit on any error."""
    requests = [
        {"tenant": a.tenant_id, "at_s": a.at_s / speed, "prompt": a.prompt_tokens, "output": a.output_tokens}
        for a in arrivals
    ]
    job = {"port": server.port, "model": "tiny", "concurrency": concurrency, "requests": requests}
    client = [sys.executable, HERE / "client.py"]
    done = subprocess.run(client, check=True, input=json.dumps(job).encode(), stdout=subprocess.PIPE)
    *rows, cost = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [row for row in rows if row["error"]]
    if failed or len(rows) != len(requests):
        raise SystemExit(f"{len(failed)} of {len(requests)} requests failed, the first: {failed[:1]}")
    records = [
        RequestRecord(row["tenant"], row["at_s"], row["prompt"], row["output"], row["first_s"], row["total_s"])
        for row in rows
    ]
    return records, cost["cpu_s"]


def report_lines(trace: list[Arrival], replays: list[Replay], *, speed: float, capacity: float) -> Iterable[str]:
    """Render the tables; figures of several rounds are means."""
    runs = {fairness: [each for each in replays if each.fairness == fairness] for fairness in POLICIES}
    ranked = tenants_by_requests(replays[0].records)
    mean = {
        fairness: {
            "avg": fmean(run.difference.average for run in group),
            "max": fmean(run.difference.maximum for run in group),
            "throughput": fmean(run.throughput for run in group),
            **{f"ttft{rank}": fmean(run.ttft_s[ranked[rank - 1]] for run in group) for rank in RANKS},
        }
        for fairness, group in runs.items()
    }
    yield f"\n{len(trace)} requests of {len(ranked)} tenants, 600 s in {TRACE_S / speed:.0f} s, {len(replays)} replays"
    yield f"capacity {capacity:,.0f} tokens/s through the gateway, {OVERLOAD} of it offered\n"
    yield f"{'':44}{'FIFO':>10}{'VTC':>10}{'VTC/FIFO':>10}"
    labels = {
        "avg": "service difference, average (weighted tokens/s)",
        "max": "service difference, maximum",
        **{f"ttft{rank}": f"mean time to first token, tenant {rank:2} of 27 (s)" for rank in RANKS},
        "throughput": "throughput (tokens/s)",
    }
    for name, label in labels.items():
        fifo, vtc = mean["fifo"][name], mean["vtc"][name]
        yield f"{label:47}{fifo:>9,.4g}{vtc:>10,.4g}{vtc / fifo:>9.2f}"
    for fairness, group in runs.items():
        parts = {
            "vLLM": fmean(run.vllm_cpu_ratio for run in group),
            "gateway": fmean(run.gateway_cpu_ratio for run in group),
            "client": fmean(run.client_cpu_ratio for run in group),
        }
        yield f"cores used, {fairness}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in parts.items())
    yield f"\nby tenant, service until the last arrival ({TRACE_S / speed:.0f} s) and mean time to first token"
    yield f"{'rank':>4} {'tenant':>7}{'requests':>9}{'asked':>9} |{'FIFO':>9}{'VTC':>9} |{'FIFO s':>9}{'VTC s':>9}"
    for rank, tenant in enumerate(ranked, start=1):
        mine = [arrival for arrival in trace if arrival.tenant_id == tenant]
        asked = sum(arrival.prompt_tokens + 2 * arrival.output_tokens for arrival in mine)
        service, ttft_s = (
            {fairness: fmean(getattr(run, name)[tenant] for run in group) for fairness, group in runs.items()}
            for name in ("service", "ttft_s")
        )
        yield (
            f"{rank:>4} {tenant:>7}{len(mine):>9}{asked:>9,} |{service['fifo']:>9,.0f}{service['vtc']:>9,.0f} |"
            f"{ttft_s['fifo']:>9.2f}{ttft_s['vtc']:>9.2f}"
        )


def figure(replays: list[Replay], *, speed: float) -> str:
    """Draw the first round."""
    first = {fairness: next(each for each in replays if each.fairness == fairness) for fairness in POLICIES}
    ranked = tenants_by_requests(replays[0].records)
    spans = Windows().scaled(1 / speed).spans()
    return svg(
        title="27 tenants of a real chat trace on one vLLM at 1.25 of its capacity",
        gap_times_s=[(start + end) / 2 for start, end in spans],
        gaps={fairness: run.gaps for fairness, run in first.items()},
        ttft_s={fairness: [run.ttft_s[tenant] for tenant in ranked] for fairness, run in first.items()},
    )


def _line(run: Replay) -> str:
    return (
        f"{run.wall_s:.0f} s, service difference {run.difference.average:.0f} average, {run.difference.maximum:.0f}"
        f" maximum, {run.throughput:,.0f} tokens/s"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=ROOT / ".vllm", help="where tests/vllm/install.sh put it")
    parser.add_argument("--out", type=Path, default=ROOT / "build/fairness-demo")
    parser.add_argument("--budget-s", type=float, default=320.0, help="for everything; decides the number of rounds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
