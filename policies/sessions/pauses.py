"""Pauses: which idle sessions make room for a turn that is held.

A session that is paused has to wait for room when it returns, and its context is computed again. A turn that is held is
saved the time for which the paused session would have stayed away, but no more than the time after which room grows by
itself. What computing the context again costs is the time of the prefill: for the session itself, for all that run
beside it, and as far as the engine is busy for all that are held, because it is their time, too.

Waiting a little tells more: most gaps are short, and a session that did not return after such a gap may have ended. So
a session is paused where no waiting pays: at each time until room grows by itself, what it is expected to have stayed
away exceeds what its return until then is expected to cost.

A turn that has waited too long gets room whatever that costs. Then those sessions yield that have had most.
"""

from collections.abc import Callable, Sequence
from typing import Final

from policies.sessions.gaps import Gaps, Outlook, bucket_of
from policies.sessions.session import AgentSession
from policies.sessions.working_set import WorkingSet

LOOKED_AT: Final = 4  # idle sessions at either end of the order by idleness

GapsOf = Callable[[str], Gaps]


def outlook(
    session: AgentSession, backend: WorkingSet, gaps: Gaps, now: float, *, horizon_s: float, waiting: int = 0
) -> Outlook:
    """What is expected of an idle session within the horizon, while so many turns are held. Counts how far its gap has
    come.
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
    """Idle sessions whose pauses make room for so many tokens, those that stay away longest first; None where none
    should be paused for it. Room grows by itself after `horizon_s`.
    """
    choices = []
    for session in backend.oldest_and_newest(LOOKED_AT):
        gaps = gaps_of(session.tenant_id)
        expected = outlook(session, backend, gaps, now, horizon_s=horizon_s, waiting=waiting)
        if expected.away_s > 0.0 and expected.least_gain_s >= 0.0:
            choices.append(((-expected.away_s, session.tenant_id, session.id), session))
    return _enough(backend, tokens, [session for _, session in sorted(choices, key=_rank)])


def to_yield(backend: WorkingSet, tokens: float) -> list[AgentSession] | None:
    """Idle sessions whose pauses make room for so many tokens, those that have had most first, by what their contexts
    take to compute; None: all of them do not.
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
