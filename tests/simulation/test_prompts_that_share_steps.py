"""Where prompts share steps, long ones fill them and a chat beside them is in time all the same."""

from functools import cache

import pytest
import shared_steps
from shared_steps import FAST, SLOW

from policies.limit import RoomOnly

play = cache(shared_steps.play)


@pytest.mark.parametrize(("machine", "throughput"), [(FAST, 0.92), (SLOW, 0.84)])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_a_chat_is_in_time_and_no_part_of_the_steps_waits_for_the_next_long_prompt(machine, throughput, noise):
    """0.84 and 0.78 where the next one is sent when the first token is here. The rest is what chats need free."""
    without, found = (play(machine, *limit, noise=noise) for limit in ((RoomOnly,), ()))
    assert without.inside < 0.05
    assert found.inside >= 0.95
    assert found.tokens_per_s >= throughput * without.tokens_per_s


@pytest.mark.parametrize("model_by", [0.85, 1.2])
def test_a_model_that_is_wrong_costs_neither(model_by):
    found = play(FAST, model_by=model_by)
    assert found.inside >= 0.95
    assert found.tokens_per_s >= 0.92 * play(FAST, RoomOnly, noise=0.0).tokens_per_s
