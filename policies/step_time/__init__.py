"""Step time: a model of how long an engine's steps take, learnt online, with its error."""

from policies.step_time.fit import fit_all
from policies.step_time.learner import StepTimeLearner
from policies.step_time.model import StepTime, StepTimeModel
from policies.step_time.observation import Observation, StepGroups

__all__ = ["Observation", "StepGroups", "StepTime", "StepTimeLearner", "StepTimeModel", "fit_all"]
