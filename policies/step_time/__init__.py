"""How long will a step of this engine take, and how sure is that?"""

from policies.step_time.model import StepTime, StepTimeModel

__all__ = ["StepTime", "StepTimeModel"]
