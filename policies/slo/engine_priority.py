"""How urgent is a call, as one number that an engine's own queue is ordered by?

vLLM with `--scheduling-policy priority` serves the lowest number first, and what arrived first among equals. Tiers come
before deadlines: inside a tier the number grows with the time by which the first token is due. It is in milliseconds of
Unix time, so that several gateways before one engine agree. Opposite polarity: a tier's `priority` is the higher the
more important, as in llm-d; here less is sooner.
"""

from policies.envelope import TTFT_S_UNSET
from policies.types import SloEnvelope

PRIORITY_MAX = 100  # of a tier, either side of 0
TIER_STEP_MS = 1 << 42  # more than any Unix time until the year 2109, and 100 of them are exact as a float


def engine_priority(*, tier_priority: int, envelope: SloEnvelope | None, arrived_at: float) -> int:
    """The number of a call that arrived at this Unix time, in seconds; less is sooner."""
    ttft_s = None if envelope is None else envelope.ttft_s
    due_at = arrived_at + (TTFT_S_UNSET if ttft_s is None else ttft_s)
    return int(due_at * 1000) - tier_priority * TIER_STEP_MS
