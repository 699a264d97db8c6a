"""View of one backend, for people and metrics; no decision reads it."""

from math import inf

from policies.capacity.backend import NO_TIER, BackendCapacity
from policies.capacity.tier_reserves import NOTHING
from policies.limit.step_forecast import steps_view
from policies.types import BackendView, Binding, SizeSource


def backend_view(backend: BackendCapacity) -> BackendView:
    """What operators see of a backend."""
    return BackendView(
        available=backend.load.available,
        in_flight_requests=backend.requests,
        requests_limit=backend.sequences_limit,
        reserved_tokens=round(backend.tokens_held_max),
        tokens_limit=None if backend.tokens_limit == inf else int(backend.tokens_limit),
        external_requests=backend.external_requests,
        external_tokens=round(backend.external_tokens),
        step_time=backend.load.step_time,
        steps=steps_view(backend.work, backend.clock.now),
        sequences_max=None if (learnt := backend.limit.sequences_max(backend.work)) == inf else learnt,
        size=_size_source(backend),
        reserves=backend.reserves.views(backend.clock.now),
        bound_by=_binding(backend),
    )


def _size_source(backend: BackendCapacity) -> SizeSource:
    if backend.load.requests_running_max is not None:
        return SizeSource.GIVEN
    by_answers = not backend.is_sized and backend.limit.sequences_max(backend.work) < inf
    is_learnt = by_answers if backend.window is None else backend.window.is_known
    return SizeSource.LEARNT if is_learnt else SizeSource.ASSUMED


def _binding(backend: BackendCapacity) -> Binding | None:
    """The constraint that keeps out one more request of the mean size of the running ones; None where it would be
    sent.
    """
    now = backend.clock.now
    if not backend.load.available:
        return Binding.UNHEALTHY
    if backend.awaits_measurement or now < backend.held_until:
        return Binding.HELD
    if not backend.sequences:
        return None  # an idle backend always takes one
    if backend.sequences >= backend.sequences_max:
        return Binding.SLOTS
    if backend.limit.is_full(backend.work):
        return Binding.STEPS
    needed = backend.tokens_held_max + backend.tokens / backend.requests
    if needed > backend.tokens_max:
        return Binding.KV
    if backend.limit.reads_time and now < backend.work.busy_until:
        return Binding.PROMPTS
    kept = backend.reserves.kept_for_others(NO_TIER, now) if backend.reserves.has_any else NOTHING
    is_kept = backend.sequences + kept.sequences >= backend.sequences_max or needed + kept.tokens > backend.tokens_max
    return Binding.RESERVED if is_kept else None
