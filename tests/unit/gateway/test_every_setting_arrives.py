"""A setting of a tenant, group, tier or backend reaches its use.

Each is written in the sections and in the scheduler's types. One that is forgotten there would be accepted and ignored.
"""

import pytest

from gateway.budgets.accounts import limits_of
from gateway.config import sections
from gateway.config.config import backend_spec, envelope_of, policy_group, policy_tenant, policy_tier

TENANT = {
    "tier": "other",
    "weight": 2.5,
    "envelope": {"ttft_ms": 700},
    "in_flight_max": 7,
    "requests_per_minute_max": 7,
    "tokens_per_minute_max": 7,
    "tokens_per_day_max": 7,
    "tokens_per_month_max": 7,
    "cost_per_day_max": "7.50",
    "cost_per_month_max": "7.50",
    "queued_requests_max": 7,
    "queued_bytes_max": 7,
    "group": "research",
}
OF_TENANTS_ALONE = {"group", "envelope", "queued_requests_max", "queued_bytes_max"}
GROUP = {name: value for name, value in TENANT.items() if name not in OF_TENANTS_ALONE}
TIER = {
    "weight": 2.5,
    "envelope": {"tpot_ms": 70},
    "on_miss": "reject",
    "reserve_ratio": 0.5,
    "priority": 7,
    "preemptible": True,
}
BACKEND = {
    "url": "http://127.0.0.1:2",
    "name": "other",
    "pool": "other",
    "api_key": "secret",
    "requests_running_max": 7,
    "kv_tokens_max": 7,
    "step_tokens_max": 7,
    "prompt_step_tokens_max": 7,
    "step_time": {"base_ms": 10.0, "token_us": 100.0},
    "kind": "vllm",
    "scheduling_policy": "priority",
    "revision": "v2",
}
# Other ways to say the same: a file or a variable instead of the value.
BACKEND_SOURCES = {"api_key_file", "api_key_env", "step_time_file", "ca_file", "cert_file", "key_file"}


def tenant(**fields):
    section = sections.TenantSection(**fields)
    groups = {"research": sections.GroupSection(tier="research")}
    return policy_tenant("alice", section, groups), envelope_of(section), limits_of(section)


def group(**fields):
    section = sections.GroupSection(**fields)
    return policy_group("research", section), limits_of(section)


def tier(**fields):
    section = sections.TierSection(**fields)
    return policy_tier("gold", section), envelope_of(section)


def backend(**fields):
    return backend_spec(sections.BackendSection(**{"url": "http://127.0.0.1:1", **fields}))


def test_every_setting_is_tried_here():
    assert set(TENANT) == set(sections.TenantSection.model_fields)
    assert set(GROUP) == set(sections.GroupSection.model_fields)
    assert set(TIER) == set(sections.TierSection.model_fields)
    assert set(BACKEND) | BACKEND_SOURCES == set(sections.BackendSection.model_fields)


@pytest.mark.parametrize("field", TENANT)
def test_a_setting_of_a_tenant_reaches_the_scheduler_the_envelopes_or_the_budgets(field):
    assert tenant(**{field: TENANT[field]}) != tenant()


@pytest.mark.parametrize("field", GROUP)
def test_a_setting_of_a_group_reaches_the_scheduler_or_the_budgets(field):
    assert group(**{field: GROUP[field]}) != group()


@pytest.mark.parametrize("field", TIER)
def test_a_setting_of_a_tier_reaches_the_scheduler_or_the_envelopes(field):
    assert tier(**{field: TIER[field]}) != tier()


@pytest.mark.parametrize("field", BACKEND)
def test_a_setting_of_a_backend_reaches_what_asks_it(field):
    assert backend(**{field: BACKEND[field]}) != backend()
