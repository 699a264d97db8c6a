"""Workloads of the VTC paper's figures, drawn as its published generator draws them (numpy, seed 42).

Arrivals equal those of the published logs to the last digit, where there are logs. What the paper leaves open (rates of
the on-off runs, lengths of Fig. 7 and 8) is as in the published code.

- even: per tenant, n = int(rate * duration) requests at phase + k / rate, k = 1..n, the phase uniform in [0, 1/rate);
  an on-off tenant sends nothing in odd minutes.
- mixed: one Poisson stream; each request belongs to one of two tenants at random, in proportion to their rates.
- rising: a steady tenant beside one whose rate rises linearly from 0.2 requests per second.

Tenants are named t0, t1, ... in the order of the published configuration.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from backends.simulation.requests import Arrival
from tests.evidence.numpy_draws import NumpyDraws
from tests.simulation.arrivals import from_csv

SEED = 42
MINUTE_S = 60
RISING_FROM_PER_S = 0.2
LMSYS_OUTPUT_TOKENS_MAX = 2 * 1024
LMSYS_TRACE = "vtc_lmsys_real_trace.csv"


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload: its description, and its arrivals in order of time, made anew at each call."""

    says: str
    arrivals: Callable[[], list[Arrival]]


@dataclass(frozen=True, slots=True)
class Part:
    """Requests of one size at one rate per second."""

    rate_per_s: float
    prompt_tokens: int = 256
    output_tokens: int = 256
    on_off: bool = False

    def arrival(self, number: int, at_s: float) -> Arrival:
        # The paper's runs cut no answer: the limit is above the length, else no prediction could be too high.
        return Arrival(f"t{number}", at_s, self.prompt_tokens, self.output_tokens, 2 * self.output_tokens)


def evenly(parts: Sequence[Part], *, duration_s: float, start_s: float = 0.0, draws: NumpyDraws) -> Iterator[Arrival]:
    """Yield each part in turn, not in order of time; one tenant per part."""
    for number, part in enumerate(parts):
        gap_s = 1 / part.rate_per_s
        at_s = start_s + draws.uniform() * 1 / part.rate_per_s
        for _ in range(int(part.rate_per_s * duration_s)):
            at_s += gap_s
            if not (part.on_off and int(at_s // MINUTE_S) % 2):
                yield part.arrival(number, at_s)


def even(*parts: Part, duration_s: float = 600.0) -> list[Arrival]:
    return in_order(evenly(parts, duration_s=duration_s, draws=NumpyDraws(SEED)))


def shifting(*phases: Sequence[Part], phase_s: float = 300.0) -> list[Arrival]:
    """Return one even workload after another; requests drawn for the end of a phase may arrive in the next."""
    draws = NumpyDraws(SEED)
    arrivals: list[Arrival] = []
    for number, parts in enumerate(phases):
        arrivals += evenly(parts, duration_s=phase_s, start_s=number * phase_s, draws=draws)
    return in_order(arrivals)


def mixed(first: Part, second: Part, *, duration_s: float = 600.0) -> list[Arrival]:
    draws = NumpyDraws(SEED)
    rate_per_s = first.rate_per_s + second.rate_per_s
    count = int(rate_per_s * duration_s)
    seconds = [draws.uniform() > first.rate_per_s / rate_per_s for _ in range(count)]
    arrivals, at_s = [], 0.0
    for is_second, gap_s in zip(seconds, draws.gaps(1 / rate_per_s, count), strict=True):
        at_s += gap_s
        arrivals.append((second if is_second else first).arrival(int(is_second), at_s))
    return arrivals


def rising(steady: Part, riser: Part, *, duration_s: float = 600.0) -> list[Arrival]:
    """`riser` reaches its own rate at the end."""
    arrivals, at_s = [], 0.0
    for _ in range(int(steady.rate_per_s * duration_s)):
        at_s += 1 / steady.rate_per_s
        arrivals.append(steady.arrival(0, at_s))
    at_s = 0.0
    for _ in range(int((RISING_FROM_PER_S + riser.rate_per_s) / 2 * duration_s)):
        at_s += 1 / (RISING_FROM_PER_S + (riser.rate_per_s - RISING_FROM_PER_S) * at_s / duration_s)
        arrivals.append(riser.arrival(1, at_s))
    return in_order(arrivals)


def stretches(*lengths_and_parts: tuple[float, Sequence[Part]]) -> list[Arrival]:
    """Return one even workload after another, each for its number of seconds."""
    draws, start_s = NumpyDraws(SEED), 0.0
    arrivals: list[Arrival] = []
    for seconds, parts in lengths_and_parts:
        arrivals += evenly(parts, duration_s=seconds, start_s=start_s, draws=draws)
        start_s += seconds
    return in_order(arrivals)


def uneven(tenant_id: str, arrivals: list[Arrival], *, short: int, long: int) -> list[Arrival]:
    """Make three of four answers of this tenant short, and the fourth long."""
    numbered = [arrival for arrival in arrivals if arrival.tenant_id == tenant_id]
    tokens = {id(arrival): long if number % 4 == 0 else short for number, arrival in enumerate(numbered, start=1)}
    return [
        replace(arrival, output_tokens=tokens[id(arrival)], output_tokens_max=LMSYS_OUTPUT_TOKENS_MAX)
        if id(arrival) in tokens
        else arrival
        for arrival in arrivals
    ]


def in_order(arrivals: Iterator[Arrival] | list[Arrival]) -> list[Arrival]:
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def lmsys() -> list[Arrival]:
    text = resources.files("tests.evidence").joinpath("data", LMSYS_TRACE).read_text(encoding="utf-8")
    return list(from_csv(text.splitlines(), output_tokens_max=LMSYS_OUTPUT_TOKENS_MAX))


def overload(tokens: int, first_per_s: float, duration_s: float) -> Workload:
    """Two tenants with equal requests, the second at twice the rate of the first."""
    parts = [Part(rate, tokens, tokens) for rate in (first_per_s, 2 * first_per_s)]
    return Workload(
        f"two tenants, {first_per_s:g} and {2 * first_per_s:g} req/s, {tokens}/{tokens} tokens, {duration_s:g} s",
        lambda: even(*parts, duration_s=duration_s),
    )


ABSENT = Part(1e-3)  # a tenant without requests in a stretch
WORKLOADS: dict[str, Workload] = {
    "lmsys": Workload("LMSYS Chatbot Arena sample, 27 tenants, 1,500 requests in 600 s", lmsys),
    "overload": overload(256, 1.5, 360.0),
    "overload-long": overload(256, 1.5, 600.0),
    "multi": Workload(
        "eight tenants, 3 x 0.4 and 5 x 0.6 req/s, 256/256 tokens, 360 s",
        lambda: even(*(Part(rate) for rate in (0.4, 0.4, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6)), duration_s=360.0),
    ),
    "proportional": Workload(
        "three tenants, 15, 30 and 90 req/min, 256/256 tokens, 600 s",
        lambda: even(Part(0.25), Part(0.5), Part(1.5)),
    ),
    "on-off": Workload(
        "0.5 req/s in even minutes beside 2 req/s, 256/256 tokens, 600 s",
        lambda: even(Part(0.5, on_off=True), Part(2.0)),
    ),
    "on-off-overload": Workload(
        "2 req/s in even minutes beside 3 req/s, 256/256 tokens, 600 s",
        lambda: even(Part(2.0, on_off=True), Part(3.0)),
    ),
    "short-long": Workload(
        "Poisson, 8 req/s of 64/64 tokens beside 1.5 req/s of 256/256, 600 s",
        lambda: mixed(Part(8.0, 64, 64), Part(1.5)),
    ),
    "prompt-answer": Workload(
        "Poisson, 8 req/s of 512/32 tokens beside 1.5 req/s of 32/512, 600 s",
        lambda: mixed(Part(8.0, 512, 32), Part(1.5, 32, 512)),
    ),
    "rising": Workload(
        "0.5 req/s beside a rate that rises from 0.2 to 2 req/s, 256/256 tokens, 600 s",
        lambda: rising(Part(0.5), Part(2.0)),
    ),
    "shift": Workload(
        "thirds of 900 s: 0.5 (even minutes) and 2 req/s; 1 and 1; 0.5 and 1.5; 256/256 tokens",
        lambda: shifting((Part(0.5, on_off=True), Part(2.0)), (Part(1.0), Part(1.0)), (Part(0.5), Part(1.5))),
    ),
    "weights": Workload(
        "four tenants, 0.4, 0.8, 1.2 and 1.6 req/s, 256/256 tokens, 600 s",
        lambda: even(*(Part(rate) for rate in (0.4, 0.8, 1.2, 1.6))),
    ),
    "weights-unlike-rates": Workload(
        "four tenants, 1.6, 1.3, 1.1 and 1 req/s, 256/256 tokens, 600 s",
        lambda: even(*(Part(rate) for rate in (1.6, 1.3, 1.1, 1.0))),
    ),
    "after-a-lull": Workload(
        "1.5 req/s of t1 alone for 200 s, then 4 of t0 alone for 30 s, then 3 of each for 90 s, 256/256 tokens",
        lambda: stretches((200.0, (ABSENT, Part(1.5))), (30.0, (Part(4.0), ABSENT)), (90.0, (Part(3.0), Part(3.0)))),
    ),
    "uneven-answers": Workload(
        "3 req/s each for 200 s, prompts of 256; answers of 32, 32, 32 and 928 tokens beside 256",
        lambda: uneven("t0", even(Part(3.0), Part(3.0), duration_s=200.0), short=32, long=928),
    ),
    "large-small": Workload(
        "0.5 req/s of 1,500/1,500 tokens beside 8 of 64/64, 200 s",
        lambda: even(Part(0.5, 1500, 1500), Part(8.0, 64, 64), duration_s=200.0),
    ),
    "light-heavy": Workload(
        "0.1 req/s of 2,000/2,000 tokens, of weight 1, beside 4 of 256/256, of weight 100, 930 s",
        lambda: even(Part(0.1, 2000, 2000), Part(4.0), duration_s=930.0),
    ),
    "overload-35000-256": overload(256, 3.0, 600.0),
    "overload-35000-512": overload(512, 1.5, 600.0),
    "overload-35000-768": overload(768, 1.0, 600.0),
    "overload-65000-256": overload(256, 4.0, 600.0),
    "overload-65000-512": overload(512, 2.0, 600.0),
    "overload-65000-768": overload(768, 1.5, 600.0),
}
