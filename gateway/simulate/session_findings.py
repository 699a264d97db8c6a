"""Session findings: what a simulated run tells of agents' sessions, for its report and for a what-if's answer."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFindings:
    """The results of all agents' sessions in a simulated run. The wait of a turn (a call) is from its arrival to its
    dispatch; a session lasts from its first arrival to its last end. `held_turns` waited until a KV pool had room for
    their contexts, `held_mean_s` seconds on average. `pauses` counts how often a session was paused: it lost its room
    in a KV pool while it computed nothing, so that others have room. `yields` counts how often the reason was that it
    had used its quantum, the engine time after which it makes room for others. `held_max` and `paused_max` are the most
    sessions that were held, and paused, at once. `etas` has, for each engine, the part of its KV pool that sessions
    could have at the end.
    """

    sessions: int
    turns: int
    turn_wait_p50_s: float | None
    turn_wait_p99_s: float | None
    turn_wait_max_s: float
    session_p50_s: float | None
    session_p90_s: float | None
    held_turns: int
    held_mean_s: float | None
    held_max: int
    paused_max: int
    pauses: int
    yields: int
    etas: Mapping[str, float]
