"""Every token of an answer has a time by which it is due: arrival + TTFT + j * TPOT."""

from math import inf

import pytest

from policies.due_times import slack_s, urgency_at
from policies.slo.attainment import AttainmentCounts, met_targets
from policies.slo.timeliness import Timeliness
from policies.types import Attainment, Outcome, Request, SloEnvelope, Timing

ENVELOPE = SloEnvelope(ttft_s=0.5, tpot_s=0.05)


def a_request(envelope=ENVELOPE, *, choices=1, arrived_at=10.0, tenant_id="a"):
    return Request("r", tenant_id, "m", arrived_at, 5, 100, choices=choices, envelope=envelope)


def timed(*chunks, envelope=ENVELOPE, choices=1):
    """What is known of an answer whose chunks are (seconds since arrival, tokens by then)."""
    times = Timeliness(a_request(envelope, choices=choices))
    for seconds, tokens in chunks:
        times.passed(tokens, 10.0 + seconds)
    return times.timing()


def test_an_early_first_token_spoils_the_one_reading_and_not_the_other():
    """The example of 2.1: first token at 0.1 s, second at 0.55 s."""
    timing = timed((0.1, 1), (0.55, 2))
    assert timing.ttft_s == pytest.approx(0.1)
    assert timing.tpot_s == pytest.approx(0.45)
    assert timing.tpot_envelope_s == pytest.approx(0.05)
    assert timing.tokens_in_time == 2
    assert met_targets(ENVELOPE, timing) == (True, False, True)
    assert met_targets(ENVELOPE, timing).all


def test_readings_are_the_largest_over_all_tokens():
    timing = timed((0.5, 1), (0.6, 2), (0.61, 3), (0.9, 4), (0.91, 10))
    assert timing.tpot_s == pytest.approx(max(0.1 / 1, 0.11 / 2, 0.4 / 3, 0.41 / 4))
    assert timing.tpot_envelope_s == pytest.approx(timing.tpot_s)


def test_tokens_are_late_one_by_one():
    # due at 0.5, 0.55, 0.6, 0.65 ...: of the chunk at 0.63 tokens 1 and 2 are late, 3 and 4 are not
    timing = timed((0.5, 1), (0.63, 5))
    assert (timing.tokens, timing.tokens_in_time) == (5, 3)
    assert not met_targets(ENVELOPE, timing).all


def test_every_token_is_judged_as_by_the_definition_however_they_are_cut_into_chunks():
    times = [0.2, 0.5, 0.74, 0.75, 1.2, 1.2, 1.21, 1.3, 2.0, 2.0]
    cuts = [1, 3, 4, 8, 10]
    passed = [times[cut - 1] for cut in cuts for _ in range(cut - ([0, *cuts][cuts.index(cut)]))]
    timing = timed(*[(times[cut - 1], cut) for cut in cuts])
    due = [0.5 + 0.05 * j for j in range(10)]
    assert timing.tokens_in_time == sum(at <= when + 1e-9 for at, when in zip(passed, due, strict=True))
    assert timing.tpot_s == pytest.approx(max((at - passed[0]) / j for j, at in enumerate(passed) if j))
    assert timing.tpot_envelope_s == pytest.approx(max((at - 0.5) / j for j, at in enumerate(passed) if j))


def test_a_chunk_that_ends_on_its_deadline_is_in_time():
    timing = timed(*[(0.5 + 0.05 * j, j + 1) for j in range(200)])
    assert timing.tokens_in_time == 200
    assert met_targets(ENVELOPE, timing).all


def test_without_a_ttft_target_the_envelope_begins_with_the_first_token():
    envelope = SloEnvelope(tpot_s=0.05)
    timing = timed((7.0, 1), (7.05, 2), (7.2, 3), envelope=envelope)
    assert timing.tokens_in_time == 2
    assert met_targets(envelope, timing) == (True, False, False)


def test_without_a_tpot_target_only_the_first_token_has_a_deadline():
    envelope = SloEnvelope(ttft_s=0.5)
    assert timed((0.6, 1), (9.0, 4), envelope=envelope).tokens_in_time == 3
    assert timed((0.5, 1), (9.0, 4), envelope=envelope).tokens_in_time == 4
    assert met_targets(envelope, timed((0.6, 4), envelope=envelope)) == (False, True, True)


def test_choices_are_produced_side_by_side():
    timing = timed((0.5, 2), (0.55, 4), (0.6, 6), choices=2)
    assert timing.tokens_in_time == 6
    assert timing.tpot_s == pytest.approx(0.05)


def test_what_is_told_twice_or_falls_changes_nothing():
    assert timed((0.1, 2), (9.0, 2), (9.0, 1)) == timed((0.1, 2))


@pytest.mark.parametrize(("seconds", "in_time"), [(0.5, 10), (0.95, 10), (0.96, 0)])
def test_an_answer_that_comes_whole_is_judged_by_when_its_last_token_is_due(seconds, in_time):
    times = Timeliness(a_request())
    times.whole(10, 10.0 + seconds)
    timing = times.timing()
    assert (timing.ttft_s, timing.tokens_in_time) == (None, in_time)
    assert met_targets(ENVELOPE, timing).all is (in_time == 10)


def test_slack_is_the_time_until_the_next_token_is_due():
    request = a_request()
    assert slack_s(request, output_tokens=0, first_token_at=None, now=10.2) == pytest.approx(0.3)
    assert slack_s(request, output_tokens=4, first_token_at=10.1, now=10.2) == pytest.approx(0.5)
    assert slack_s(request, output_tokens=0, first_token_at=None, now=11.0) == pytest.approx(-0.5)


def test_slack_is_endless_where_nothing_is_due():
    assert slack_s(a_request(None), output_tokens=0, first_token_at=None, now=99.0) == inf
    assert slack_s(a_request(SloEnvelope(tpot_s=0.1)), output_tokens=0, first_token_at=None, now=99.0) == inf
    assert slack_s(a_request(SloEnvelope(ttft_s=0.1)), output_tokens=3, first_token_at=11.0, now=99.0) == inf
    paced = a_request(SloEnvelope(tpot_s=0.1))
    assert slack_s(paced, output_tokens=3, first_token_at=11.0, now=11.0) == pytest.approx(0.3)


def test_what_has_no_deadline_is_ordered_as_if_it_had_a_minute():
    assert urgency_at(a_request()) == 10.5
    assert urgency_at(a_request(None)) == urgency_at(a_request(SloEnvelope(tpot_s=0.1))) == 70.0


IN_TIME = Timing(0.1, 0.01, -0.2, 10, 10)
LATE = Timing(0.9, 0.01, 0.06, 10, 4)


def test_attainment_counts_requests_and_tokens_per_tenant_and_tier():
    book = AttainmentCounts()
    for tenant_id, timing in (("a", IN_TIME), ("a", LATE), ("b", IN_TIME)):
        book.ended(a_request(tenant_id=tenant_id), timing, Outcome.COMPLETED, tier_id="gold")
    book.refused(a_request(tenant_id="b"), tier_id="gold")
    assert book.of_tenant("a") == Attainment(2, 1, 2, 1, 1, 20, 14, 0)
    assert book.of_tenant("b") == Attainment(1, 1, 1, 1, 1, 10, 10, 1)
    assert book.of_tier("gold") == Attainment(3, 2, 3, 2, 2, 30, 24, 1)
    book.forget("a")
    assert book.of_tenant("a") == Attainment()
    assert book.of_tier("gold").requests == 3


def test_a_failure_before_the_first_token_kept_nothing_and_a_client_that_left_then_says_nothing():
    book = AttainmentCounts()
    book.ended(a_request(), None, Outcome.BACKEND_FAILED, tier_id="gold")
    book.ended(a_request(), None, Outcome.CLIENT_DISCONNECTED, tier_id="gold")
    book.ended(a_request(), Timing(None, None, None, 0, 0), Outcome.COMPLETED, tier_id="gold")
    assert book.of_tenant("a") == Attainment(requests=1)


@pytest.mark.parametrize(
    "envelope", [ENVELOPE, SloEnvelope(0.5, None), SloEnvelope(None, 0.05), SloEnvelope(None, None)]
)
@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("tokens", [0, 1, 2, 7])
def test_the_slack_of_an_answer_that_passes_is_that_of_its_request(envelope, choices, tokens):
    request = a_request(envelope, choices=choices)
    times = Timeliness(request)
    if tokens:
        times.passed(1, 10.2)
        times.passed(tokens, 10.3)
    first_at = 10.2 if tokens else None
    expected = slack_s(request, output_tokens=tokens, first_token_at=first_at, now=10.7)
    assert times.slack_s(10.7) == pytest.approx(expected)
