"""Stand-ins for the traces of the FairBatching paper (arXiv 2510.14392, table 2), which publishes only averages and
90th percentiles of their lengths.

Lengths are drawn independently. With z = 1.2816, the normal 90th percentile, a log-normal has a mean m and a 90th
percentile q for sigma = z - sqrt(z^2 - 2 ln(q / m)), mu = ln m - sigma^2 / 2. There is none if q / m > 2.27 (a
log-normal that is any wider has a longer tail and a shorter body): then four requests of five are short, exponential of
mean m / 4, and one is long, log-normal of median q and mean 4 m. Both have mean m and 90th percentile q.

Gaps between arrivals are exponential (Poisson arrivals); those of BurstGPT are Gamma of shape 1/4, twice as irregular.
A load is a ratio of one engine's capacity (`capacity_per_s` in slo_engines.py); traces last as long as the table says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, exp, log, sqrt
from random import Random

from backends.simulation.requests import Arrival
from policies.types import SloEnvelope

NORMAL_P90 = 1.2815515655446004
SHORT_RATIO = 0.8  # part of short requests, where lengths are of two kinds
SHORT_MEAN_RATIO = 0.25  # of the mean: 0.8 / 4 + 0.2 * 4 = 1
LONG_MEAN_RATIO = 4.0
PROMPT_TOKENS_MAX = 16_384
OUTPUT_TOKENS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts with this mean and 90th percentile, at least one and at most `tokens_max`."""

    mean: float
    p90: float
    tokens_max: int
    _sigma: float = field(init=False)
    _has_two_kinds: bool = field(init=False)

    def __post_init__(self) -> None:
        under_root = NORMAL_P90**2 - 2 * log(self.p90 / self.mean)
        two = under_root < 0
        sigma = sqrt(2 * log(LONG_MEAN_RATIO * self.mean / self.p90)) if two else NORMAL_P90 - sqrt(under_root)
        object.__setattr__(self, "_sigma", sigma)
        object.__setattr__(self, "_has_two_kinds", two)

    def draw(self, rng: Random) -> int:
        return min(max(ceil(self._length(rng)), 1), self.tokens_max)

    def _length(self, rng: Random) -> float:
        if not self._has_two_kinds:
            return self.mean * exp(self._sigma * rng.gauss(0.0, 1.0) - self._sigma**2 / 2)
        if rng.random() < SHORT_RATIO:
            return rng.expovariate(1 / (SHORT_MEAN_RATIO * self.mean))
        return self.p90 * exp(self._sigma * rng.gauss(0.0, 1.0))

    def __str__(self) -> str:
        kind = "two kinds" if self._has_two_kinds else f"log-normal, sigma {self._sigma:.2f}"
        return f"{self.mean:g}/{self.p90:g} ({kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceShape:
    """Lengths of requests, and their targets. `gap_shape` is the shape of the Gamma gaps: 1 is Poisson."""

    prompt: Lengths
    output: Lengths
    envelope: SloEnvelope
    gap_shape: float = 1.0

    def requests(self, tenant_id: str, rng: Random) -> Iterator[Arrival]:
        """Yield requests without end, all at time 0."""
        while True:
            prompt, output = self.prompt.draw(rng), self.output.draw(rng)
            yield Arrival(tenant_id, 0.0, prompt, output, OUTPUT_TOKENS_MAX, envelope=self.envelope)

    def arrivals(self, tenant_id: str, rate_per_s: float, *, duration_s: float, rng: Random) -> Iterator[Arrival]:
        """Yield arrivals in order of time."""
        at_s, requests = 0.0, self.requests(tenant_id, rng)
        while (at_s := at_s + rng.gammavariate(self.gap_shape, 1 / (self.gap_shape * rate_per_s))) < duration_s:
            yield replace(next(requests), at_s=at_s)

    def __str__(self) -> str:
        gaps = "Poisson" if self.gap_shape == 1 else f"Gamma gaps of shape {self.gap_shape:g}"
        return (
            f"{gaps}; prompts {self.prompt}, outputs {self.output} tokens (mean/p90);"
            f" TTFT {self.envelope.ttft_s:g} s, TPOT {self.envelope.tpot_s:g} s"
        )


def _trace(
    prompt: tuple[float, float], output: tuple[float, float], ttft_s: float, *, gap_shape: float = 1.0
) -> TraceShape:
    return TraceShape(
        prompt=Lengths(*prompt, PROMPT_TOKENS_MAX),
        output=Lengths(*output, OUTPUT_TOKENS_MAX),
        envelope=SloEnvelope(ttft_s, 0.05),
        gap_shape=gap_shape,
    )


TRACES: dict[str, TraceShape] = {
    "burst": _trace((688, 1599), (237, 470), 0.5, gap_shape=0.25),
    "qwen": _trace((892, 1776), (377, 742), 0.5),
    "azure": _trace((1604, 3561), (114, 392), 2.0),
}
