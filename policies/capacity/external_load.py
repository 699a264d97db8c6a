"""External load: the load of other clients at a backend, measured as its counts minus ours.

A request of ours that came or went between a measurement and its arrival looks like external load once; external load
stays. So the smallest of the last observations is the estimate. A request of ours that is still on its way makes
external load look smaller: the previous estimate is kept, as far as such requests can hide external load.
"""

from collections import deque

from policies.types import BackendLoad

OBSERVATIONS = 3


class ExternalLoad:
    """The last observations of external load at one backend. External load is caused by other clients than this
    gateway. Mutable.
    """

    __slots__ = ("_requests", "_tokens")

    def __init__(self) -> None:
        self._requests = deque([0], OBSERVATIONS)
        self._tokens = deque([0.0], OBSERVATIONS)

    def forget(self) -> None:
        """Drop all observations, so that the next one decides alone."""
        self._requests.clear()
        self._tokens.clear()

    def observe_requests(self, load: BackendLoad, ours: int, *, sent: int, limit: int) -> None:
        """Observe how many requests a measurement counts beyond `ours` and beyond the other replicas' shares of the
        `limit`. Of our requests, `sent` may not have reached the backend yet.
        """
        if load.requests_running is not None:
            theirs = load.requests_running + (load.requests_waiting or 0) - ours
            theirs -= limit - load.share.of(limit)
            hidden = min(theirs + sent, self.least()[0])
            self._requests.append(max(0, theirs, hidden))

    def observe_tokens(self, load: BackendLoad, held: float, shared: float, *, limit: float) -> None:
        """Observe how many KV tokens a measurement counts beyond ours and beyond the other replicas' shares of the
        `limit`. Ours are the tokens that requests `held` alone and the tokens of their `shared` blocks.
        """
        if load.kv_used_ratio is not None and load.kv_tokens_max is not None:
            theirs = load.kv_used_ratio * load.kv_tokens_max - held - shared - load.untold_tokens
            if load.share.replicas > 1:
                theirs -= limit * (1 - 1 / load.share.replicas)
            self._tokens.append(max(0.0, theirs))

    def least(self) -> tuple[int, float]:
        """The requests and KV tokens that are certainly external load: the smallest of the last observations."""
        return min(self._requests, default=0), min(self._tokens, default=0.0)

    def most(self) -> tuple[int, float]:
        """The most requests and KV tokens of external load in the last observations. An external request that was just
        preempted holds fewer tokens by now.
        """
        return max(self._requests, default=0), max(self._tokens, default=0.0)
