"""An engine with external load: calls that no scheduler of ours sent there, of which only gauges tell."""

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from backends.engine.engine import Engine, Leap, StepResult
from backends.engine.sequence import EngineRequest


class ExternalLoad(Engine):
    """An engine with another client, which has `concurrent` calls there from `begins_s` to `ends_s`, each followed by
    the next. Prompts and answers are of `tokens` each, or as far from it says in `spread` (0.5: half as many to
    one and a half times).
    """

    def __init__(
        self, *args: Any, concurrent: int, tokens: int, begins_s: float, ends_s: float, spread: float = 0.5, **kw: Any
    ) -> None:
        super().__init__(*args, **kw)
        self._concurrent, self._tokens, self._spread = concurrent, tokens, spread
        self._begins_s, self._ends_s = begins_s, ends_s
        self._rng, self._numbers = Random(1), count()
        self._running: set[str] = set()
        self.finished = 0
        """Calls of the other client that have ended."""

    def step_begin(self, now: float) -> Any:
        while self._begins_s <= now < self._ends_s and len(self._running) < self._concurrent:
            prompt, output = (
                int(self._tokens * self._rng.uniform(1 - self._spread, 1 + self._spread)) for _ in range(2)
            )
            external = EngineRequest(f"external-{next(self._numbers)}", prompt, output)
            self._running.add(external.id)
            self.submit(external, now)
        return super().step_begin(now)

    def step_end(self) -> StepResult:
        report = super().step_end()
        ended = self._running.intersection(report.finished)
        self._running -= ended
        self.finished += len(ended)
        return replace(
            report,
            emitted=_ours(report.emitted),
            finished=_ours(report.finished),
            prefilled={each: cached for each, cached in report.prefilled.items() if not _is_external(each)},
        )

    def leap(self, now: float, before: float) -> Leap | None:
        if len(self._running) < self._concurrent and self._begins_s <= now < self._ends_s:
            return None
        done = super().leap(now, before)
        return None if done is None else done._replace(emitted=_ours(done.emitted))


def _is_external(request_id: str) -> bool:
    return request_id.startswith("external-")


def _ours(request_ids: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return tuple(each for each in request_ids if not _is_external(each))
