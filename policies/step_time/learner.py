"""The step time of one kind of engine, learnt while it works.

Every observation is first predicted and then learnt from, so that the error that is told is one of predictions. Every
few of them, those that are remembered (policies/step_time/window.py) are fitted again (fit.py). Steps more than OUTLIER
times off (a compilation, a collection, a machine that slept) are not learnt from.

When nearly all of the latest are off and used not to be, they may be of a kind that was not seen before: then one fit
with them explains them too. If none does, it is another engine. What was seen before is put aside, and what is believed
is scaled to the new one until enough of that has been seen. If what was put aside is right again before that, it was a
disturbance, and is over.

Costs about 60 microseconds an observation in the mean: nearly a millisecond when it fits, every FIT_EVERY of them.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import astuple
from itertools import islice
from math import log
from statistics import median
from typing import NamedTuple

from policies.step_time.fit import Equation, equation, fit
from policies.step_time.model import StepTime, StepTimeModel
from policies.step_time.observation import Observation
from policies.step_time.window import Window

ERRORS_KEPT = 64
OUTLIER = 3.0

OBSERVATIONS_MIN = 4  # as many as there are coefficients
OBSERVATIONS_SETTLED = 32  # until then it is fitted more often and more thoroughly, and nothing counts as strange
FIT_EVERY_UNSETTLED, FIT_EVERY = 2, 16
ROUNDS_UNSETTLED, ROUNDS = 6, 1

OBSERVATIONS_SURE = 16
ERROR_RATIO_SURE = 0.25
PROMPT_RATIO_SURE = 0.05  # of the tokens, those that nobody decodes: without any, nothing is known of prompts

RECENT, STRANGE_MIN = 12, 11  # so many of the latest observations are strange: it is another engine
CHANGED_ERROR_RATIO_MIN = 0.2
CHANGED_ERROR_TIMES = 3.0  # as much as usual
NEW_WORK_ERROR_TIMES = 1.5  # that one model for the old and the new may be worse for the old
EXPLAINED_MIN = 1e-6  # an engine is not a million times slower than another


class _Aside(NamedTuple):
    """What was known of the engine before."""

    model: StepTimeModel
    window: Window
    strange_ratio: float


class StepTimeLearner:
    """Learns a StepTimeModel. It starts from `start`, where there is one: configured, or fitted before."""

    def __init__(self, start: StepTime | None = None) -> None:
        self._start = start
        self._model = self._held_to = None if start is None else start.model
        self._window = Window()
        self._recent: deque[Equation] = deque(maxlen=RECENT)  # outliers too
        self._errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self._aside: _Aside | None = None
        self._settled = start is not None
        self._unfitted = 0
        self._knows_prompts = start is not None
        self.ignored_total = 0
        self.outliers_total = 0
        self.changes_total = 0

    @property
    def step_time(self) -> StepTime | None:
        """What is believed now; None while nothing is."""
        if self._model is None:
            return None
        if len(self._errors) < OBSERVATIONS_MIN and self._start is not None and not self.changes_total:
            return self._start
        error_ratio = median(self._errors) if self._errors else 1.0
        enough = len(self._window) >= OBSERVATIONS_SURE or (self._start is not None and not self.changes_total)
        is_sure = enough and self._knows_prompts and error_ratio <= ERROR_RATIO_SURE
        return StepTime(self._model, error_ratio=error_ratio, is_sure=is_sure)

    def observe(self, observation: Observation) -> None:
        """Learn from what was seen; what is not possible is counted and ignored."""
        if not observation.is_possible:
            self.ignored_total += 1
            return
        seen = equation(observation)
        self._recent.append(seen)
        if self._model is not None:
            explained = _explained(seen, self._model)
            self._errors.append(abs(1.0 - explained))
            if self._settled and not 1 / OUTLIER <= explained <= OUTLIER:
                self.outliers_total += 1
                self._notice_change()
                return
        self._window.add(seen)
        self._unfitted += 1
        self._notice_change()
        self._notice_end()
        if self._is_due():
            self._fit()

    def _is_due(self) -> bool:
        every = FIT_EVERY if self._settled else FIT_EVERY_UNSETTLED
        return len(self._window) >= OBSERVATIONS_MIN and self._unfitted >= every

    def _fit(self) -> None:
        rounds = ROUNDS if self._settled and self._model is not None else ROUNDS_UNSETTLED
        self._window.forget_old()
        equations = list(self._window)
        self._model = fit(equations, self._held_to, believed=self._model, rounds=rounds)
        self._unfitted = 0
        self._settled = self._settled or len(equations) >= OBSERVATIONS_SETTLED
        if self._settled:
            self._held_to, self._aside = self._model, None
        tokens = sum(each[1] for each in equations)
        prompts = sum(max(each[1] - each[3], 0.0) for each in equations)
        self._knows_prompts = self._knows_prompts or prompts >= PROMPT_RATIO_SURE * tokens

    def _notice_change(self) -> None:
        """If the engine is another one than before, begin anew."""
        if not self._settled or self._model is None or len(self._recent) < RECENT:
            return
        usual = list(islice(self._errors, max(len(self._errors) - RECENT, 0)))
        expected = CHANGED_ERROR_TIMES * median(usual) if usual else 0.0
        # Where all are outliers it is not noise, however much of that is usual.
        strange_ratio = min(max(CHANGED_ERROR_RATIO_MIN, expected), log(OUTLIER))
        strange = self._strange(self._model, strange_ratio)
        if len(strange) < STRANGE_MIN:
            return
        if not self._is_new_work(strange, self._model, strange_ratio):
            self._aside = _Aside(self._model, self._window, strange_ratio)
            self._begin_anew(strange, self._model)

    def _is_new_work(self, strange: list[Equation], model: StepTimeModel, strange_ratio: float) -> bool:
        """Whether one model explains them and all that is remembered; it is believed then."""
        remembered = list(self._window)
        both = fit([*remembered, *strange], self._held_to, believed=model, rounds=ROUNDS_UNSETTLED)
        if both is None or not remembered:
            return False
        enough = max(CHANGED_ERROR_RATIO_MIN, NEW_WORK_ERROR_TIMES * _error(remembered, model))
        if _error(strange, both) >= strange_ratio or _error(remembered, both) > enough:
            return False
        self._model = both
        return True

    def _notice_end(self) -> None:
        """If what was put aside is right again, return to it."""
        if self._aside is None or self._model is None or len(self._recent) < RECENT:
            return
        model, window, strange_ratio = self._aside
        by_aside = len(self._strange(model, strange_ratio))
        if RECENT - by_aside < STRANGE_MIN or by_aside >= len(self._strange(self._model, strange_ratio)):
            return
        self._model = self._held_to = model
        self._window = window
        self._errors.clear()
        self._aside, self._settled = None, True

    def _strange(self, model: StepTimeModel, ratio: float) -> list[Equation]:
        """Which of the latest observations the model does not explain."""
        return [each for each in self._recent if _strangeness(each, model) >= ratio]

    def _begin_anew(self, strange: list[Equation], model: StepTimeModel) -> None:
        times = 1.0 / max(median(_explained(each, model) for each in strange), EXPLAINED_MIN)
        self._model = self._held_to = StepTimeModel(*(each * times for each in astuple(model)))
        self._window = Window()
        for each in strange:
            self._window.add(each)
        self._errors.clear()
        self._recent.clear()
        self._settled = False
        self.changes_total += 1
        self._fit()


def _explained(seen: Equation, model: StepTimeModel) -> float:
    """The part of the time that the model explains: 1 where it is right."""
    steps, tokens, context, requests = seen
    return model.base_s * steps + model.token_s * tokens + model.context_token_s * context + model.request_s * requests


def _strangeness(seen: Equation, model: StepTimeModel) -> float:
    """How far off the model is, on a logarithmic scale: ten times too long is as far as ten times too short."""
    return abs(log(max(_explained(seen, model), EXPLAINED_MIN)))


def _error(equations: Iterable[Equation], model: StepTimeModel) -> float:
    return median(_strangeness(each, model) for each in equations)
