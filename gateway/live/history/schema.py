"""The answers of the history as Structs, which the admin API returns as JSON and OpenAPI describes."""

from typing import Annotated, Any

from msgspec import Meta, Struct

Series = list[float | None]
Number = Annotated[float | None, Meta(description="null: nothing was recorded, or it does not apply")]


class HistoryEvent(Struct, kw_only=True):
    """An event of the history, `at` seconds since 1970. Its `kind` is one of four. `change`: the administrator `actor`
    changed `name` (kind/name); `before`, `after`, `declared` and `actor_label` are as in the audit log, and the
    administrator of a group does not get these four. `note`: a text by `actor`. `leader`: the process `name` leads from
    then on. `backend`: the backend `name` became `available` or `not_available`.
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
    each step. Null: nothing was recorded. A value is wrong by at most 9 %, or by 18 % if the step is a minute.

    Of a pool, tier, group or tenant: `share` of the pool's service; `tokens` of prompts and answers; `wait_s`, the
    longest wait of a request; `ttft_s`, the p90 of the time to first token; `refused` calls; `cost`; `queued` (not of a
    tenant), the waiting requests at the end of the step (for a minute: the most). Of a backend: `available`, the part
    of the time; requests `in_flight` and `requests_limit`; reserved `kv_tokens` and `kv_tokens_limit`; `step_s`, the
    time of an engine step.
    """

    values: dict[str, Series]


class History(Struct, kw_only=True):
    """The history of a pool, tier, group, tenant or backend (`of`). Step number n, from 0, begins at `from_s` + n *
    `step_s`, in seconds since 1970. `missing`: processes that did not answer. `currency` is that of costs; null: there
    are no prices.
    """

    of: str
    from_s: int
    step_s: int
    pools: dict[str, HistoryPool]
    events: list[HistoryEvent]
    missing: list[str]
    currency: str | None


class MinuteRow(Struct, kw_only=True):
    """The values of one pool, tier, group, tenant or backend in one minute, named as in HistoryPool."""

    pool: str
    kind: str
    name: str
    values: dict[str, Number]


class HistoryMinute(Struct, kw_only=True):
    """The history of the minute that began at `at`, in seconds since 1970. It has one row for each pool, tier, group,
    tenant or backend that did anything. `is_recorded`: the minute was recorded. `missing`: processes that did not
    answer.
    """

    at: int
    is_recorded: bool
    rows: list[MinuteRow]
    events: list[HistoryEvent]
    missing: list[str]
    currency: str | None
