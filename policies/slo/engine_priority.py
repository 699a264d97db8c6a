"""Engine priority: the urgency of a call as one number, by which an engine orders its own queue.

vLLM with `--scheduling-policy priority` serves the lowest number first, and the first arrival among equals. Tiers come
before deadlines: within a tier the number grows with the time at which the first token is due. It is in milliseconds
of Unix time, so that several gateways in front of one engine agree. The polarity is opposite to a tier's `priority`,
which is higher for more important tiers, as in llm-d.
"""

from policies.due_times import TTFT_S_UNSET
from policies.types import SloEnvelope

PRIORITY_MAX = 100  # of a tier, on either side of 0
TIER_STEP_MS = 1 << 42  # exceeds any Unix time until the year 2109; 100 times it is still exact as a float


def engine_priority(*, tier_priority: int, envelope: SloEnvelope | None, arrived_at: float) -> int:
    """The engine priority of a call that arrived at `arrived_at`, a Unix time in seconds; lower is served sooner."""
    ttft_s = None if envelope is None else envelope.ttft_s
    due_at = arrived_at + (TTFT_S_UNSET if ttft_s is None else ttft_s)
    return int(due_at * 1000) - tier_priority * TIER_STEP_MS
