"""Reports of the plugin inside a vLLM (backends/vllm_plugin), from /fairlead/steps: every step, and the engines' state.

A server that has the plugin is asked in every round for the steps since the last one. A server that has none, or that
rejects the credentials, is asked every ABSENT_S. An answer that is malformed or of an unknown version counts as no
plugin.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final
from uuid import uuid4

from backends.step_times import ReportedStep

PATH: Final = "/fairlead/steps"
REPORTS_BYTES_MAX: Final = 4 << 20
VERSION: Final = 1
ABSENT_S: Final = 30.0  # a server without the plugin is asked again after this
ROW_FIELDS: Final = 6
_READS_PRIORITY: Final = {"priority": True, "fcfs": False}  # vLLM's --scheduling-policy


@dataclass(frozen=True, slots=True)
class EngineNews:
    """What the plugins in the engines of one backend last reported, for all engines together. Limits and budgets are
    sums, as in BackendLoad. None: the engines do not report the value.

    `pab_tokens` is the prefill admission budget. For each sender (a process of the gateway), `pab_dispatches` has the
    number of the last dispatch that the budget includes. `reads_priority`: the engines order their own queues by the
    priority of each call.
    """

    step_tokens_max: int | None = None
    requests_running_max: int | None = None
    pab_tokens: float | None = None
    pab_dispatches: Mapping[str, int] | None = None
    reads_priority: bool | None = None


class PluginReports:
    """The reader of the reports of one backend's vLLM plugin. It keeps the position up to which it has read. `engines`
    has the state of the backend's engines by the last report (EngineNews); None: no plugin answers.

    The gateway sends each call with a number, and the plugin reports which numbers have arrived. `gateway` is a random
    name that goes with the number, so that the plugin keeps several gateways apart. Processes that share their
    Schedulers all use one `gateway`, the leader's. Each of them adds its own name to it (`name_at_plugin`). Mutable.
    """

    def __init__(self) -> None:
        self.gateway = uuid4().hex
        self.engines: EngineNews | None = None
        self._next = 0
        self._absent_until = float("-inf")

    def path(self, now: float) -> str | None:
        """Return the path to poll now; None while the plugin is taken to be absent."""
        return None if now < self._absent_until else f"{PATH}?since={self._next}"

    def absent(self, now: float) -> None:
        """Record that the server answered without reports, so that it has no plugin."""
        self.engines, self._next = None, 0
        self._absent_until = now + ABSENT_S

    def silent(self) -> None:
        """Record that a poll failed; the next answer may come from another server."""
        self.engines, self._absent_until = None, float("-inf")

    def read(self, body: bytes) -> list[ReportedStep]:
        """Parse an answer and return its new steps. Raises ValueError if it is malformed."""
        document = json.loads(body)
        if (
            not isinstance(document, dict)
            or document.get("version") != VERSION
            or not isinstance(document.get("epoch"), str)
        ):
            raise ValueError("not reports of steps")
        rows, states = document.get("steps"), document.get("engines")
        if not isinstance(rows, list) or not isinstance(states, dict) or not _is_count(document.get("next")):
            raise ValueError("not reports of steps")
        # After a restart of the server `since` means nothing: its first steps may be missing, which does no harm.
        self._next = document["next"]
        self.engines = _together([state for state in states.values() if isinstance(state, dict)], self.gateway)
        return [ReportedStep(row[2], row[3], row[4], row[5] / 1e6) for row in rows if _is_row(row)]


def name_at_plugin(gateway: str, sender: str) -> str:
    """The name under which the plugin counts the dispatches of one sender (Request.sender)."""
    return f"{gateway}/{sender}" if sender else gateway


def _together(states: list[Mapping[str, Any]], gateway: str) -> EngineNews | None:
    if not states:
        return None
    budgets = [state.get("pab_tokens") for state in states]
    known = [float(each) for each in budgets if isinstance(each, int | float) and isfinite(each)]
    policies = {str(state.get("scheduling_policy")) for state in states}
    dispatches = states[0].get("dispatches")
    return EngineNews(
        step_tokens_max=_sum(states, "step_tokens_max"),
        requests_running_max=_sum(states, "requests_running_max"),
        pab_tokens=sum(known) if len(known) == len(states) else None,
        # Each of several engines sees only a part of the dispatches, so none knows which have arrived.
        pab_dispatches=_by_sender(dispatches, gateway) if len(states) == 1 and isinstance(dispatches, dict) else None,
        reads_priority=_READS_PRIORITY.get(policies.pop()) if len(policies) == 1 else None,
    )


def _by_sender(dispatches: Mapping[str, Any], gateway: str) -> Mapping[str, int] | None:
    """The highest dispatch number seen of each sender of this gateway; None where one is not a number."""
    own = name_at_plugin(gateway, "")
    seen = {name[len(own) + 1 :]: n for name, n in dispatches.items() if name == own or name.startswith(own + "/")}
    return seen if all(map(_is_count, seen.values())) else None


def _sum(states: list[Mapping[str, Any]], name: str) -> int | None:
    values: list[int] = [state[name] for state in states if _is_count(state.get(name))]
    return sum(values) or None if len(values) == len(states) else None


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == ROW_FIELDS and all(map(_is_count, row))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 2**53
