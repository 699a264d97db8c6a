"""May this request enter the queue, and if not, when is it worth asking again?"""

from policies.admission.base import Admission, Refusal
from policies.admission.bounded import BoundedQueues
from policies.admission.drain import DrainEstimate
from policies.admission.feasible import Feasibility
from policies.admission.gate import Gate
from policies.admission.rate import RateLimiter
from policies.admission.sharing import Sharing
from policies.admission.window import WINDOWS, FixedWindow, SlidingWindow

__all__ = [
    "WINDOWS",
    "Admission",
    "BoundedQueues",
    "DrainEstimate",
    "Feasibility",
    "FixedWindow",
    "Gate",
    "RateLimiter",
    "Refusal",
    "Sharing",
    "SlidingWindow",
]
