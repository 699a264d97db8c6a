"""Scheduling section: the policy of each kind, by name or with parameters.

    fairness: drr
    fairness: {policy: drr, quantum_service: 200}

Names come from the tables of policies/; every policy with parameters has a section here with their types and bounds. An
unknown name or parameter is reported with the known ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, SerializeAsAny, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema
from pydantic_settings import NoDecode

from gateway.config.problems import said_of_removed
from gateway.config.reasons import reason_of
from gateway.config.sections import Section
from gateway.config.value_types import Count, NotNegative, Positive, not_bool, one_of, read_choice_of
from policies.accounts.cost import PRICES
from policies.admission import WINDOWS
from policies.capacity.backend import KV_RULES
from policies.fairness import FAIRNESS
from policies.fairness.dlpm import REFILL_SERVICE
from policies.fairness.drr import QUANTUM_SERVICE
from policies.fairness.experimental.justitia import ITERATIONS_PER_S, KV_TOKENS
from policies.fairness.slack import PREFIX, SECOND_KEYS, SLACK_SERVICE
from policies.limit import LIMITS
from policies.limit.limits import SEQUENCES_MAX
from policies.placement import ARRIVAL_PLACEMENT, PLACEMENT
from policies.placement.d2lpm import WORKER_QUANTUM_SERVICE
from policies.prediction import PREDICTION, SIMULATION_ONLY
from policies.prediction.known import ERROR_RATIO
from policies.prediction.mixture import QUANTILE as MIXTURE_QUANTILE
from policies.prediction.quantile import QUANTILE

POLICY = "policy"

Ratio = Annotated[float, Field(gt=0, le=1), BeforeValidator(not_bool)]


class PolicySettings(Section):
    """The settings of one policy, such as the fairness policy: its name (`policy`), and its parameters. Policies with
    parameters have a subclass.
    """

    policy: str

    def parameters(self) -> dict[str, Any]:
        """Return the keyword arguments of the policy's constructor."""
        return self.model_dump(exclude={POLICY})


class DeficitRoundRobinSettings(PolicySettings):
    """The parameters of the fairness policy `drr`: the credit, in service units, that a tenant gets per round."""

    quantum_service: Positive = QUANTUM_SERVICE


class SlackCounterSettings(PolicySettings):
    """The parameters of the fairness policy `slack`: `second_key` orders the requests of all tenants that are at most
    `slack_service` service units ahead of the least served one.
    """

    slack_service: Annotated[float, Field(ge=0, allow_inf_nan=True), BeforeValidator(not_bool)] = SLACK_SERVICE
    second_key: Annotated[str, BeforeValidator(partial(read_choice_of, SECOND_KEYS))] = PREFIX


class DeficitLongestPrefixSettings(PolicySettings):
    """The parameters of the fairness policy `dlpm`: the credit, in service units at weight 1, that every waiting tenant
    gets when none of them has credit left.
    """

    quantum_service: Positive = REFILL_SERVICE


class AgentTagsSettings(PolicySettings):
    """The parameters of the fairness policy `justitia`: a pool's KV tokens, and its engines' steps per second. From
    both, the policy computes which agent (application of many calls) would end first in an equally shared pool.
    """

    kv_tokens: Positive = KV_TOKENS
    iterations_per_s: Positive = ITERATIONS_PER_S


class TenantQuantileSettings(PolicySettings):
    """The parameters of the prediction `quantile`: the predicted quantile of a tenant's recent output lengths."""

    quantile: Ratio = QUANTILE


class MixtureOfExpertsSettings(PolicySettings):
    """The parameters of the prediction `mixture`, which estimates how many tokens an answer will have. It combines the
    estimates of several predictors (experts). Each looks at recent answers to requests that are similar in one way,
    such as the same tenant. `quantile`: which quantile of these answers' lengths it estimates (0.5: the median).
    """

    quantile: Ratio = MIXTURE_QUANTILE


class NoisyOracleSettings(PolicySettings):
    """The parameters of the prediction `noisy-oracle` of simulations: the greatest relative error of a prediction."""

    error_ratio: Annotated[float, Field(ge=0, le=1), BeforeValidator(not_bool)] = ERROR_RATIO


class D2lpmSettings(PolicySettings):
    """The parameters of the placement `d2lpm`: the credit, in service units, that a tenant gets at every backend when
    it has none left at any of them.
    """

    quantum_service: Positive = WORKER_QUANTUM_SERVICE


class FixedLimitSettings(PolicySettings):
    """The parameters of the limit `fixed`: the most sequences that a backend runs at once."""

    sequences_max: Count = SEQUENCES_MAX


class LinearPriceSettings(PolicySettings):
    """The parameters of the price `linear`: the service units per token."""

    prompt: NotNegative = 1.0
    cached_prompt: NotNegative = 0.1
    output: Positive = 2.0


class ProfiledPriceSettings(PolicySettings):
    """The parameters of the price `profiled`: the coefficients of the quadratic function of prompt and output tokens by
    which a request is priced in milliseconds of GPU time.
    """

    prompt_ms: NotNegative = 0.21001891
    output_ms: Positive = 0.10075395
    prompt_output_ms: NotNegative = 0.0039868
    output_output_ms: NotNegative = 0.00324733
    request_ms: NotNegative = 1.14601454


class FlopsPriceSettings(PolicySettings):
    """The parameters of the price `flops`: the size of a transformer model. By this price, a request costs the billions
    of floating-point operations that such a model needs for it.
    """

    parameter_count: Positive = 6.74e9
    layers: Count = 32
    hidden: Count = 4096


class ExtendPriceSettings(PolicySettings):
    """The parameters of the price `extend`: service units per uncached prompt token, and per output token."""

    extend: NotNegative = 1.0
    output: Positive = 2.0


# Policy names that can be configured, by kind.
NAMES: Mapping[str, tuple[str, ...]] = {
    "fairness": tuple(FAIRNESS),
    "prediction": tuple(name for name in PREDICTION if name not in SIMULATION_ONLY),
    "placement": tuple(PLACEMENT),
    "limit": tuple(LIMITS),
    "price": tuple(PRICES),
}

# Sections of parameters, by the names of the tables; a policy that is not listed has none.
PARAMETERS: Mapping[str, Mapping[str, type[PolicySettings]]] = {
    "fairness": {
        "slack": SlackCounterSettings,
        "dlpm": DeficitLongestPrefixSettings,
        "drr": DeficitRoundRobinSettings,
        "justitia": AgentTagsSettings,
    },
    "prediction": {
        "quantile": TenantQuantileSettings,
        "mixture": MixtureOfExpertsSettings,
        "noisy-oracle": NoisyOracleSettings,
    },
    "placement": {"d2lpm": D2lpmSettings},
    "limit": {"fixed": FixedLimitSettings},
    "price": {
        "linear": LinearPriceSettings,
        "profiled": ProfiledPriceSettings,
        "flops": FlopsPriceSettings,
        "extend": ExtendPriceSettings,
    },
}


def read_choice(kind: str, names: tuple[str, ...], default: str, value: object) -> PolicySettings:
    """Read a policy's name, or a mapping of its name (`policy`, or the default) and parameters. Raises ValueError."""
    given = {POLICY: value} if isinstance(value, str) else value
    if isinstance(given, PolicySettings):
        given = given.model_dump()
    if not isinstance(given, Mapping):
        raise ValueError("must be the name of a policy, or hold it and its parameters (policy: NAME)")  # noqa: TRY004
    name = given.get(POLICY, default)
    if name not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    section = PARAMETERS[kind].get(name, PolicySettings)
    unknown = [key for key in given if key not in section.model_fields]
    problems = [_unknown(key, name, section) for key in unknown]
    try:
        policy = section.model_validate({POLICY: name, **{key: given[key] for key in given if key not in unknown}})
    except ValidationError as error:
        problems += [_problem(entry["loc"], reason_of(entry)) for entry in error.errors()]
    if problems:
        raise ValidationError.from_exception_data(kind, problems)
    return policy


def _unknown(key: str, name: str, section: type[PolicySettings]) -> InitErrorDetails:
    removed = said_of_removed((name,), key)
    if removed is not None:
        return _problem((key,), removed)
    there_are = [field for field in section.model_fields if field != POLICY]
    known = f"it has: {', '.join(there_are)}" if there_are else "it has none"
    return _problem((key,), f"'{name}' has no such parameter ({known})")


def _problem(loc: tuple[int | str, ...], text: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("policy", "{text}", {"text": text}), loc=loc, input=None)


@dataclass(frozen=True)
class _Choice:
    """An annotation of a field that holds a policy of this kind: it parses the policy, and describes its schema."""

    kind: str
    names: tuple[str, ...]
    default: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        read = partial(read_choice, self.kind, self.names, self.default)
        return core_schema.no_info_before_validator_function(read, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of a policy: its name, or its name with its parameters."""
        forms: list[dict[str, Any]] = [{"enum": list(self.names)}]
        for name in self.names:
            section = PARAMETERS[self.kind].get(name, PolicySettings).model_json_schema()
            properties = {**section["properties"], POLICY: {"const": name}}
            required = [] if name == self.default else [POLICY]
            forms.append(
                {"type": "object", "additionalProperties": False, "properties": properties, "required": required}
            )
        return {"anyOf": forms}


# A bare name in the environment is not JSON (NoDecode).
Fairness = Annotated[SerializeAsAny[PolicySettings], NoDecode, _Choice("fairness", NAMES["fairness"], "vtc")]
Prediction = Annotated[SerializeAsAny[PolicySettings], NoDecode, _Choice("prediction", NAMES["prediction"], "quantile")]
AnyPrediction = Annotated[
    SerializeAsAny[PolicySettings], NoDecode, _Choice("prediction", tuple(PREDICTION), "quantile")
]
Placement = Annotated[
    SerializeAsAny[PolicySettings], NoDecode, _Choice("placement", NAMES["placement"], "least-reserved")
]
Limit = Annotated[SerializeAsAny[PolicySettings], NoDecode, _Choice("limit", NAMES["limit"], "model")]
Price = Annotated[SerializeAsAny[PolicySettings], NoDecode, _Choice("price", NAMES["price"], "linear")]
KvRule = Annotated[str, BeforeValidator(partial(read_choice_of, tuple(KV_RULES))), one_of(KV_RULES)]
RateWindow = Annotated[str, BeforeValidator(partial(read_choice_of, tuple(WINDOWS))), one_of(WINDOWS)]


class Scheduling(Section):
    """The policies of a pool, and its rules for KV memory, rate limits and preemption."""

    fairness: Fairness = PolicySettings(policy="vtc")
    prediction: Prediction = TenantQuantileSettings(policy="quantile")
    placement: Placement = PolicySettings(policy="least-reserved")
    limit: Limit = PolicySettings(policy="model")
    price: Price = LinearPriceSettings(policy="linear")
    share_ratio_max: Ratio = 0.5
    kv_rule: KvRule = "sum"
    rate_window: RateWindow = "sliding"
    preempt_service: Positive | None = None
    hold_sessions: Annotated[
        bool, Field(description="turns of agents wait while their contexts do not fit the KV pools (docs/agents.md)")
    ] = True

    @property
    def has_queues_per_backend(self) -> bool:
        """Whether each call waits for one backend, so that limits hold per backend."""
        return self.placement.policy in ARRIVAL_PLACEMENT

    def overridden_by(self, other: "Scheduling") -> "Scheduling":
        """Return these settings, overridden by the fields that the other sets."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})


class SimulatedScheduling(Scheduling):
    """The scheduling settings of a simulation, in which a prediction can know the true output lengths."""

    prediction: AnyPrediction = TenantQuantileSettings(policy="quantile")


class PoolSettings(Section):
    """The settings of one pool, which override the settings for all pools."""

    scheduling: Scheduling = Scheduling()
