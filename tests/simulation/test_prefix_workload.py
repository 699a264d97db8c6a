"""Workloads whose prompts begin alike: as many requests, and as much in common, as they say."""

from collections import Counter
from random import Random

import pytest

from backends.engine.engine import BLOCK_TOKENS
from tests.simulation.prefix_workload import Beginnings, Tree, beginnings, tree


def tree_of(branch: int, height: int = 4) -> Tree:
    return Tree(branch=branch, height=height, root_tokens=160, thought_tokens=64, level_s=10.0)


@pytest.mark.parametrize(("branch", "requests"), [(4, 340), (2, 30)])
def test_a_tree_of_height_four_has_as_many_requests_as_the_paper_says(branch, requests):
    shape = tree_of(branch)
    arrivals = list(tree("A", shape, at_s=0.0, output_tokens=(10, 20), rng=Random(1)))
    assert len(arrivals) == shape.requests == requests


def test_a_node_of_a_tree_begins_with_its_parent_and_comes_a_level_later():
    arrivals = list(tree("A", tree_of(3, height=3), at_s=5.0, output_tokens=(1, 2), rng=Random(1)))
    prefixes = {arrival.prefix for arrival in arrivals}
    thought, root = 64 // BLOCK_TOKENS, 160 // BLOCK_TOKENS
    assert len(prefixes) == len(arrivals)
    assert [arrival.at_s for arrival in arrivals] == sorted(arrival.at_s for arrival in arrivals)
    for arrival in arrivals:
        depth = (len(arrival.prefix) - root) // thought
        assert arrival.prompt_tokens == len(arrival.prefix) * BLOCK_TOKENS
        assert 5.0 + 10.0 * (depth - 1) <= arrival.at_s <= 5.0 + 10.0 * depth
        assert depth == 1 or arrival.prefix[:-thought] in prefixes
    assert len({prefix[:root] for prefix in prefixes}) == 1


def test_beginnings_are_shared_by_many_and_ends_by_none():
    shape = Beginnings(count=3, tokens=320, end_tokens=(16, 48), output_tokens=(5, 9), rate_per_s=10.0)
    arrivals = list(beginnings("A", shape, duration_s=60.0, rng=Random(1)))
    blocks = 320 // BLOCK_TOKENS
    texts = Counter(arrival.prefix[:blocks] for arrival in arrivals)
    assert len(texts) == 3
    assert min(texts.values()) > 150
    ends = [block for arrival in arrivals for block in arrival.prefix[blocks:]]
    assert len(set(ends)) == len(ends)
    assert 500 < len(arrivals) < 700
    assert all(336 <= arrival.prompt_tokens <= 368 and 5 <= arrival.output_tokens <= 9 for arrival in arrivals)


def test_two_tenants_share_nothing_and_equal_seeds_give_equal_requests():
    shape = Beginnings(count=2, tokens=160, end_tokens=(1, 9), output_tokens=(5, 9), rate_per_s=1.0)
    rng = Random(1)
    one, other = (list(beginnings(name, shape, duration_s=60.0, rng=rng)) for name in "AB")
    assert not {block for arrival in one for block in arrival.prefix} & {b for arrival in other for b in arrival.prefix}
    assert one == list(beginnings("A", shape, duration_s=60.0, rng=Random(1)))
