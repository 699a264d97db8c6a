"""Split: the choice of one of several weighted targets for a caller, always the same target.

Weighted rendezvous hashing: each target draws a number from a hash of itself and the caller, and the one with the
highest score -weight / ln(number) is chosen (Schindelhauer, Schomaker: "Weighted Distributed Hash Tables", SPAA 2005,
logarithmic method). A target is chosen with a probability of its weight over the sum of all. The score of a target
depends only on its own weight, so a changed weight moves callers to or from that target, and no caller between the
others. The hash has no state and no secret: every replica, and every restart, chooses the same.
"""

from collections.abc import Mapping
from hashlib import blake2b
from math import log

_BITS = 53  # of a float's mantissa


def choose_target(weights: Mapping[str, float], *, seed: str, caller: str) -> str | None:
    """The target for this caller; None where no weight is above 0. Splits of another `seed` choose independently."""
    scores = {target: -weight / log(_number(seed, target, caller)) for target, weight in weights.items() if weight > 0}
    return max(scores, key=lambda target: (scores[target], target), default=None)


def _number(seed: str, target: str, caller: str) -> float:
    """A number in (0, 1), uniform over callers."""
    # The lengths keep "a" and "bc" apart from "ab" and "c".
    text = f"{len(seed)} {len(target)} {seed} {target} {caller}".encode(errors="surrogatepass")
    drawn = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> (64 - _BITS)
    return (drawn + 0.5) / (1 << _BITS)
