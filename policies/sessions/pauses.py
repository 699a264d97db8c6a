"""Pauses: which idle sessions make room for a turn that is held.

A paused session has to wait for room when it returns, and its context is computed again. The held turn gains the time
for which the paused session would have stayed away, but at most the time after which room grows by itself. A new
computation of the context costs the time of its prefill: once for the session, once for each call that runs beside it,
and, as far as the engine is busy, once for each held turn.

It can pay to wait a little: most gaps are short, and a session that did not return after such a gap may have ended. So
a session is paused only if no waiting pays: for each time until room grows by itself, the expected absence of the
session up to that time exceeds the expected cost of a return before it.

A turn that has waited too long gets room at any cost. Then the sessions yield that received most engine time per token
of context.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Final

from policies.sessions.gaps import Gaps, Outlook, bucket_of
from policies.sessions.session import AgentSession
from policies.sessions.working_set import WorkingSet

LOOKED_AT: Final = 4  # idle sessions at either end of the order by idleness

GapsOf = Callable[[str], Gaps]


def outlook(
    session: AgentSession, backend: WorkingSet, gaps: Gaps, now: float, *, horizon_s: float, waiting: int = 0
) -> Outlook:
    """The forecast for an idle session over the horizon, while `waiting` turns are held. It records how long the
    present gap has lasted.
    """
    idle_s = max(0.0, now - session.idle_since)
    bucket = bucket_of(idle_s)
    if bucket > session.gap_bucket:
        gaps.passed(session.gap_bucket, bucket)
        session.gap_bucket = bucket
    delayed = 1.0 + backend.use.running + backend.use.busy_ratio * waiting
    return gaps.outlook(idle_s, horizon_s, session.context * backend.use.prefill_s_per_token * delayed)


def worth_pausing(
    backend: WorkingSet, tokens: float, now: float, *, horizon_s: float, waiting: int, gaps_of: GapsOf
) -> list[AgentSession] | None:
    """Idle sessions whose pauses make room for `tokens`, the longest expected absence first; None where no set of
    sessions is worth pausing for it. Room grows by itself after `horizon_s`.
    """
    choices = []
    idle = backend.idle
    newest = islice(reversed(idle), min(LOOKED_AT, max(0, len(idle) - LOOKED_AT)))
    for session in chain(islice(idle, LOOKED_AT), newest):
        gaps = gaps_of(session.tenant_id)
        expected = outlook(session, backend, gaps, now, horizon_s=horizon_s, waiting=waiting)
        if expected.away_s > 0.0 and expected.least_gain_s >= 0.0:
            choices.append(((-expected.away_s, session.tenant_id, session.id), session))
    return _enough(backend, tokens, [session for _, session in sorted(choices, key=_rank)])


def to_yield(backend: WorkingSet, tokens: float) -> list[AgentSession] | None:
    """Idle sessions whose pauses make room for `tokens`, those first that have received most engine time per token of
    their context; None: even all of them are not enough.
    """
    choices = [((-each.used_s / max(1, each.context), each.tenant_id, each.id), each) for each in backend.idle]
    return _enough(backend, tokens, [session for _, session in sorted(choices, key=_rank)])


def longest_away(backend: WorkingSet, now: float, gaps_of: GapsOf, horizon_s: float) -> AgentSession:
    """The idle session that is expected to stay away longest."""
    return min(
        backend.idle,
        key=lambda each: (
            -outlook(each, backend, gaps_of(each.tenant_id), now, horizon_s=horizon_s).away_s,
            each.tenant_id,
            each.id,
        ),
    )


def _rank(choice: tuple[tuple[float, str, str], AgentSession]) -> tuple[float, str, str]:
    return choice[0]


def _enough(backend: WorkingSet, tokens: float, choices: Sequence[AgentSession]) -> list[AgentSession] | None:
    """The first of the choices that make room; None: all of them do not."""
    chosen: list[AgentSession] = []
    missing = tokens - backend.room
    for session, freed in zip(choices, backend.frees(choices), strict=True):
        if missing <= 0.0:
            break
        chosen.append(session)
        missing -= freed
    return chosen if missing <= 0.0 else None
