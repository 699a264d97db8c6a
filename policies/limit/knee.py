"""Knee: the longest step that still adds throughput, the limit where no request has a TPOT target.

With a step of a + k B seconds for B decodes, k being the cost of one decode with its context, the rate is B / (a + k B)
tokens per second: it rises towards the asymptote 1 / k, ever more slowly. The share x of the asymptote is reached by B
= x / (1 - x) a / k, and the step then takes a / (1 - x), whatever k is. So the knee is a time, not a number of
requests.
"""

from math import inf

from policies.step_time.model import StepTimeModel

RATE_SHARE = 0.9
"""The knee's share of the largest rate: twice the batch would make 5 % more tokens, and nearly double the wait for
each.
"""
STEP_RATIO_MAX = 1 / (1 - RATE_SHARE)
"""The length of a step at the knee, as a multiple of an empty step."""


def knee_s(model: StepTimeModel) -> float:
    """Seconds of a step at the knee; infinite where an empty step takes no time: then there is no knee."""
    return model.base_s * STEP_RATIO_MAX or inf
