"""Step-time learner: the step-time model of one kind of engine, learnt online.

Every observation is first predicted and then learnt from, so the reported error is a prediction error. Every few
observations, those in the window (policies/step_time/window.py) are fitted again (fit.py). Steps that are off by more
than a factor of OUTLIER (a compilation, a garbage collection, a suspended machine) are not learnt from.

Short glimpses are tested for a change of the engine (change.py). A glimpse is a group of a few steps, too rough to
learn from; or an observation, where no shorter group is seen. A run of strange glimpses may be a new kind of work: then
one fit explains them together with the window. If no fit does, the engine has changed: the old model and window are put
aside, and the model is scaled to the glimpses since the change until there are enough observations for a fit. If the
old model is right again before that, the change was a disturbance, and the old model and window are restored.

An observation costs about 60 microseconds on average: nearly a millisecond for every fit, one per FIT_EVERY.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import astuple
from math import log
from statistics import median
from typing import NamedTuple

from policies.step_time.change import STRANGE_RATIO_MIN, ChangeTest
from policies.step_time.fit import Equation, equation, fit
from policies.step_time.model import StepTime, StepTimeModel
from policies.step_time.observation import GROUP_STEPS, STEP_S_MIN, Observation, Sum
from policies.step_time.window import ObservationWindow

ERRORS_KEPT = 64
OUTLIER = 3.0

OBSERVATIONS_MIN = 4  # as many as there are coefficients
OBSERVATIONS_SETTLED = 32  # until then fits are more frequent and more thorough, and nothing counts as an outlier
FIT_EVERY_UNSETTLED, FIT_EVERY = 2, 16
ROUNDS_UNSETTLED, ROUNDS = 6, 1

OBSERVATIONS_SURE = 16
ERROR_RATIO_SURE = 0.25
PROMPT_RATIO_SURE = 0.05  # least share of prompt tokens among all: with fewer, the cost of prompts is not known

NEW_WORK_ERROR_TIMES = 1.5  # by which one model for old and new work may be worse for the old
GLIMPSE_S = 0.1  # least length, or GROUP_STEPS steps: shorter ones are as noisy as the machine
# A glimpse is at least this many predicted step times long: an engine twice as slow then shows one or two steps. The
# number doubles while glimpses are too rough: vLLM counts the tokens of a prompt when all its chunks are computed.
GLIMPSE_STEPS_MIN, GLIMPSE_STEPS_MAX = 3, 24
EXPLAINED_MIN = 1e-6  # bounds logarithms: no engine is a million times slower than another


class _Aside(NamedTuple):
    """The model and the window that were in use before a change."""

    model: StepTimeModel
    window: ObservationWindow


class StepTimeLearner:
    """The learner of a step-time model from observations of one engine. `start` is an initial model, if there is one:
    configured, or fitted earlier.
    """

    def __init__(self, start: StepTime | None = None) -> None:
        self._start = start
        self._model = self._held_to = None if start is None else start.model
        self._window = ObservationWindow()
        self._test = ChangeTest()
        self._glimpse_steps = GLIMPSE_STEPS_MIN
        self._glimpses: dict[str, Sum] = {}  # unfinished ones, by engine
        self._strange: list[Observation] = []  # the current run of strange glimpses
        self._errors: deque[float] = deque(maxlen=ERRORS_KEPT)
        self._aside: _Aside | None = None
        self._settled = start is not None
        self._unfitted = 0
        self._knows_prompts = start is not None
        self._since = Sum()  # glimpses since the engine changed
        self._shape: StepTimeModel | None = None  # the model from before the change, to be scaled
        self.ignored_total = 0
        self.changes_total = 0

    @property
    def step_time(self) -> StepTime | None:
        """The current model with its error; None before the first fit without a start value."""
        if self._model is None:
            return None
        if len(self._errors) < OBSERVATIONS_MIN and self._start is not None and not self.changes_total:
            return self._start
        error_ratio = median(self._errors) if self._errors else 1.0
        enough = len(self._window) >= OBSERVATIONS_SURE or (self._start is not None and not self.changes_total)
        is_sure = enough and self._knows_prompts and error_ratio <= ERROR_RATIO_SURE and not self._test.in_doubt
        return StepTime(self._model, error_ratio=error_ratio, is_sure=is_sure)

    def observe(self, observation: Observation, *, is_glimpsed: bool = False) -> None:
        """Learn from an observation. `is_glimpsed`: it is not tested for a change, because its glimpses were tested
        before. Impossible observations are counted and ignored.
        """
        if not observation.is_possible:
            self.ignored_total += 1
            return
        seen = equation(observation)
        is_outlier = False
        if self._model is not None:
            explained = _explained(seen, self._model)
            self._errors.append(abs(1.0 - explained))
            is_outlier = self._settled and not 1 / OUTLIER <= explained <= OUTLIER
        if not is_outlier:
            self._window.add(seen)
            self._unfitted += 1
        if not (self._may_change and not is_glimpsed and self._glimpsed(observation, edge=0.0)) and self._is_due():
            self._fit()

    def glimpse(self, seen: Observation, *, engine: str = "", edge_steps: float) -> bool:
        """Add a few steps, or none, that follow the engine's last glimpse without a gap; return whether the engine has
        changed. It is not known whether `edge_steps` of the steps belong to this glimpse.
        """
        if self._model is None:
            return False
        part = self._glimpses.setdefault(engine, Sum())
        part.add(seen)
        whole = part.observation()
        enough_s = max(GLIMPSE_S, self._glimpse_steps * whole.predicted_s(self._model) / max(part.steps, 1.0))
        enough_steps = max(GROUP_STEPS, self._glimpse_steps)
        if not part.steps or (part.steps < enough_steps and part.seconds < enough_s):
            return False
        del self._glimpses[engine]
        return self._may_change and whole.is_possible and self._glimpsed(whole, edge=edge_steps / part.steps)

    def unseen(self, engine: str | None = None) -> None:
        """Drop the unfinished glimpse of this engine (None: of all), because the next one does not follow it without a
        gap.
        """
        if engine is None:
            self._glimpses.clear()
        else:
            self._glimpses.pop(engine, None)

    @property
    def _may_change(self) -> bool:
        """Whether enough is known of the engine to notice a change."""
        return self._settled or self._aside is not None or len(self._window) >= OBSERVATIONS_SURE

    def _glimpsed(self, seen: Observation, *, edge: float) -> bool:
        """Test a glimpse, of which chance explains an error of `edge`; return whether the engine has changed."""
        assert self._model is not None, "otherwise there is nothing to change"
        self._test.observed(_off(seen, self._model), edge)
        self._rescale(seen)
        if self._test.begins:
            self._strange.clear()
            if self._test.is_rough and self._glimpse_steps < GLIMPSE_STEPS_MAX:
                self._glimpse_steps *= 2
                self._test = ChangeTest()
            return False
        self._strange.append(seen)
        return self._test.has_changed and self._change(self._model)

    def _is_due(self) -> bool:
        every = FIT_EVERY if self._settled else FIT_EVERY_UNSETTLED
        return len(self._window) >= self._observations_min and self._unfitted >= every

    @property
    def _observations_min(self) -> int:
        """Observations needed for a fit. After a change more are needed: a few say less than the scaled old model."""
        return OBSERVATIONS_MIN if self._aside is None else 2 * OBSERVATIONS_MIN

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

    def _change(self, model: StepTimeModel) -> bool:
        """Handle a run of strange glimpses: restore the old model, learn new work, or begin again. Returns whether the
        engine has changed; new work is no change.
        """
        strange, ratio = self._strange, self._test.strange_ratio
        aside, self._strange = self._aside, []
        self._test.begin_anew()
        self._glimpses.clear()
        if aside is not None and median(abs(_off(each, aside.model)) for each in strange) < ratio:
            self._model = self._held_to = aside.model
            self._window = aside.window
            self._errors.clear()
            self._aside, self._settled = None, True
            return True
        if self._is_new_work([equation(each) for each in strange], model, ratio):
            return False
        self._aside = aside or _Aside(model, self._window)
        self._begin_anew(strange, model)
        return True

    def _is_new_work(self, strange: list[Equation], model: StepTimeModel, strange_ratio: float) -> bool:
        """Whether one model explains both the strange glimpses and the window; it then becomes the current model."""
        remembered = list(self._window)
        both = fit([*remembered, *strange], self._held_to, believed=model, rounds=ROUNDS_UNSETTLED)
        if both is None or not remembered:
            return False
        enough = max(STRANGE_RATIO_MIN, NEW_WORK_ERROR_TIMES * _error(remembered, model))
        if _error(strange, both) >= strange_ratio or _error(remembered, both) > enough:
            return False
        self._model = both
        return True

    def _begin_anew(self, strange: list[Observation], model: StepTimeModel) -> None:
        # The first glimpse may have begun before the change.
        self._since = Sum()
        for each in strange[1:] or strange:
            self._since.add(each)
        self._shape = model
        self._window = ObservationWindow()
        self._errors.clear()
        self._settled = False
        self._unfitted = 0
        self.changes_total += 1
        self._scale()

    def _rescale(self, seen: Observation) -> None:
        """Scale the old model by all glimpses since the change, until there are enough observations for a fit."""
        if self._aside is not None and len(self._window) < self._observations_min:
            self._since.add(seen)
            self._scale()

    def _scale(self) -> None:
        assert self._shape is not None, "something was believed before the change"
        times = self._since.seconds / max(self._since.observation().predicted_s(self._shape), STEP_S_MIN)
        self._model = self._held_to = StepTimeModel(*(each * times for each in astuple(self._shape)))


def _explained(seen: Equation, model: StepTimeModel) -> float:
    """The part of the observed time that the model explains: 1 where it is right."""
    steps, tokens, context, requests = seen
    return model.base_s * steps + model.token_s * tokens + model.context_token_s * context + model.request_s * requests


def _strangeness(seen: Equation, model: StepTimeModel) -> float:
    """The error of the model as an absolute logarithm: ten times too long is as far off as ten times too short."""
    return abs(log(max(_explained(seen, model), EXPLAINED_MIN)))


def _off(seen: Observation, model: StepTimeModel) -> float:
    """log(observed / predicted) seconds: positive where the steps took longer than predicted."""
    return log(seen.seconds / max(seen.predicted_s(model), EXPLAINED_MIN * seen.seconds))


def _error(equations: Iterable[Equation], model: StepTimeModel) -> float:
    return median(_strangeness(each, model) for each in equations)
