"""Where the text of a continuation begins, asked of a backend that has each byte as a token."""

from array import array

import pytest
from small_vllm import SmallVllm

from backends.upstream import UpstreamProtocolError
from gateway.continuation.seam import INCOMPLETE_TOKENS_MAX, Generated, Seam, Shown, find_seam

PROMPT = array("I", list(b"a prompt"))


@pytest.mark.parametrize(
    ("output", "seam"),
    [
        (b"xy", Seam()),
        (b"x\xc3", Seam(skip=len("a promptx"), cut_chars=1, cut_tokens=1)),
        (b"x\xf0\x9f", Seam(skip=len("a promptx"), cut_chars=1, cut_tokens=2)),
        (b"x\xe2\xe2\x82", Seam(skip=len("a promptx"), cut_chars=2, cut_tokens=2)),
    ],
)
async def test_a_seam_inside_a_character_tells_how_many_of_its_tokens_are_before(output, seam):
    tokens = Generated("tiny", PROMPT, array("I", list(output)), {})
    assert await find_seam(SmallVllm().ask, tokens, Shown("x", 0), chars=0) == seam


async def test_more_tokens_that_are_no_text_than_are_looked_at_end_the_stream():
    def no_text(count):
        return Generated("tiny", PROMPT, array("I", [0x80] * count), {})

    assert (await find_seam(SmallVllm().ask, no_text(INCOMPLETE_TOKENS_MAX), Shown("", 0), chars=0)).cut_tokens
    with pytest.raises(UpstreamProtocolError):
        await find_seam(SmallVllm().ask, no_text(INCOMPLETE_TOKENS_MAX + 1), Shown("", 0), chars=0)
