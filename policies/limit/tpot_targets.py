"""TPOT targets: which targets the running requests of one backend have to keep, and whether a new prompt makes one of
these requests late.

Slack is kept by a clock of steps (due_tokens.py), and each measurement corrects it. A request without its first token
has slack too: prompts that are sent after its own are computed while it decodes.

A prompt only counts as harmful to a request that would keep its deadline without it: a request that is late in any case
is no reason to leave the engine idle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from policies.limit.due_tokens import DueTokens, Stall
from policies.reservation import Reservation

ROUNDING_S = 1e-9

NextStep = Callable[[Reservation], float]
"""The number of the step, on the engine's clock of steps, that gives a request its next token."""


@dataclass(slots=True)
class TpotTarget:
    """The totals of the running requests with one TPOT target: requests, sequences and context tokens."""

    requests: int = 0
    sequences: int = 0
    context_tokens: float = 0.0


class TpotTargets:
    """The running requests of one backend that have a TPOT target which the backend can keep, by target, with the due
    times of their next tokens. A limit asks it whether a new prompt would make one of them late. Mutable.
    """

    __slots__ = ("_due", "_late_tokens", "_tpot_s", "by_tpot", "late_until")

    def __init__(self) -> None:
        self.by_tpot: dict[float, TpotTarget] = {}
        """The running requests, by TPOT target."""
        self._tpot_s: dict[Reservation, float] = {}
        self._due = DueTokens()
        self._late_tokens, self.late_until = inf, -inf  # prompt tokens that make a request late, until the next step

    @property
    def is_empty(self) -> bool:
        """Whether no request has tokens with a due time."""
        return self._due.is_empty

    def add(self, reservation: Reservation, tpot_s: float) -> None:
        """Record that a request with this target runs."""
        self._tpot_s[reservation] = tpot_s
        target = self.by_tpot.get(tpot_s)
        if target is None:
            target = self.by_tpot[tpot_s] = TpotTarget()
        target.requests += 1
        target.sequences += reservation.sequences
        target.context_tokens += reservation.context_tokens

    def remove(self, reservation: Reservation) -> None:
        """Record the end of a request, which may have a target."""
        self._due.forget(reservation)
        tpot_s = self._tpot_s.pop(reservation, None)
        if tpot_s is not None:
            target = self.by_tpot[tpot_s]
            target.requests -= 1
            target.sequences -= reservation.sequences
            target.context_tokens -= reservation.context_tokens
            if not target.requests:
                del self.by_tpot[tpot_s]

    def note_due(self, reservation: Reservation, next_step: NextStep, now: float) -> None:
        """Update the time at which the request's next token is due, if its target binds."""
        tpot_s = self._tpot_s.get(reservation)
        if tpot_s is not None and (due_at := _next_due_at(reservation, tpot_s, now)) is not None:
            self._due.note(reservation, tpot_s, due_at - next_step(reservation) * tpot_s)

    def settle(self, next_step: NextStep, now: float) -> None:
        """Update the due times of all next tokens, after the produced tokens of all requests have become known."""
        self._due.settle(
            (reservation, tpot_s, due_at - next_step(reservation) * tpot_s)
            for reservation, tpot_s in self._tpot_s.items()
            if (due_at := _next_due_at(reservation, tpot_s, now)) is not None
        )

    def misses(self, stall: Stall, without: Callable[[], Stall], at: float, steps: float) -> bool:
        """Whether the stall makes a request late that would be in time with the shorter stall `without` the prompt. The
        clock of steps shows `steps` at the time `at`.
        """

        def is_late(tpot_s: float, base: float, stall: Stall = stall) -> bool:
            """Whether the stall delays a token of a request beyond its due time; `base` gives the due times."""
            slack_s = base + steps * tpot_s - at
            # Checked at the last full step and at the last step of all.
            last_full, full_s, last, all_s = stall
            return slack_s + last_full * tpot_s < full_s or slack_s + last * tpot_s < all_s

        # Mostly no request is late by the longer stall: the shorter stall is then not looked at.
        if not any(is_late(tpot_s, base) for tpot_s, base in self._due.most_urgent()):
            return False
        shorter = without()
        urgent = self._due.most_urgent(lambda tpot_s, base: is_late(tpot_s, base, shorter))
        return any(is_late(tpot_s, base) for tpot_s, base in urgent)

    def found_late(self, prefill_tokens: float, now: float, step_s: float) -> None:
        """Record that this many prompt tokens make a request late. The engine decides again only with its next step,
        after `step_s` seconds.
        """
        self._late_tokens = prefill_tokens if now >= self.late_until else min(self._late_tokens, prefill_tokens)
        self.late_until = now + step_s

    def is_known_late(self, prefill_tokens: float, now: float) -> bool:
        """Whether this many tokens, or fewer, were already found to make a request late during this step."""
        return now < self.late_until and prefill_tokens >= self._late_tokens

    def pace_changed(self) -> None:
        """Drop the record of prompt sizes that make a request late, because step times change from now on."""
        self.late_until = -inf


def _next_due_at(reservation: Reservation, tpot_s: float, now: float) -> float | None:
    """The time at which the request's next token is due; None while it is not known."""
    envelope, produced = reservation.envelope, reservation.produced_tokens // reservation.sequences
    assert envelope is not None, "a target comes with an envelope"
    if envelope.ttft_s is not None:
        return reservation.arrived_at + envelope.ttft_s + produced * tpot_s
    return now + tpot_s if produced else None  # no TTFT target says when the first was due
