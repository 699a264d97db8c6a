"""Reports of steps, passed from the engine's process to an HTTP client.

Rows of steps travel with vLLM's own statistics as JSON (stat_logger.py). The API process keeps the last ROWS_MAX of all
its engines, numbered. A client names the number that it has read up to. Numbers start at 0 in each process; `epoch`
identifies the process.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from backends.vllm_plugin.step_clock import StepReport

VERSION: Final = 1
ROWS_MAX: Final = 4096
CARRIED_PREFIX: Final = "fairlead:"


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of one engine as of its last report. None: not known yet.

    `coefficients` are those of the step-time model, in seconds (policies/step_time/model.py). `pab_tokens` is the
    prefill admission budget: the prompt tokens that the engine can take now and still keep the targets `pab_ttft_s` and
    `pab_tpot_s`. `dispatches` has, by gateway, the highest dispatch number that the engine has seen.
    `scheduling_policy` is vLLM's: "priority" if its queue is ordered by the priority of each call.
    """

    dispatches: Mapping[str, int]
    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_free: int
    kv_block_tokens: int
    step_tokens_max: int
    requests_running_max: int
    scheduling_policy: str
    coefficients: Sequence[float] | None = None
    error_ratio: float | None = None
    is_sure: bool = False
    pab_tokens: float | None = None
    pab_ttft_s: float | None = None
    pab_tpot_s: float | None = None


def carried(steps: Sequence[StepReport], state: EngineState) -> str:
    """Encode steps and state as one string."""
    rows = [[*step[:3], round(step.duration_s * 1e6)] for step in steps]
    return CARRIED_PREFIX + json.dumps({"steps": rows, "state": asdict(state)}, separators=(",", ":"))


def take_carried(strings: dict[str, int]) -> list[Mapping[str, Any]]:
    """Remove from a mapping the strings that `carried` made, and return them decoded."""
    found = [each for each in strings if each.startswith(CARRIED_PREFIX)]
    for each in found:
        del strings[each]
    return [json.loads(each.removeprefix(CARRIED_PREFIX)) for each in found]


class Reports:
    """The reports of all engines of one API server process. `epoch` is a name that no other process has. It tells a
    reader whether the numbering of the reports has begun again, because the process is another. Mutable.
    """

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._rows: deque[list[int]] = deque(maxlen=ROWS_MAX)
        self._next = 0
        self._engines: dict[str, Any] = {}

    def add(self, engine: int, report: Mapping[str, Any]) -> None:
        """Keep the report of one engine."""
        for row in report["steps"]:
            self._rows.append([self._next, engine, *row])
            self._next += 1
        self._engines[str(engine)] = report["state"]

    def since(self, number: int) -> dict[str, Any]:
        """Return, as JSON, the rows numbered from `number` on, and every engine's state. A row has its number, engine,
        new tokens, context tokens, requests and microseconds. `next` is the number to ask for next time.
        """
        kept_from = self._next - len(self._rows)
        begin = min(max(number, kept_from), self._next)
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "next": self._next,
            "steps": list(islice(self._rows, begin - kept_from, None)),
            "engines": self._engines,
        }
