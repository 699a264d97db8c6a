"""Models of backends in the admin API (resources.py holds the rules of parsing)."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.models.resources import Fields, ResourceList, StoredResource
from gateway.config.sections import BackendPlace, BackendSizes, StepTimeSection
from gateway.config.value_types import BACKEND_URL_PATTERN, KEY_VARIABLE_PATTERN, Name
from gateway.registry.resource_kinds import CaSection, DrainedSection

URL_CHARS_MAX = 2048


class BackendFields(DrainedSection, BackendSizes, defer_build=True):
    """The settings of a backend that can change while it exists."""


class WholeBackend(BackendFields, CaSection, BackendPlace, defer_build=True):
    """A backend with all its settings. Its URL has no path. Its API key is in the variable named `api_key_env`."""

    url: Annotated[str, Field(max_length=URL_CHARS_MAX, pattern=BACKEND_URL_PATTERN, description="its root")]
    api_key_env: Annotated[
        str | None,
        Field(pattern=KEY_VARIABLE_PATTERN, description="the environment variable of the gateway with its API key"),
    ] = None


class NewBackend(WholeBackend):
    """A new backend with its id."""

    id: Name


class BelievedStepTime(StepTimeSection, defer_build=True):
    """The step time model that the gateway uses for a backend now. `origin` says where it is from: `named` (the
    configured `step_time` of the backend), `stored` (from a calibration file, or learned before a restart), or `learnt`
    (since the start). While it is not `sure`, no time to first token is forecast from it.
    """

    sure: bool
    origin: Literal["named", "stored", "learnt"]


class StepsResource(Fields):
    """The state of a backend's limit by step time. `step_s` is the predicted time, in seconds, of an engine step in
    which all running requests decode. `step_s_max` is its upper bound: the least TPOT target (time per output token) of
    these requests. If none has a target, it is the step time beyond which a larger batch gives little throughput; null:
    no bound. `prefill_s` is the predicted seconds for computing all prompts that were sent and are not computed yet.
    `budget_tokens` is how many prompt tokens can be sent in addition.
    """

    step_s: float
    step_s_max: float | None
    prefill_s: float
    budget_tokens: float


class BackendResource(StoredResource, BackendFields):
    """A backend, with its settings and its present state. `state` is the state of its health (unknown, healthy, trial,
    ejected or down), or absent: it could not be added. `trouble`: why its last health poll failed, or why it could not
    be added; "": neither. `step_time` is the configured step time model, `step_time_now` the current one. Null: not
    known.
    """

    url: str
    pool: str | None
    kind: str | None
    step_time_now: BelievedStepTime | None
    state: str
    trouble: str
    models: list[str]
    in_flight_requests: int
    requests_limit: int | None
    reserved_tokens: int
    tokens_limit: int | None
    steps: StepsResource | None


class BackendList(ResourceList):
    """One page of backends."""

    items: list[BackendResource]
