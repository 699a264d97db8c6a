"""Admission: whether a request may enter the queue and, if not, when the client may retry."""

from policies.admission.base import Admission, AdmissionReject
from policies.admission.bounded import BoundedQueues
from policies.admission.feasible import Feasibility
from policies.admission.rate_limit import RateLimiter
from policies.admission.rate_window import WINDOWS, FixedWindow, SlidingWindow
from policies.admission.retry_after import DrainEstimate
from policies.admission.rules import AdmissionRules

__all__ = [
    "WINDOWS",
    "Admission",
    "AdmissionReject",
    "AdmissionRules",
    "BoundedQueues",
    "DrainEstimate",
    "Feasibility",
    "FixedWindow",
    "RateLimiter",
    "SlidingWindow",
]
