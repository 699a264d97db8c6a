"""The index of what backends hold: matching, bounds, and agreement with a model that is written as it is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import prefix_index as prefixes
from policies.capacity.prefix_index import PrefixIndex
from policies.types import Request


def prompt(*blocks: int, block_tokens: float = 16.0) -> Request:
    return Request("r", "A", "m", 0.0, 1, 1, prefix=blocks, prefix_block_tokens=block_tokens)


def holding(**prompts: Request) -> PrefixIndex:
    index = PrefixIndex()
    for backend_id, request in prompts.items():
        index.inserted(request, backend_id)
    return index


def test_the_longest_match_names_every_backend_that_holds_it():
    index = holding(x=prompt(1, 2, 3), y=prompt(1, 2, 4), z=prompt(9))
    assert index.longest(prompt(1, 2, 5)) == (2, {"x", "y"})
    assert index.longest(prompt(1, 2, 3, 6)) == (3, {"x"})
    assert index.longest(prompt(7)) == (0, frozenset())
    assert index.longest(prompt()) == (0, frozenset())


def test_a_backend_matches_its_own_blocks_only():
    index = holding(x=prompt(1, 2, 3), y=prompt(1))
    assert [index.matched_blocks(prompt(1, 2, 3, 4), name) for name in ("x", "y", "unknown")] == [3, 1, 0]


def test_a_full_backend_gives_up_the_least_recently_used_leaf_first():
    index = PrefixIndex()
    index.resized("x", 4 * 16)
    index.inserted(prompt(1, 2, 3), "x")
    index.inserted(prompt(1, 7), "x")
    assert index.matched_blocks(prompt(1, 2, 3), "x") == 3
    index.inserted(prompt(1, 8), "x")
    assert index.matched_blocks(prompt(1, 2, 3), "x") == 2
    assert index.matched_blocks(prompt(1, 7), "x") == 2


def test_of_a_prompt_larger_than_the_pool_the_beginning_is_held():
    index = PrefixIndex()
    index.resized("x", 40)
    index.inserted(prompt(1, 2, 3), "x")
    assert index.matched_blocks(prompt(1, 2, 3), "x") == 2


def test_a_smaller_pool_forgets_at_once_and_an_unknown_one_has_a_default():
    index = holding(x=prompt(1, 2, 3))
    index.resized("x", 16)
    assert len(index) == 1
    index.resized("x", None)
    index.inserted(prompt(1, *range(10, prefixes.KV_TOKENS_UNKNOWN // 16 + 15)), "x")
    assert len(index) == prefixes.KV_TOKENS_UNKNOWN // 16


def test_blocks_of_no_tokens_are_bounded_by_their_number(monkeypatch):
    monkeypatch.setattr(prefixes, "BLOCKS_MAX", 3)
    index = holding(x=prompt(1, 2, 3, 4, 5, block_tokens=0.0))
    assert len(index) == 3


def test_a_backend_that_left_is_forgotten_and_its_successor_starts_empty():
    index = holding(x=prompt(1, 2), y=prompt(1))
    index.retain({"y"})
    assert index.longest(prompt(1, 2)) == (1, {"y"})
    index.inserted(prompt(5), "z")
    assert index.longest(prompt(1)) == (1, {"y"})
    index.retain(())
    assert len(index) == 0


def test_remembered_matches_are_bounded(monkeypatch):
    monkeypatch.setattr(prefixes, "MATCHES_MAX", 3)
    index = holding(x=prompt(1, 2))
    assert [index.matched_blocks(prompt(1, number), "x") for number in (2, 3, 4, 5, 2)] == [2, 1, 1, 1, 2]
    assert len(index._holders["x"].matches) <= 3


class Model:
    """Lists, in order of use, and nothing clever."""

    def __init__(self) -> None:
        self.blocks: dict[str, dict[int, float]] = {}
        self.tokens_max: dict[str, int] = {}

    def inserted(self, request: Request, backend_id: str) -> None:
        if request.prefix:
            held = self.blocks.setdefault(backend_id, {})
            for block in reversed(request.prefix):
                held[block] = held.pop(block, request.prefix_block_tokens)
            self.trim(backend_id)

    def resized(self, backend_id: str, kv_tokens_max: int) -> None:
        self.blocks.setdefault(backend_id, {})
        self.tokens_max[backend_id] = kv_tokens_max
        self.trim(backend_id)

    def retain(self, backend_ids: list[str]) -> None:
        for name in set(self.blocks) - set(backend_ids):
            del self.blocks[name]
            self.tokens_max.pop(name, None)

    def trim(self, backend_id: str) -> None:
        held = self.blocks[backend_id]
        while sum(held.values()) > self.tokens_max.get(backend_id, 10**9):
            del held[next(iter(held))]

    def matched_blocks(self, request: Request, backend_id: str) -> int:
        held = self.blocks.get(backend_id, ())
        return next((n for n, block in enumerate(request.prefix) if block not in held), len(request.prefix))

    def longest(self, request: Request) -> tuple[int, frozenset[str]]:
        matches = {name: self.matched_blocks(request, name) for name in self.blocks}
        best = max(matches.values(), default=0)
        return best, frozenset(name for name, matched in matches.items() if matched == best > 0)


# Paths through a tree of four children a node: a block's number names its whole path, as a chained hash does.
paths = st.lists(st.integers(0, 3), max_size=6).map(
    lambda turns: tuple(int("1" + "".join(map(str, turns[: depth + 1])), 4) for depth in range(len(turns)))
)
names = st.sampled_from("wxyz")
block_tokens = st.sampled_from((16.0, 16.0, 0.0, 24.5))
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("inserted"),
            st.builds(lambda path, size: prompt(*path, block_tokens=size), paths, block_tokens),
            names,
        ),
        st.tuples(st.just("resized"), names, st.integers(0, 200)),
        st.tuples(st.just("retain"), st.lists(names)),
    ),
    max_size=40,
)


@given(operations, st.lists(paths, min_size=3, max_size=3))
def test_it_agrees_with_the_model_whatever_happens(script, asked):
    index, model = PrefixIndex(), Model()
    for name, *arguments in script:
        getattr(index, name)(*arguments)
        getattr(model, name)(*arguments)
        for path in asked:
            request = prompt(*path)
            assert index.longest(request) == model.longest(request)
            for backend_id in "wxyz":
                assert index.matched_blocks(request, backend_id) == model.matched_blocks(request, backend_id)
        assert len(index) == len(set().union(*model.blocks.values()))
        for backend_id, held in model.blocks.items():
            holder = index._holders.get(backend_id)
            assert (holder.blocks(), holder.size) == (set(held), len(held))
            assert holder.tokens == pytest.approx(sum(held.values()))
            assert holder.tokens <= model.tokens_max.get(backend_id, prefixes.KV_TOKENS_UNKNOWN)


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("inserted"), st.lists(st.integers(1, 5), max_size=6).map(lambda path: prompt(*path)), names
            ),
            st.tuples(st.just("resized"), names, st.integers(0, 200)),
        ),
        max_size=40,
    )
)
def test_a_list_of_blocks_that_is_no_chain_of_hashes_does_no_harm(script):
    index, sizes = PrefixIndex(), dict[str, int]()
    for name, *arguments in script:
        getattr(index, name)(*arguments)
        if name == "resized":
            sizes[arguments[0]] = arguments[1]
        for backend_id, holder in index._holders.items():
            assert 16.0 * len(holder.blocks()) <= holder.tokens <= sizes.get(backend_id, prefixes.KV_TOKENS_UNKNOWN)
    for backend_id in index._holders:
        index.resized(backend_id, 0)
    assert len(index) == 0
