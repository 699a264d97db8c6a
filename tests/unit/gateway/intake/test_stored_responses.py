"""A response is its maker's, and the newest are remembered."""

from dataclasses import replace

import msgspec

from gateway.intake.stored_responses import ID_CHARS_MAX, StoredResponse, StoredResponses
from gateway.others import Others


def kept(owner, backend_id="b0"):
    return StoredResponse(owner, backend_id, "m")


def test_a_response_is_found_by_its_owner_alone():
    responses = StoredResponses(Others("g"))
    responses.made("r", kept("alice"))
    assert responses.find("r", "alice") == kept("alice")
    assert responses.find("r", "bob") is None
    assert responses.find("s", "alice") is None


def test_an_id_that_is_taken_does_not_change_hands():
    responses = StoredResponses(Others("g"))
    responses.made("r", kept("alice"))
    responses.made("r", kept("bob"))
    assert responses.find("r", "bob") is None


def test_the_one_that_was_not_asked_for_longest_is_forgotten_first():
    responses = StoredResponses(Others("g"), responses_max=2)
    responses.made("a", kept("alice"))
    responses.made("b", kept("alice"))
    responses.find("a", "alice")
    responses.made("c", kept("alice"))
    assert [bool(responses.find(each, "alice")) for each in "abc"] == [True, False, True]


def test_an_id_of_any_length_costs_no_memory():
    responses = StoredResponses(Others("g"))
    responses.made("x" * (ID_CHARS_MAX + 1), kept("alice"))
    assert responses.find("x" * (ID_CHARS_MAX + 1), "alice") is None


def test_its_maker_alone_may_make_more_of_it():
    responses = StoredResponses(Others("g"))
    responses.made("r", kept("alice"))
    for other in (kept("bob"), kept("alice", "b1")):
        responses.made("r", replace(other, context_tokens=7))
    assert responses.find("r", "alice").context_tokens == 0
    responses.made("r", replace(kept("alice"), context_tokens=9))
    assert responses.find("r", "alice").context_tokens == 9


class Told(Others):
    """A process among others, which notes what it tells them."""

    def __init__(self, *followers, is_leading):
        super().__init__("g")
        self._followers, self._is_leading, self.told = followers, is_leading, []

    @property
    def is_leading(self):
        return self._is_leading

    def followers(self):
        return self._followers

    def tell(self, service, body, name=None):
        self.told.append((service, name))


async def test_a_response_is_told_to_the_leader_which_tells_its_followers():
    leader, follower = Told("f1", "f2", is_leading=True), Told(is_leading=False)
    StoredResponses(leader).made("r", kept("alice"))
    assert leader.told == [("made", "f1"), ("made", "f2")]
    StoredResponses(follower).made("r", kept("alice"))
    assert follower.told == [("made", None)]
    for process, told in ((leader, 4), (follower, 1)):
        hearing = StoredResponses(process)
        await process.services["made"](msgspec.msgpack.encode(("s", kept("bob"))))
        assert hearing.find("s", "bob") == kept("bob")
        assert len(process.told) == told
