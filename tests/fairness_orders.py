"""What tests know of the fairness policies, all read from their table: a new policy is tested by being listed."""

from collections.abc import Mapping
from typing import Any

from gateway.config.scheduling import PARAMETERS, PolicySettings
from policies.fairness.bounds import BOUNDS

CHOOSE_AMONG_REQUESTS = {"slack", "dlpm", "justitia"}  # they may choose another request of a tenant than the oldest
NO_LIFT = {"lcf"}  # it has no bound, because a tenant that stays away accumulates credit; without that it has VTC's
UNPROMISED = {name for name, bound in BOUNDS.items() if bound is None} - NO_LIFT


def ahead_service(name: str, parameters: Mapping[str, Any] | None = None) -> float:
    """How far the policy lets a tenant run ahead (K of its bound), with these parameters beside its defaults."""
    bound = BOUNDS[name]
    if bound is None:
        return 0.0
    defaults = PARAMETERS["fairness"].get(name, PolicySettings)(policy=name).parameters()
    return bound.ahead_service({**defaults, **(parameters or {})})
