"""A backend that says Retry-After is left alone for so long, and nothing is charged for what it turned away."""

import asyncio

import pytest
from gateway_rig import gateway, scripted, whole

from tests.calm.rig import Watch

CHARGE = 9 + 2 * 3  # of the scripted answer
HOLD_S = 1.0


def turned_away(status, hold_s=int(HOLD_S)):
    data = whole({"error": {"message": "come back later"}}, status)
    data = data.replace(b"\r\n", b"\r\nretry-after: %d\r\n" % hold_s, 1)

    async def act(reader, writer):
        writer.write(data)
        return True

    return act


@pytest.mark.parametrize("status", [429, 503])
async def test_others_serve_while_it_is_left_alone(status, figure):
    async with scripted(None, turned_away(status)) as tired, scripted() as other, gateway(tired, other) as rig:
        assert {(await rig.post()).status for _ in range(4)} == {200}
        watch, calls = Watch(), 4
        assert len(tired.calls) == 1
        while len(tired.calls) == 1:
            assert watch.s < 10
            replies = await asyncio.gather(*(rig.post() for _ in range(4)))
            calls += len(replies)
            assert {reply.status for reply in replies} == {200}
            await asyncio.sleep(0.02)
        figure(20, f"time without a call after Retry-After, {status}", watch.s, "s", target=f">= {HOLD_S}")
        figure(
            20, f"charged relative to what was served, after a {status}", rig.service() / (calls * CHARGE), target="1"
        )
        assert watch.s > 0.8 * HOLD_S  # it began with the four calls before
        assert rig.service() == calls * CHARGE
        assert set(rig.gateway.backends.states().values()) == {"healthy"}


async def test_where_there_is_no_other_the_call_waits_for_it():
    async with scripted(None, turned_away(429)) as tired, gateway(tired) as rig:
        watch = Watch()
        assert (await rig.post()).status == 200
        assert watch.s > 0.9 * HOLD_S
        assert len(tired.calls) == 2
        assert rig.service() == CHARGE
