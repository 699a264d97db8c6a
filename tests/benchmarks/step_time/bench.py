"""How well is the step time of a real vLLM known: from reports of every step, and from its counters alone?

    python tests/benchmarks/step_time/bench.py [--out DIR] [--seconds N]

One vLLM with a scheduler that writes down every step (step_log.py), under the load of `fairlead calibrate`, its
/metrics scraped every 0.25 s. Half of the steps are held out; every fit is judged by them. The noise floor is how far
steps with nearly equal inputs differ among themselves. Then prompts are sent beside steady decodes, and the time to
first token is compared with what the model learnt from outside says. Last, the engine is exchanged for one that takes
three times as long. Prints a table and saves it with the steps and the scrapes. "Scaled" is the error that is left when
the model is made right in the median: what a pause adds to the mean of steps is then left out.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import asdict, astuple, dataclass, field
from math import ceil, log
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import monotonic

import aiohttp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "vllm"))

from processes import INSTALLED, Vllm  # noqa: E402 - of the suite against a real vLLM

from backends.metrics import SCRAPE_BYTES_MAX, parse_metrics  # noqa: E402
from backends.poll import Poller  # noqa: E402
from backends.spec import BackendSpec  # noqa: E402
from backends.step_times import ReportedStep, StepTimes, StepWindows  # noqa: E402
from gateway.calibrate.calls import CallSender, Target, run_for  # noqa: E402
from gateway.calibrate.mix import PHASES, Mix  # noqa: E402
from gateway.calibrate.run import equation, keep_calling  # noqa: E402
from policies.step_time import Observation, StepTimeModel, fit_all  # noqa: E402

CONTEXT_TOKENS_MAX = 4096
CHUNK_TOKENS = 512
SEATS = 32
OPTIONS = (
    *("--scheduler-cls", "step_log.StepLog", "--max-num-seqs", str(SEATS), "--no-enable-prefix-caching"),
    *("--max-num-batched-tokens", str(CHUNK_TOKENS), "--disable-uvicorn-access-log"),
)
SCRAPE_EVERY_S = 0.25
EQUAL = 1.13  # inputs that differ by less than that are equal
EQUAL_STEPS_MIN = 5
DECODES, DECODE_TOKENS = 8, 1000
PROBES = 60
PROBE_TOKENS = (200, 2500)
SLOWER_TIMES = 3.0
SWAP_S = 20.0
BATCH_STEPS = 32
RELEARNT_TIMES = 1.5  # the error of a fit to all steps


@dataclass
class Recording:
    """What was seen of one server: every step, in order, and its scrapes."""

    steps: list[Observation]
    scrapes: list[tuple[float, object]] = field(default_factory=list)
    probes: list[dict] = field(default_factory=list)

    def windows(self) -> list[Observation]:
        watched = StepWindows()
        found = [seen for at, metrics in self.scrapes for seen in watched.scraped(metrics, now=at)]
        return [seen for seen in found if seen.is_possible]


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    first = record(arguments, "first", times=1.0, seconds=arguments.seconds, probing=True)
    second = record(arguments, "second", times=SLOWER_TIMES, seconds=SWAP_S, probing=False)
    text = report(first, second)
    (arguments.out / "step-time.md").write_text(text)
    print(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/step-time"), help="where the results go")
    parser.add_argument("--seconds", type=float, default=90.0, help="of load")
    arguments = parser.parse_args()
    if not INSTALLED.exists():
        subprocess.run([HERE.parents[1] / "vllm/install.sh", INSTALLED], check=True)
    return arguments


# -- recording ---------------------------------------------------------------------------------------------


def record(arguments, name, *, times, seconds, probing):
    steps_file = arguments.out / f"steps-{name}.txt"
    steps_file.write_text("")
    environment = {"PYTHONPATH": str(HERE), "STEP_LOG": str(steps_file), "STEP_TIMES": str(times)}
    server = Vllm(arguments.out / f"vllm-{name}.log", *OPTIONS, environment=environment)
    recording = Recording([])
    try:
        server.start()
        asyncio.run(put_under_load(recording, BackendSpec(name, server.url), seconds=seconds, probing=probing))
    finally:
        server.stop()
    scrapes = [{"at": at, "engines": [asdict(each) for each in said.engine_steps]} for at, said in recording.scrapes]
    (arguments.out / f"scrapes-{name}.json").write_text(json.dumps(scrapes))
    rows = [tuple(map(float, line.split())) for line in steps_file.read_text().splitlines()]
    recording.steps = [Observation(row[1], 1, *row[2:]) for row in rows]
    return recording


async def put_under_load(recording, spec, *, seconds, probing):
    mix = Mix(Random(1), context_tokens_max=CONTEXT_TOKENS_MAX)
    async with CallSender() as caller:

        def calls(concurrent):
            return (keep_calling(caller, Target.at(spec, "tiny"), mix) for _ in range(concurrent))

        await run_for(3.0, calls(4))  # first of all: what is done once
        async with scraping(recording, spec):
            for concurrent in PHASES:
                await run_for(seconds / len(PHASES), calls(concurrent))
    if probing:
        async with scraping(Recording([]), spec) as now:
            recording.probes = await probe(spec, now)


@asynccontextmanager
async def scraping(recording, spec):
    """Scrape all the time; gives where the latest is."""
    poller, latest = Poller(10.0), []
    poller.start()

    async def scrape():
        while True:
            body = await poller.get(spec, "/metrics", bytes_max=SCRAPE_BYTES_MAX)
            metrics = parse_metrics(body.decode())
            recording.scrapes.append((asyncio.get_running_loop().time(), metrics))
            latest[:] = [metrics]
            await asyncio.sleep(SCRAPE_EVERY_S)

    task = asyncio.create_task(scrape())
    try:
        yield latest
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await poller.stop()


async def probe(spec, latest):
    """Prompts one after the other beside steady decodes: the inputs of a prediction, and the time to first token."""
    rng, probes = Random(2), []
    async with aiohttp.ClientSession() as session:
        decodes = [asyncio.create_task(decode_on(session, spec, rng)) for _ in range(DECODES)]
        await asyncio.sleep(2.0)
        for _ in range(PROBES):
            tokens = rng.randint(*PROBE_TOKENS)
            (engine,) = latest[0].engine_steps
            body = completion(rng, tokens, output=1) | {"stream": True}
            began_at = monotonic()
            async with session.post(f"{spec.url}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                await response.content.readany()
                took_s = monotonic() - began_at
            probes.append({"tokens": tokens, "context": engine.kv_used_tokens, "ttft_s": took_s})
            await asyncio.sleep(rng.uniform(0.05, 0.25))
        for decode in decodes:
            decode.cancel()
        await asyncio.gather(*decodes, return_exceptions=True)
    return probes


async def decode_on(session, spec, rng):
    while True:
        async with session.post(
            f"{spec.url}/v1/completions", json=completion(rng, 50, output=DECODE_TOKENS)
        ) as response:
            await response.read()


def completion(rng, tokens, *, output):
    prompt = [rng.randrange(300, 4000) for _ in range(tokens)]
    return {"model": "tiny", "prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0.0}


# -- judging -----------------------------------------------------------------------------------------------


def report(first, second):
    learnt_from, held_out = first.steps[0::2], first.steps[1::2]
    windows = first.windows()
    fits = {
        "reports of every other step": fit_all(learnt_from),
        "outside, from counters": fit_all(windows),
        "tokens only, from the reports": fit_all([blind(step) for step in learnt_from]),
    }
    floor = floor_errors(held_out)
    exact = median(errors(fits["reports of every other step"], held_out))
    lines = [
        f"{len(first.steps)} steps, {len(windows)} windows of scrapes; {len(held_out)} steps held out.",
        "",
        "| learnt from | model | median error per step | p90 | of the floor | of the reports | scaled | total time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    took_s = sum(step.seconds for step in held_out)
    for name, model in fits.items():
        found, said_s = errors(model, held_out), sum(step.predicted_s(model) for step in held_out)
        lines.append(
            f"| {name} | {equation(model)} | {median(found):.1%} | {quantiles(found, n=10)[-1]:.1%}"
            f" | {median(found) / median(floor):.2f} | {median(found) / exact:.2f}"
            f" | {median(errors(scaled(model, held_out), held_out)):.1%} | {said_s / took_s - 1.0:+.1%} |"
        )
    lines.append(f"| equal inputs (floor) | | {median(floor):.1%} | {quantiles(floor, n=10)[-1]:.1%} | | | | |")
    lines += ["", ttft_line(fits["outside, from counters"], first.probes), *swap_lines(first, second)]
    return "\n".join(lines) + "\n"


def errors(model, steps):
    return [abs(step.predicted_s(model) / step.seconds - 1.0) for step in steps]


def scaled(model, steps):
    """As the model would be if it were right in the median: what is left are errors of its form."""
    times = median(step.seconds / step.predicted_s(model) for step in steps)
    return StepTimeModel(*(each * times for each in astuple(model)))


def blind(step):
    return Observation(step.seconds, step.steps, step.new_tokens, 0, 0)


def floor_errors(steps):
    alike = defaultdict(list)
    for step in steps:
        inputs = step.new_tokens, max(step.context_token_steps, 1.0), step.request_steps
        alike[tuple(round(log(each) / log(EQUAL)) for each in inputs)].append(step.seconds)
    groups = [seconds for seconds in alike.values() if len(seconds) >= EQUAL_STEPS_MIN]
    return [abs(median(seconds) / each - 1.0) for seconds in groups for each in seconds]


def ttft_line(model: StepTimeModel, probes):
    predicted = [predicted_ttft_s(model, each["tokens"], each["context"]) for each in probes]
    found = [abs(said / each["ttft_s"] - 1.0) for said, each in zip(predicted, probes, strict=True)]
    shown = f"{median(each['ttft_s'] for each in probes) * 1e3:.1f} ms, predicted {median(predicted) * 1e3:.1f} ms"
    beside = f"Time to first token beside {DECODES} decodes, {len(probes)} prompts"
    return f"{beside}: median {shown}; median error {median(found):.1%}."


def predicted_ttft_s(model, tokens, context):
    """vLLM's order: every step takes all decodes and a chunk less them of the prompt. It joins with the next step."""
    chunk = CHUNK_TOKENS - DECODES
    steps = ceil(tokens / chunk)
    waits_s = model.step_s(new_tokens=DECODES, context_tokens=context, requests=DECODES) / 2
    reads = steps * context + sum(min(chunk * (number + 1), tokens) for number in range(steps))
    return waits_s + Observation(1.0, steps, tokens + steps * DECODES, reads, steps * (DECODES + 1)).predicted_s(model)


def swap_lines(first, second):
    reported, outside = relearnt_by_reports(first, second), relearnt_from_outside(first, second)
    return [
        f"Exchanged for an engine {SLOWER_TIMES:g} times as slow: learnt anew from reports after {reported} steps,",
        f"from outside after {outside} steps (a window has {steps_of_a_window(second)} of them in the median).",
    ]


def steps_of_a_window(recording):
    return round(median(window.steps for window in recording.windows()))


def relearnt_by_reports(first, second):
    learnt, history = StepTimes("b"), []
    learnt.reported([as_report(step) for step in first.steps], now=0.0)
    for begin in range(0, len(second.steps), BATCH_STEPS):
        batch = second.steps[begin : begin + BATCH_STEPS]
        learnt.reported([as_report(step) for step in batch], now=0.0)
        history.append((begin + len(batch), learnt.step_time.model))
    return first_good(history, second.steps)


def relearnt_from_outside(first, second):
    learnt, history = StepTimes("b"), []
    for at, metrics in first.scrapes:
        learnt.scraped(metrics, now=at)
    learnt.silent()
    begin = second.scrapes[0][1].engine_steps[0].steps_total
    for at, metrics in second.scrapes:
        learnt.scraped(metrics, now=at)
        history.append((metrics.engine_steps[0].steps_total - begin, learnt.step_time.model))
    return first_good(history, second.steps)


def as_report(step):
    return ReportedStep(int(step.new_tokens), int(step.context_token_steps), int(step.request_steps), step.seconds)


def first_good(history, steps):
    """After how many steps the error is, and then stays, nearly that of a fit to all steps of the new engine."""
    enough = RELEARNT_TIMES * median(errors(fit_all(steps), steps))
    found = [(count, median(errors(model, steps))) for count, model in history]
    bad = [count for count, error in found if error > enough]
    later = [count for count, _ in found if not bad or count > bad[-1]]
    return later[0] if later else f"more than {found[-1][0]}"


if __name__ == "__main__":
    main()
