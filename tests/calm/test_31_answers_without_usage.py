"""A backend reports no usage: what it streamed is charged by its pieces, within a tenth of the truth, and flagged.

The gateway knows how long tokens are from prompts of the same tenant and model that were counted. Without any it takes
four bytes, which is too many tokens for most prose: that figure is shown and not asserted.
"""

import json

import pytest
from gateway_rig import call, gateway, scripted, stream

ERROR_MAX = 0.1
TAUGHT = 8  # calls with usage
PROMPT = " word" * 80  # of five bytes a token


def piece(text, **fields):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice], **fields})}\n\n".encode()


def asked():
    return call(stream=True, max_tokens=1_000, messages=[{"role": "user", "content": PROMPT}])


async def charged(tmp_path, pieces, taught):
    """What the access log says of a stream of these pieces, after so many calls that were counted."""
    log = tmp_path / "access.log"
    usage = {"prompt_tokens": 80, "completion_tokens": 1, "total_tokens": 81}
    counted = stream(piece(" word"), piece("", usage=usage), b"data: [DONE]\n\n")
    uncounted = stream(*[piece(text) for text in pieces], b"data: [DONE]\n\n")
    access_log = {"enabled": True, "path": str(log)}
    async with scripted(uncounted, *[counted] * taught) as backend, gateway(backend, access_log=access_log) as rig:
        for _ in range(taught):
            assert (await rig.post(asked())).status == 200
        before = rig.service()
        assert (await rig.post(asked())).status == 200
        service = rig.service() - before
    record = json.loads(log.read_text().splitlines()[-1])
    assert record["estimated"] is True
    assert service == record["prompt_tokens"] + 2 * record["output_tokens"]
    return record


@pytest.mark.parametrize("tokens", [1, 20, 200])
@pytest.mark.parametrize("in_piece", [1, 4])
async def test_a_stream_is_charged_by_its_pieces_and_flagged(tmp_path, tokens, in_piece, figure):
    pieces = [" word" * in_piece for _ in range(tokens)]
    record = await charged(tmp_path, pieces, TAUGHT)
    output = record["output_tokens"] / (tokens * in_piece)
    figure(
        31, f"output charged relative to the true output, {tokens} pieces of {in_piece}", output, target="within 10 %"
    )
    figure(
        31, f"prompt charged relative to the true prompt, {tokens} pieces of {in_piece}", record["prompt_tokens"] / 80
    )
    assert abs(output - 1) <= ERROR_MAX
    assert abs(record["prompt_tokens"] / 80 - 1) <= ERROR_MAX


async def test_where_nothing_was_ever_counted_a_token_is_four_bytes(tmp_path, figure):
    record = await charged(tmp_path, [" word"] * 200, 0)
    figure(
        31,
        "charged relative to the true output, tokens of 5 bytes, nothing ever counted",
        record["output_tokens"] / 200,
    )
    assert record["output_tokens"] == 250
