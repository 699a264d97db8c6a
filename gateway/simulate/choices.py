"""Choices: the policies to compare, parsed from options of the command line, such as `--policy
drr:quantum_service=200`.

A policy is parsed by the same sections as in the gateway's configuration, and made by the same function: names,
parameters and error messages are the same. Several policies, predictions, placements and choices for sessions (held or
not) are run in every combination.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError

from gateway.config import Config
from gateway.config.problems import validation_problems
from gateway.config.scheduling import POLICY, Scheduling, SimulatedScheduling
from gateway.config.scheduling import PolicySettings as ConfiguredPolicy
from gateway.observability.metrics.service_gap import gap_bound_of
from gateway.scheduling.assembly import make_scheduler
from gateway.simulate.options import Holding, PolicyOptions
from gateway.simulate.run import TriedPolicy
from policies.accounts.cost import PRICES
from policies.types import Tenant

RUNS_MAX = 64
WEIGHTS_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices(PolicyOptions):
    """The options that choose the policies of a comparison. All combinations of the choices are simulated."""

    def tried(self, config: Config, pool: str, *, seed: int = 0) -> list[TriedPolicy]:
        """All combinations of the choices, each under its own name. Raises ValueError, listing the possible names."""
        kinds = (self.policies, self.predictions, self.placements, self.sessions)
        combinations = list(product(*(names or (None,) for names in kinds)))
        if len(combinations) > RUNS_MAX:
            raise ValueError(f"these are {len(combinations)} combinations, and {RUNS_MAX} are the most")
        base = config.scheduling_of(pool)
        tried = [self._policy(base, config, combination, seed) for combination in combinations]
        labels = [policy.label for policy in tried]
        if doubles := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"{', '.join(doubles)} would be tried twice")
        return tried

    def _policy(self, base: Scheduling, config: Config, combination: Sequence[str | None], seed: int) -> TriedPolicy:
        fairness, prediction, placement, sessions = combination
        typed = {"fairness": fairness, "prediction": prediction, "placement": placement, "price": self.price}
        given: dict[str, Any] = {kind: _read(kind, text) for kind, text in typed.items() if text is not None}
        if self.share_ratio_max is not None:
            given["share_ratio_max"] = self.share_ratio_max
        if sessions is not None:
            given["hold_sessions"] = sessions == Holding.HELD
        try:
            chosen = {name: getattr(base, name) for name in Scheduling.model_fields} | given
            scheduling = SimulatedScheduling.model_validate(chosen)
        except ValidationError as error:
            problems = validation_problems(error, SimulatedScheduling, {}, {})
            raise ValueError("\n".join(problem.describe(None) for problem in problems)) from None
        varied = (
            fairness or scheduling.fairness.policy,
            prediction if len(self.predictions or ()) > 1 else None,
            placement if len(self.placements or ()) > 1 else None,
            f"sessions {sessions}" if len(self.sessions or ()) > 1 else None,
        )
        return TriedPolicy(
            label=" + ".join(name for name in varied if name),
            make_scheduler=partial(
                make_scheduler,
                scheduling,
                tiers=config.policy_tiers(),
                groups=config.policy_groups(),
                queue=config.queue,
                session_room=self.session_room,
                rng=Random(f"policy {seed}"),  # noqa: S311 - a simulation draws lots, not secrets
            ),
            price=PRICES[scheduling.price.policy](**scheduling.price.parameters()),
            price_text=_described(scheduling.price),
            promise=gap_bound_of(scheduling),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantChoices:
    """The settings for the tenants in a trace. A configured tenant has its own settings; any other tenant has weight 1
    and the limit `requests_per_minute_max`. `weights` overrides the weights of both kinds.
    """

    configured: Mapping[str, Tenant] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    requests_per_minute_max: int | None = None

    def find(self, tenant_id: str) -> Tenant:
        tenant = self.configured.get(tenant_id)
        if tenant is None:
            tenant = Tenant(tenant_id, requests_per_minute_max=self.requests_per_minute_max)
        weight = self.weights.get(tenant_id)
        return tenant if weight is None else replace(tenant, weight=weight)


def read_weights(texts: Iterable[str]) -> dict[str, float]:
    """Read weights typed as TENANT=WEIGHT, or given in files of such lines. Raises ValueError and OSError."""
    weights: dict[str, float] = {}
    for text in texts:
        if "=" in text:
            weights.update([_weight(text, "--weights")])
            continue
        with Path(text).open(encoding="utf-8") as file:
            for number, line in enumerate(file.read(WEIGHTS_BYTES_MAX).splitlines(), start=1):
                if line.strip() and not line.startswith("#"):
                    weights.update([_weight(line, f"{text}:{number}")])
    return weights


def _read(kind: str, text: str) -> dict[str, str]:
    """Parse NAME or NAME:PARAMETER=VALUE,... to a mapping as in the configuration. Raises ValueError."""
    name, _, rest = text.partition(":")
    chosen = {POLICY: name}
    for pair in rest.split(",") if rest else ():
        parameter, equals, value = pair.partition("=")
        if not equals or not parameter or parameter in chosen:
            raise ValueError(f"{kind}: '{text}' must be like NAME:PARAMETER=VALUE,PARAMETER=VALUE")
        chosen[parameter] = value
    return chosen


def _described(policy: ConfiguredPolicy) -> str:
    parameters = ", ".join(f"{name} {value:g}" for name, value in policy.parameters().items())
    return f"{policy.policy} ({parameters})" if parameters else policy.policy


def _weight(text: str, where: str) -> tuple[str, float]:
    tenant, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not tenant.strip() or not 0.0 < weight < float("inf"):
        raise ValueError(f"{where}: must be like TENANT=WEIGHT, with a weight above 0")
    return tenant.strip(), weight
