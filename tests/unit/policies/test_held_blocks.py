"""The blocks that running requests share: agreement with counts of single blocks."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from policies.capacity.held_blocks import HeldBlocks
from policies.reservation import Reservation

# Paths through a tree of three children a node: a block's number names its whole path, as a chained hash does.
paths = st.lists(st.integers(0, 2), max_size=7).map(
    lambda turns: tuple(int("1" + "".join(map(str, turns[: depth + 1])), 3) for depth in range(len(turns)))
)


class Model:
    """Each block with its holders, and its tier and tokens as of the first of them."""

    def __init__(self) -> None:
        self.holders, self.brought = Counter[int](), dict[int, tuple[str, float]]()

    def unheld(self, prefix: tuple[int, ...]) -> int:
        return sum(not self.holders[block] for block in prefix)

    def take(self, prefix: tuple[int, ...], tier_id: str, block_tokens: float) -> float:
        added = self.unheld(prefix)
        for block in prefix:
            self.holders[block] += 1
            self.brought.setdefault(block, (tier_id, block_tokens))
        return added * block_tokens

    def release(self, prefix: tuple[int, ...]) -> Counter[str]:
        freed = Counter[str]()
        for block in prefix:
            self.holders[block] -= 1
            if not self.holders[block]:
                tier_id, tokens = self.brought.pop(block)
                freed[tier_id] += tokens
        return freed


def holding(prefix: tuple[int, ...], tier_id: str, block_tokens: float) -> Reservation:
    return Reservation(tier_id, 1, 0, prefix=prefix, block_tokens=block_tokens)


reservations = st.lists(
    st.builds(holding, paths.filter(bool), st.sampled_from("ab"), st.sampled_from((16.0, 24.5))), max_size=30
)


@given(reservations, st.data())
def test_each_block_counts_once_and_for_the_tier_that_brought_it(coming, data):
    held, model, running = HeldBlocks(), Model(), []
    for each in coming:
        if running and data.draw(st.booleans()):
            ending = running.pop(data.draw(st.integers(0, len(running) - 1)))
            freed = Counter[str]()
            for tier_id, tokens in held.release(ending):
                freed[tier_id] += tokens
            assert freed == model.release(ending.prefix)
        assert held.unheld_tokens(each) == model.unheld(each.prefix) * each.block_tokens
        assert held.take(each) == model.take(each.prefix, each.tier_id, each.block_tokens)
        running.append(each)
    for each in running:
        assert dict(held.release(each)).keys() <= {"a", "b"}
    assert not held.runs, "nothing runs"


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), max_size=20), st.randoms())
def test_of_blocks_that_are_no_chain_of_hashes_what_is_taken_is_given_back(prompts, rng):
    held, running = HeldBlocks(), [holding(tuple(blocks), "a", 16.0) for blocks in prompts]
    tokens = sum(map(held.take, running))
    rng.shuffle(running)
    assert tokens == sum(freed for each in running for _, freed in held.release(each))
    assert not held.runs
