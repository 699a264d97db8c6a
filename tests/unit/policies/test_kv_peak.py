"""The fullest moment of a KV pool, against counting it out step by step."""

from hypothesis import given
from hypothesis import strategies as st

from policies.capacity.backend import BackendCapacity
from policies.capacity.kv_use.peak import PeakOverTime
from policies.reservation import Reservation
from policies.types import BackendLoad, Request

requests = st.tuples(
    st.integers(1, 50),  # prompt
    st.integers(1, 40),  # output that is expected
    st.integers(0, 39),  # of it, there already
    st.integers(1, 3),  # sequences
)


def reservation(prompt: int, output: int, produced: int = 0, sequences: int = 1) -> Reservation:
    """A request of `output` tokens per sequence, of which `produced` (fewer) are there."""
    return Reservation(
        "default",
        sequences,
        prompt + output * sequences,
        output_tokens=float(output * sequences),
        produced_tokens=min(produced, output - 1) * sequences,
    )


def held(member: Reservation, steps: int) -> float:
    """By one request after so many steps more; nothing when it has ended."""
    left = member.steps_left - steps
    return member.tokens - left * member.sequences if left >= 0 else 0.0


def counted_out(members: list[Reservation]) -> float:
    return max((sum(held(member, step) for member in members) for step in range(41)), default=0.0)


def peak_of(members: list[Reservation]) -> PeakOverTime:
    peak = PeakOverTime()
    for member in members:
        peak.add(member)
        if member.produced_tokens:
            peak.moved(member)
    return peak


@given(st.lists(requests, max_size=12), requests)
def test_the_peak_is_the_most_that_is_held_at_any_step(batch, late):
    members, newcomer = [reservation(*each) for each in batch], reservation(*late)
    peak = peak_of(members)
    assert peak.tokens_now() == sum(held(member, 0) for member in members)
    assert peak.tokens() == counted_out(members)
    assert peak.tokens_with(newcomer) == counted_out([*members, newcomer])


def test_it_is_the_formula_of_the_published_engine():
    """In order of what remains, longest first: max over k of (k * l_k + sum of the first k's tokens)."""
    members = [reservation(10, 10, 4), reservation(6, 3), reservation(20, 30, 5)]
    ranked = sorted(((m.steps_left, m.tokens - m.steps_left) for m in members), reverse=True)
    formula = max(k * left + sum(now for _, now in ranked[:k]) for k, (left, _) in enumerate(ranked, start=1))
    assert peak_of(members).tokens() == formula


@given(st.lists(requests, min_size=1, max_size=12), requests, st.integers(0, 20))
def test_while_all_step_together_the_sums_that_were_made_say_what_new_ones_would(batch, late, steps):
    members, newcomer = [reservation(*each) for each in batch], reservation(*late)
    peak = peak_of(members)
    peak.tokens()
    for step in range(min(steps, int(min(member.steps_left for member in members)) - 1)):
        for member in members:
            if not member.produced_tokens:
                peak.moved(member)
            member.produced_tokens += member.sequences
        assert peak.tokens_with(newcomer) == peak_of(members).tokens_with(newcomer), step


def test_a_first_token_moves_the_end_of_a_prompt_that_has_waited_until_then():
    running, waiting = reservation(10, 20, 5), reservation(10, 20)
    peak = peak_of([running, waiting])
    assert peak.tokens() == 30 + 25, "as the first ends: all of it, and prompt and 15 steps of the second"
    running.produced_tokens += 6  # the prompt of the second still waits
    waiting.produced_tokens += 1
    peak.moved(waiting)
    assert peak.tokens() == counted_out([running, waiting]) == 30 + 20


def test_what_has_outgrown_its_prediction_is_taken_to_stay():
    outgrown, running = reservation(10, 5), reservation(10, 20, 5)
    outgrown.produced_tokens, outgrown.tokens = 8, 18
    assert peak_of([outgrown, running]).tokens() == 18 + 30


@given(st.lists(requests, max_size=8), requests, st.sampled_from([1, 16, 32]), st.booleans())
def test_every_sequence_is_taken_to_hold_a_block_less_one_token_more_than_it_has(batch, late, block, outgrows):
    members, newcomer = [reservation(*each) for each in batch], reservation(*late)
    peak = peak_of(members)
    stays = reservation(10, 5, sequences=2)
    if outgrows:
        peak.add(stays)
        stays.produced_tokens = 12
    peak.measured(block)

    def most(running: list[Reservation]) -> float:
        """At each step: what all have by then, each in blocks wherever they end, and the one that stays."""
        by_step = (
            sum(held(each, step) + (block - 1) * each.sequences for each in running if each.steps_left >= step)
            for step in range(41)
        )
        return max(by_step, default=0.0) + (stays.tokens + (block - 1) * stays.sequences if outgrows else 0.0)

    assert peak.tokens() == most(members)
    assert peak.tokens_with(newcomer) == most([*members, newcomer])


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), requests),
        st.tuples(st.just("release"), st.integers(0, 5)),
        st.tuples(st.just("produce"), st.integers(0, 5), st.integers(1, 60)),
    ),
    max_size=30,
)


@given(steps, st.sampled_from([1, 16]), requests)
def test_whatever_happens_the_peak_is_at_most_the_sum_and_what_fits_by_the_sum_fits(script, block, late):
    load = BackendLoad("gpu", kv_tokens_max=400, kv_block_tokens=block)
    capacities = {rule: BackendCapacity(load, kv_rule=rule) for rule in ("sum", "peak")}
    taken: list[dict[str, Reservation]] = []
    newcomer = Request("r", "A", "m", 0.0, late[0], late[1] * late[3], choices=late[3])

    def of(rule: str, prompt: int, output: int, sequences: int) -> Reservation:
        request = Request("r", "A", "m", 0.0, prompt, output * sequences, choices=sequences)
        return capacities[rule].reservation(
            request, "default", prompt_tokens=prompt, output_tokens=float(output * sequences)
        )

    for operation in script:
        match operation:
            case ("take", (prompt, output, _, sequences)):
                taken.append({rule: of(rule, prompt, output, sequences) for rule in capacities})
                for rule, capacity in capacities.items():
                    capacity.take(taken[-1][rule])
            case ("release", number) if number < len(taken):
                gone = taken.pop(number)
                for rule, capacity in capacities.items():
                    capacity.release(gone[rule])
            case ("produce", number, count) if number < len(taken):
                for rule, capacity in capacities.items():
                    place = taken[number][rule]
                    place.produced_tokens += count
                    if place.produced_tokens > place.output_tokens:
                        capacity.resize(place, place.tokens + block)
        summed, peaked = capacities["sum"], capacities["peak"]
        assert peaked.tokens_held_max <= summed.tokens_held_max == summed.tokens
        if summed.fits(of("sum", newcomer.prompt_tokens, late[1], late[3]), reserve_only=False):
            assert peaked.fits(of("peak", newcomer.prompt_tokens, late[1], late[3]), reserve_only=False)


def test_a_request_that_ends_before_the_others_are_large_fits_by_the_peak_alone():
    load = BackendLoad("gpu", kv_tokens_max=1000)
    for rule, fits in (("sum", False), ("peak", True)):
        capacity = BackendCapacity(load, headroom_ratio_max=1.0, kv_rule=rule)
        long, short = (
            capacity.reservation(
                Request("r", "A", "m", 0.0, 100, output), "default", prompt_tokens=100, output_tokens=float(output)
            )
            for output in (800, 50)
        )
        capacity.take(long)
        assert capacity.fits(short, reserve_only=False) is fits
