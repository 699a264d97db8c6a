"""What a call leaves behind: nothing that only a garbage collection frees."""

import gc

import pytest
from gateway_rig import answer, call, gateway, http, scripted, stream, until, wire

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"one"},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("reply", "streams"), [(answer(), False), (stream(EVENT, b"data: [DONE]\n\n"), True)], ids=["whole", "streamed"]
)
async def test_a_call_that_has_ended_leaves_no_reference_cycle(reply, streams):
    """What it held is freed at once, and no collection has to look for it."""
    async with (
        scripted(reply) as backend,
        gateway(backend, health={"idle_s": 60, "busy_s": 60}) as rig,
        wire(rig) as it,
    ):

        async def ask(calls: int) -> None:
            for _ in range(calls):
                it.send(http(call(stream=streams)))
                assert (await it.reply()).status == 200
            await until(rig.idle)

        await ask(20)
        gc.collect()
        gc.disable()
        try:
            await ask(100)
            assert gc.collect() < 100, "of what 100 calls left"
        finally:
            gc.enable()
