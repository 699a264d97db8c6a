"""Closed loops: which recorded calls came because an earlier one had ended.

A client that waits for its answer before it calls again would have called later, had the answer come later. So its call
is replayed when so much time has passed since the simulated end of the call before as had in the recording. All others
are replayed at their times.

Clients of a key that name no session are alike. Whichever of them has its answer first in the simulation makes the call
that came after the first end in the recording: a client that is served slower leaves its next calls to the others, and
no client runs out of calls before they do.

A session names its client: each of its calls waits for the one that ended last. Calls without a session, and whole
sessions, are told apart by key: there, each end makes a client idle, an arrival takes the one that is idle for longest,
and one that stays idle for `patience_s` has left. Waiting clients call only while one is idle, all others whenever
they like. Which of the two a key's arrivals are is a ratio of likelihoods: of calls at a rate that is proportional to
the number of idle clients, beside calls at a rate that is constant in each of so many spans as fit best. All rates are
fitted.

Calls at equal intervals look as if they waited, since there are always as many in flight. But their intervals vary less
than their times since the ends do; those of one client that waits are the sum of such a time and of an answer's.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from statistics import fmean, pvariance
from typing import Any, Final, NamedTuple

LOG_ODDS_MIN: Final = 10.0  # e^10 to 1; 40 Poisson streams of each of three rates had at most 0.6
PATIENCES_S: Final = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, inf)  # of which the likeliest is taken
OVERLAPPING_MAX: Final = 0.5  # of a session's calls; more, and its id names no client
WAITED_MIN: Final = 0.75  # of the calls since the first end; in bursts that wait for nothing, up to 0.55 follow an end
CALLS_IN_SPAN_MIN: Final = 2
EVEN_MAX: Final = 0.25  # variance of intervals over their mean's square: 1 for calls of many
STEADY_MAX: Final = 0.75  # and over the variance of times since ends: both are equal where answers take equally long


class Waited(NamedTuple):
    """The finding that a recorded call waited for another call of its client to end. `for_call` is the index of the
    other call; `think_s` is the time in seconds from the other call's end to this call.
    """

    for_call: int
    think_s: float


@dataclass(frozen=True, slots=True)
class _Item:
    """A call, or a session: the time and index of its first call, and of its last one's end."""

    began_at: float
    ended_at: float
    first: int
    last: int


def closed_loops(calls: Sequence[Mapping[str, Any]]) -> dict[int, Waited]:
    """The calls that waited for another call, by index in `calls`, which are the lines of a recording."""
    found: dict[int, Waited] = {}
    clients: defaultdict[tuple[str, str], list[_Item]] = defaultdict(list)
    sessions: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index in sorted(range(len(calls)), key=lambda each: calls[each]["arrival_s"]):
        call = calls[index]
        if not call["output_tokens"]:
            continue  # it was refused or failed: it is not replayed
        if call["program"] is None:
            clients[_key(call)].append(_item(calls, [index]))
        else:
            sessions[(*_key(call), call["program"])].append(index)
    for (tenant, key, _), indices in sessions.items():
        turns = _turns(calls, indices)
        if turns is None:
            clients[tenant, key] += [_item(calls, [each]) for each in indices]
        else:
            found |= turns
            clients[tenant, key].append(_item(calls, indices))
    for items in clients.values():
        found |= _waited(items)
    return found


def ended_at(call: Mapping[str, Any]) -> float:
    """The time at which the call ended; infinite while it runs."""
    return inf if call["is_running"] else float(call["arrival_s"] + call["took_s"])


def loops_of_alike(calls: Sequence[Mapping[str, Any]], waited: Mapping[int, Waited]) -> dict[int, int]:
    """The loop of each call, by index, whose client is like the others of the loop: those without a session of one key
    are, where such a call waited for another.
    """
    waiting = [_key(calls[index]) for index in waited if calls[index]["program"] is None]
    loops = {key: number for number, key in enumerate(dict.fromkeys(waiting))}
    return {
        index: loops[_key(call)] for index, call in enumerate(calls) if call["program"] is None and _key(call) in loops
    }


def _key(call: Mapping[str, Any]) -> tuple[str, str]:
    return call["tenant"], call["key"]


def _item(calls: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> _Item:
    last = max(indices, key=lambda each: ended_at(calls[each]))
    return _Item(calls[indices[0]]["arrival_s"], ended_at(calls[last]), indices[0], last)


def _turns(calls: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> dict[int, Waited] | None:
    """The turns of a session, each of which waits for the end that came last before it; None where most calls come
    while another of it runs, so that its id names no client.
    """
    found: dict[int, Waited] = {}
    ends = deque(sorted(indices, key=lambda each: ended_at(calls[each])))
    ended: int | None = None
    overlapping = 0
    for number, index in enumerate(indices):
        at = calls[index]["arrival_s"]
        while ended_at(calls[ends[0]]) <= at:
            ended = ends.popleft()
        overlapping += len(indices) - len(ends) < number
        if ended is not None:
            found[index] = Waited(ended, at - ended_at(calls[ended]))
    return None if overlapping > OVERLAPPING_MAX * len(indices) else found


def _waited(items: Sequence[_Item]) -> dict[int, Waited]:
    """Which of a key's items waited for another, where waiting clients are likelier than calls at a constant rate."""
    arrivals = sorted(items, key=lambda item: item.began_at)
    ends = sorted(items, key=lambda item: item.ended_at)
    log_odds, taken = max((_taken(arrivals, ends, each) for each in PATIENCES_S), key=lambda each: each[0])
    if log_odds < LOG_ODDS_MIN or len(taken) < WAITED_MIN * sum(each.began_at >= ends[0].ended_at for each in arrivals):
        return {}
    thinks = [after.began_at - before.ended_at for before, after in taken]
    intervals = [later.began_at - earlier.began_at for earlier, later in pairwise(arrivals)]
    varies = pvariance(intervals)
    if varies < EVEN_MAX * fmean(intervals) ** 2 and varies < STEADY_MAX * pvariance(thinks):
        return {}
    return {after.first: Waited(before.last, think) for (before, after), think in zip(taken, thinks, strict=True)}


def _taken(
    arrivals: Sequence[_Item], ends: Sequence[_Item], patience_s: float
) -> tuple[float, Sequence[tuple[_Item, _Item]]]:
    """The log odds that arrivals waited, from the first end on, and each one that took an idle client, with the item
    that the client had before.
    """
    since, until = ends[0].ended_at, arrivals[-1].began_at
    coming = [item for item in arrivals if item.began_at >= since]
    idle: deque[_Item] = deque()
    pairs: list[tuple[_Item, _Item]] = []
    idle_s = log_idle = 0.0
    to_end = 0
    for item in coming:
        while to_end < len(ends) and ends[to_end].ended_at <= item.began_at:
            idle.append(ends[to_end])
            to_end += 1
        while idle and item.began_at - idle[0].ended_at > patience_s:
            idle.popleft()
            idle_s += patience_s
        if idle:
            log_idle += log(len(idle))
            before = idle.popleft()
            idle_s += item.began_at - before.ended_at
            pairs.append((before, item))
    idle_s += sum(min(until - item.ended_at, patience_s) for item in idle)
    waited, came = len(pairs), len(coming)
    if not waited or until <= since:
        return 0.0, ()
    if came > waited:
        log_idle += (came - waited) * log((came - waited) / (until - since))
    log_waited = log_idle + waited * log(waited / max(idle_s, 1e-9))
    return log_waited - _log_open([item.began_at - since for item in coming], until - since), pairs


def _log_open(times_s: Sequence[float], duration_s: float) -> float:
    """The log likelihood of these times where calls wait for nothing, but for the part that both have: their number.
    Each span's rate costs what the Bayesian information criterion takes for a parameter.
    """
    best, spans = -inf, 1
    while spans == 1 or spans * CALLS_IN_SPAN_MIN <= len(times_s):
        counts = Counter(min(spans - 1, int(each / duration_s * spans)) for each in times_s)
        fitted = sum(count * log(count * spans / duration_s) for count in counts.values())
        best = max(best, fitted - (spans - 1) * log(len(times_s)) / 2)
        spans *= 2
    return best
