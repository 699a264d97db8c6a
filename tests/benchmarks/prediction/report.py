"""How wrong is every prediction of output lengths on real traces? Prints a table in Markdown, a column for each trace.

    python tests/benchmarks/prediction/report.py

A trace is replayed in order: a request is predicted when it arrives and observed when its answer ends, one second and
30 ms per token later, so a predictor knows no more than it would at a gateway. Then all three traces go through one
pool at once, as the tenants of a gateway do. Beside the predictors that can be configured stands every expert of the
mixture by itself, which says what all last answers say where it has nothing to say.
"""

import argparse
import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import NamedTuple

from gateway.simulate.trace.tenancy import tenant_rule
from gateway.simulate.trace.traces import Trace
from policies.prediction import PREDICTION, Prediction
from policies.prediction.mixture import EXPERTS, QUANTILE, WINDOW_OUTPUTS, contexts
from policies.prediction.quantile import FIRST_TOKENS, OutputWindow
from policies.types import Request

ROOT = Path(__file__).parents[3]
SEED = 1
OUTPUT_TOKENS_MAX = 4096  # the traces do not say what a client allowed
FIRST_TOKEN_S, TOKEN_S = 1.0, 0.03


class Source(NamedTuple):
    """A trace file and the rule by which its calls get tenants."""

    title: str
    path: Path
    tenants: str


SOURCES = (
    Source("LMSYS Chatbot Arena sample", ROOT / "tests/evidence/data/vtc_lmsys_real_trace.csv", "column:client"),
    Source("Azure 2023, conversation", ROOT / "tests/benchmarks/data/azure2023_conv.csv.gz", "random:30:zipf"),
    Source("Mooncake, conversation", ROOT / "tests/benchmarks/data/mooncake_conversation_trace.jsonl.gz", "block:2:50"),
)


class OneExpert:
    """One expert of the mixture alone: the median of the last answers in the request's context."""

    def __init__(self, expert: int) -> None:
        self._expert = expert
        self._windows: dict[object, OutputWindow] = {}
        self._all = OutputWindow(WINDOW_OUTPUTS, QUANTILE)
        self._numbers: dict[str, int] = {}

    def predict(self, request: Request) -> float:
        window = self._windows.get(self._context(request), self._all)
        return window.quantile if window.arrived else FIRST_TOKENS

    def observed(self, request: Request, output_tokens: int) -> None:
        self._windows.setdefault(self._context(request), OutputWindow(WINDOW_OUTPUTS, QUANTILE)).add(output_tokens)
        self._all.add(output_tokens)

    def _context(self, request: Request) -> object:
        number = self._numbers.setdefault(request.tenant_id, len(self._numbers))
        return contexts(request, number)[self._expert]


# What the traces tell of a call: experts that look at a model, an endpoint or a limit would say what "everyone" and
# "tenant" do.
TOLD = ("everyone", "prompt", "prompt, fine", "tenant", "tenant, prompt", "tenant, prompt, fine")
PREDICTORS: dict[str, Callable[[], Prediction | OneExpert]] = {
    "last-five": PREDICTION["last-five"],
    "exponential": PREDICTION["exponential"],
    "quantile (0.8)": PREDICTION["quantile"],
    "quantile (0.5)": lambda: PREDICTION["quantile"](quantile=0.5),
    **{f"expert: {name}": partial(OneExpert, EXPERTS.index(name)) for name in TOLD},
    "**mixture**": PREDICTION["mixture"],
    "mixture (0.8)": lambda: PREDICTION["mixture"](quantile=0.8),
    "noisy-oracle": lambda: PREDICTION["noisy-oracle"](rng=Random(SEED)),
}


@dataclass(slots=True)
class Errors:
    """What a predictor said beside what came."""

    tokens: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    outgrown: int = 0
    predict_ns: int = 0

    def add(self, predicted: float, output: int) -> None:
        error = abs(predicted - output)
        self.tokens.append(error)
        self.ratios.append(error / output)
        self.outgrown += output > predicted

    def cell(self, *, timed: bool) -> str:
        count = len(self.tokens)
        mean, median = sum(self.tokens) / count, sorted(self.ratios)[count // 2]
        time = f", {self.predict_ns / count / 1e3:.1f} us" if timed else ""
        return f"{mean:.1f}, {median:.1%}, {self.outgrown / count:.0%}{time}"


def read(source: Source) -> list[Request]:
    with tempfile.TemporaryDirectory() as folder:
        path = source.path
        if path.suffix == ".gz":
            path = Path(folder, path.stem)
            with gzip.open(source.path) as packed, path.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        calls = list(Trace(path).calls(tenant_rule(source.tenants, seed=SEED)))
    started_at = calls[0][1].at_s
    return [
        Request(
            id=f"{source.title} {number}",
            tenant_id=f"{source.title} {tenant}",
            model="m",
            arrived_at=call.at_s - started_at,
            prompt_tokens=call.prompt_tokens,
            output_tokens_max=OUTPUT_TOKENS_MAX,
            output_tokens_known=call.output_tokens,
        )
        for number, (tenant, call) in enumerate(calls)
        if call.output_tokens
    ]


def happenings(requests: list[Request]) -> Iterator[tuple[bool, Request]]:
    """Arrivals (True) and ends (False), in order of time."""
    running: list[tuple[float, int, Request]] = []
    for number, request in enumerate(requests):
        while running and running[0][0] <= request.arrived_at:
            yield False, heappop(running)[2]
        yield True, request
        ends_at = request.arrived_at + FIRST_TOKEN_S + TOKEN_S * request.output_tokens_known
        heappush(running, (ends_at, number, request))


def replay(predictor: Prediction | OneExpert, requests: list[Request]) -> Errors:
    errors = Errors()
    for arrives, request in happenings(requests):
        if arrives:
            started = perf_counter_ns()
            predicted = predictor.predict(request)
            errors.predict_ns += perf_counter_ns() - started
            errors.add(predicted, request.output_tokens_known)
        else:
            predictor.observed(request, request.output_tokens_known)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timed", action="store_true", help="also print the time of a prediction")
    timed = parser.parse_args().timed
    traces = {source.title: read(source) for source in SOURCES}
    together = [request for requests in traces.values() for request in requests]
    traces["all in one pool"] = sorted(together, key=lambda each: each.arrived_at)
    for title, requests in traces.items():
        print(f"{title}: {len(requests):,} answers of {len({request.tenant_id for request in requests})} tenants")
    print(
        "\n## Lengths\n\nMean error in tokens, median relative error, and the answers that outgrew their prediction.\n"
    )
    print(f"| predictor | {' | '.join(traces)} |\n|---|{'---:|' * len(traces)}")
    for name, make in PREDICTORS.items():
        cells = [replay(make(), requests).cell(timed=timed) for requests in traces.values()]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
