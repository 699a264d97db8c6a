"""The answers of the history as Structs, which the admin API returns as JSON and OpenAPI describes."""

from typing import Annotated, Any

from msgspec import Meta, Struct

Series = list[float | None]
Number = Annotated[float | None, Meta(description="null: nothing was recorded, or it does not apply")]


class HistoryEvent(Struct, kw_only=True):
    """An event of the history. It happened `at`, in seconds since 1970. `kind`: `change` by an administrator (`actor`)
    of `name`, which begins with its kind and a slash, with `before`, `after`, `declared` and `actor_label` as in the
    audit log (the administrator of a group does not read these); `note` by `actor`, as text; `leader`: the process
    `name` leads from then on; `backend`: `name` was `not_available` or is `available` again.
    """

    at: float
    kind: str
    name: str
    what: str
    actor: str | None = None
    actor_label: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    declared: dict[str, Any] | None = None


class HistoryPool(Struct, kw_only=True):
    """The recorded values of a pool, tier, group, tenant or backend in one pool. `values` has, by name, one value for
    each step. Null: nothing was recorded. Of a pool, tier, group or tenant: `share` of what the pool served; `tokens`
    of prompts and answers; `wait_s`: the longest wait of a request; `ttft_s`: the TTFT within which nine of ten streams
    began; `refused` calls; `cost`; `queued` (not of a tenant): requests that waited when the step ended (for a minute:
    the most). Of a backend: `available`, a part of the time; requests `in_flight` and `requests_limit`; `kv_tokens`
    reserved and `kv_tokens_limit`; `step_s`, the time of a step. Each value is right within 9 %, by minutes within 18
    %.
    """

    values: dict[str, Series]


class History(Struct, kw_only=True):
    """The history of a pool, tier, group, tenant or backend. Step n began at `from_s` + n * `step_s`, in seconds since
    1970. `missing`: processes that did not answer. `currency` of costs; null: there are no prices.
    """

    of: str
    from_s: int
    step_s: int
    pools: dict[str, HistoryPool]
    events: list[HistoryEvent]
    missing: list[str]
    currency: str | None


class MinuteRow(Struct, kw_only=True):
    """The values of one pool, tier, group, tenant or backend in one minute."""

    pool: str
    kind: str
    name: str
    values: dict[str, Number]


class HistoryMinute(Struct, kw_only=True):
    """The history of one minute. The minute began at `at`, in seconds since 1970. There is one row for each pool, tier,
    group, tenant or backend that did anything. `is_recorded`: the minute was recorded.
    """

    at: int
    is_recorded: bool
    rows: list[MinuteRow]
    events: list[HistoryEvent]
    missing: list[str]
    currency: str | None
