"""Which of these requests has the most of its prompt cached?

What is cached changes with every request that is sent, so it is looked up anew for every decision, and looking up costs
time in proportion to the prompt. So a decision looks at a limited number of requests: those of the tenants that have
received the least, in equal parts, the oldest of each first. (SGLang looks at all of 128 waiting requests, and
at none where there are more.) Whoever is fair stays so: the limit bounds what is looked at, not who may be chosen.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from policies.fairness.base import Account, Eligible
from policies.types import Request

LOOKUPS_MAX = 128  # per decision


def longest_cached(
    accounts: Sequence[Account], cached_blocks: Callable[[Request], int], eligible: Eligible
) -> Request | None:
    """The eligible request of these waiting tenants with the most tokens cached; equals by arrival, then by tenant id.

    Of at most LOOKUPS_MAX tenants; None where nobody's is eligible among the requests that were looked at.
    """
    each = max(1, LOOKUPS_MAX // max(1, len(accounts)))
    seen = (request for account in accounts for request in islice(account.waiting.values(), each) if eligible(request))
    return min(
        seen,
        key=lambda request: (
            -cached_blocks(request) * request.prefix_block_tokens,
            request.arrived_at,
            request.tenant_id,
        ),
        default=None,
    )
