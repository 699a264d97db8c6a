"""LimitLog: log lines about the limits of backends: the source of a learnt size, and a limit that makes requests wait.

There is one line when waiting begins and one when it is over, not one for each sample. A limit that binds at intervals
of less than QUIET_S counts as binding throughout.
"""

import logging
from dataclasses import dataclass
from math import inf
from typing import Final

from policies.types import BackendView, SizeSource

QUIET_S: Final = 60.0  # a limit that has not bound for so long no longer binds
CHANGED_RATIO: Final = 2.0  # a limit is logged again when it has changed by this factor

log = logging.getLogger(__name__)


def binds(view: BackendView, queued_requests: int) -> bool:
    """Whether requests wait although the backend has a free slot, because of its limit."""
    limit = view.sequences_max
    if limit is None or not queued_requests or not view.available:
        return False
    return view.in_flight_requests + 1 > limit and view.in_flight_requests < view.requests_limit


@dataclass(slots=True)
class _Logged:
    size: SizeSource = SizeSource.GIVEN
    limit: float | None = None  # as last logged; None: it does not bind
    bound_at: float = -inf


class LimitLog:
    """The writer of log lines about backends' limits of requests at once. It writes a line when requests begin to wait
    because of a limit, when they no longer do, when such a limit changes much, and when a limit is newly learnt or
    assumed. Mutable.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], _Logged] = {}

    def see(self, pool: str, backend_id: str, view: BackendView, *, queued_requests: int, now: float) -> None:
        """Log the changes at this backend; `now` is in seconds."""
        logged = self._logged.setdefault((pool, backend_id), _Logged())
        if view.available and view.size is not logged.size:
            logged.size = view.size
            self._tell_size(backend_id, view)
        limit = view.sequences_max
        if limit is not None and binds(view, queued_requests):
            logged.bound_at = now
            if logged.limit is None or not 1 / CHANGED_RATIO < limit / logged.limit < CHANGED_RATIO:
                logged.limit = limit
                log.info(
                    "backend %s: limit binds: %d requests at once, more would wait there or only make it slower",
                    backend_id,
                    int(limit),
                )
        elif logged.limit is not None and now - logged.bound_at >= QUIET_S:
            logged.limit = None
            log.info("backend %s: limit binds no more", backend_id)

    @staticmethod
    def _tell_size(backend_id: str, view: BackendView) -> None:
        if view.size is SizeSource.ASSUMED:
            log.warning(
                "backend %s: its --max-num-seqs is not known: %d requests at once are assumed, more as they are seen "
                "to run; give it as requests_running_max of the backend",
                backend_id,
                view.requests_limit,
            )
        elif view.size is SizeSource.LEARNT:
            log.info("backend %s: %d requests at once are learnt", backend_id, view.requests_limit)
