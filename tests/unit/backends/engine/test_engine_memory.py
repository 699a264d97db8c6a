"""Memory rules against numbers worked out by hand."""

import pytest

from backends.engine.kv_memory import BlockMemory, OracleMemory, peak_tokens
from backends.engine.prefix_cache import PrefixCache
from backends.engine.sequence import EngineRequest, Sequence


def make_sequence(name: str = "a", *, prompt: int, output: int, emitted: int = 0, prefix=(), tenant="") -> Sequence:
    request = EngineRequest(name, prompt, output, prefix=prefix, tenant_id=tenant)
    sequence = Sequence(request, 0.0, 0)
    sequence.emitted = emitted
    sequence.present += emitted
    return sequence


def test_the_peak_is_where_a_sequence_ends_while_longer_ones_go_on():
    running = make_sequence("a", prompt=10, output=10, emitted=4)  # holds 14, 5 to come
    new = make_sequence("b", prompt=6, output=3)  # counted as holding 7, 2 to come
    assert peak_tokens([running]) == 14 + 1 * 5
    assert peak_tokens([running, new]) == 14 + 7 + 2 * 2
    assert peak_tokens([new, running]) == 25


def test_the_peak_may_be_at_the_longest_request_alone():
    longest = make_sequence("a", prompt=1, output=100)  # holds 2, 99 to come
    short = make_sequence("b", prompt=1, output=2)  # holds 2, 1 to come
    assert peak_tokens([longest, short]) == 101


@pytest.mark.parametrize(("kv_tokens_max", "admitted"), [(26, True), (25, False)])
def test_oracle_memory_admits_only_below_the_pool(kv_tokens_max, admitted):
    memory = OracleMemory(kv_tokens_max=kv_tokens_max, tenant_tokens=0)
    assert memory.admit(make_sequence("a", prompt=10, output=10, emitted=4)) == 0
    assert (memory.admit(make_sequence("b", prompt=6, output=3)) == 0) is admitted


@pytest.mark.parametrize(("other_tenant", "admitted"), [("x", True), ("y", False)])
def test_oracle_memory_gives_32_tokens_to_every_distinct_tenant(other_tenant, admitted):
    memory = OracleMemory(kv_tokens_max=26 + 32)
    assert memory.admit(make_sequence("a", prompt=10, output=10, emitted=4, tenant="x")) == 0
    assert (memory.admit(make_sequence("b", prompt=6, output=3, tenant=other_tenant)) == 0) is admitted


def test_oracle_memory_refuses_at_once_what_it_could_never_run():
    memory = OracleMemory(kv_tokens_max=100, tenant_tokens=32)
    assert memory.fits_alone(EngineRequest("a", 60, 7))
    assert not memory.fits_alone(EngineRequest("a", 60, 8))


def test_oracle_memory_reports_what_is_computed_and_forgets_what_left():
    memory = OracleMemory(kv_tokens_max=100, tenant_tokens=0)
    sequence = make_sequence(prompt=30, output=5)
    memory.admit(sequence)
    assert memory.grow(sequence, 30)
    sequence.computed = 30
    assert memory.used_ratio == 0.3
    memory.release(sequence)
    assert memory.used_ratio == 0


def test_block_memory_admits_a_prompt_whose_blocks_fit_and_takes_them_only_as_they_fill():
    memory = BlockMemory(blocks_max=4, block_tokens=4)
    assert memory.admit(make_sequence(prompt=17, output=1)) is None
    sequence = make_sequence(prompt=16, output=1)
    assert memory.admit(sequence) == 0
    assert memory.used_ratio == 0
    assert memory.grow(sequence, 5)
    assert memory.used_ratio == 0.5


def test_block_memory_grows_by_a_block_and_says_no_when_none_is_free():
    memory = BlockMemory(blocks_max=2, block_tokens=4)
    sequence = make_sequence(prompt=4, output=9)
    memory.admit(sequence)
    for computed, used in enumerate([0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1]):
        sequence.computed = computed
        assert memory.grow(sequence, 1)
        assert memory.used_ratio == used
    sequence.computed = 8
    assert not memory.grow(sequence, 1)
    assert memory.used_ratio == 1


def test_the_last_token_of_an_answer_needs_no_room():
    memory = BlockMemory(blocks_max=2, block_tokens=4)
    assert memory.fits_alone(EngineRequest("a", 4, 5))
    assert not memory.fits_alone(EngineRequest("a", 4, 6))


def run_prompt(memory: BlockMemory, name: str, prompt: int, prefix: tuple[int, ...]) -> tuple[Sequence, int]:
    sequence = make_sequence(name, prompt=prompt, output=1, prefix=prefix)
    cached = memory.admit(sequence)
    assert cached is not None
    sequence.computed = cached
    assert memory.grow(sequence, prompt - cached)
    sequence.computed = prompt
    return sequence, cached


def test_running_requests_share_the_blocks_of_their_common_prefix():
    memory = BlockMemory(blocks_max=8, block_tokens=4)
    _, first = run_prompt(memory, "a", 10, (1, 2))
    assert (first, memory.used_ratio) == (0, 3 / 8)
    _, second = run_prompt(memory, "b", 10, (1, 2))
    assert (second, memory.used_ratio) == (8, 4 / 8)


def test_a_fully_cached_prompt_still_computes_its_last_block():
    memory = BlockMemory(blocks_max=8, block_tokens=4)
    run_prompt(memory, "a", 8, (1, 2))
    _, cached = run_prompt(memory, "b", 8, (1, 2))
    assert cached == 4


def test_cached_blocks_count_as_free_until_they_are_needed():
    memory = BlockMemory(blocks_max=4, block_tokens=4)
    sequence, _ = run_prompt(memory, "a", 9, (1, 2))
    memory.release(sequence)
    assert memory.used_ratio == 0
    assert memory.cache.match((1, 2)) == 2
    run_prompt(memory, "b", 12, ())  # two free blocks and the one least recently left
    assert memory.cache.match((1, 2)) == 1
    assert memory.used_ratio == 3 / 4


def test_hits_that_no_sequence_uses_are_not_also_counted_as_room():
    memory = BlockMemory(blocks_max=3, block_tokens=4)
    sequence, _ = run_prompt(memory, "a", 9, (1, 2))
    memory.release(sequence)
    # 2 of its 4 blocks are hits; 1 free block is left, and the hits cannot be evicted for it.
    assert memory.admit(make_sequence("b", prompt=13, output=1, prefix=(1, 2))) is None
    assert memory.admit(make_sequence("c", prompt=12, output=1, prefix=(1, 2))) == 8


def test_the_block_left_longest_ago_is_evicted_first_and_the_end_of_a_prompt_before_its_beginning():
    cache = PrefixCache()
    for block in (1, 2, 3):
        assert cache.insert(block)
    cache.release([3])
    cache.release([1, 2])  # left in the order 2, 1
    cache.evict()
    assert (cache.match([3]), cache.match([1, 2]), cache.unused) == (0, 2, 2)
    cache.evict()
    assert cache.match([1, 2]) == 1


def test_a_block_in_use_is_never_evictable_and_a_hit_makes_it_young_again():
    cache = PrefixCache()
    cache.insert(1)
    cache.insert(2)
    cache.release([1])
    cache.release([2])
    cache.acquire([1])
    assert cache.unused == 1
    cache.release([1])
    cache.evict()
    assert (cache.match([1]), cache.match([2])) == (1, 0)


def test_a_twin_block_stays_private_and_both_are_given_back():
    memory = BlockMemory(blocks_max=4, block_tokens=4)
    first = make_sequence("a", prompt=5, output=1, prefix=(1,))
    second = make_sequence("b", prompt=5, output=1, prefix=(1,))
    memory.admit(first)
    memory.admit(second)  # before the first computed anything: no hit
    assert memory.grow(first, 5)
    assert memory.grow(second, 5)
    assert memory.used_ratio == 1
    memory.release(first)
    assert memory.used_ratio == 0.5
    memory.release(second)
    assert (memory.used_ratio, len(memory.cache)) == (0, 1)
