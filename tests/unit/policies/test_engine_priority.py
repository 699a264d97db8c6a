"""The engine's own order: less is sooner, tiers before deadlines."""

import json
from itertools import pairwise

from policies.slo.engine_priority import PRIORITY_MAX, engine_priority
from policies.types import SloEnvelope

NOW = 1_800_000_000.0
FAR = 4_000_000_000.0  # the year 2096


def priority(ttft_s=None, *, tier=0, arrived_at=NOW):
    envelope = None if ttft_s is None else SloEnvelope(ttft_s=ttft_s)
    return engine_priority(tier_priority=tier, envelope=envelope, arrived_at=arrived_at)


def test_inside_a_tier_the_nearer_deadline_is_sooner():
    in_order = [priority(0.2), priority(0.1, arrived_at=NOW + 0.15), priority(1.0), priority(5.0), priority(None)]
    assert all(sooner < later for sooner, later in pairwise(in_order))


def test_a_more_important_tier_is_sooner_whatever_is_due():
    assert priority(3600, tier=1, arrived_at=FAR) < priority(0.001, tier=0, arrived_at=0.0)
    assert priority(0.001, tier=-1, arrived_at=0.0) > priority(3600, tier=0, arrived_at=FAR)


def test_every_number_is_a_whole_one_that_survives_json_and_64_bits():
    for tier in (-PRIORITY_MAX, 0, PRIORITY_MAX):
        number = priority(0.5, tier=tier, arrived_at=FAR)
        assert isinstance(number, int)
        assert abs(number) < 1 << 53
        assert json.loads(json.dumps(float(number))) == number
