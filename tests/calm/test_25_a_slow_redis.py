"""Redis answers 0.2 s late: no call is later for that."""

import pytest
from gateway_rig import bearer, call, engine
from redis_server import RedisServer, slow_proxy

from tests.calm.replicas import joined
from tests.calm.rig import Watch, own_s, percentile, undisturbed

CALLS = 400  # of a round
CHANGE_S_MAX = 0.002


@pytest.mark.alone
async def test_first_tokens_come_as_with_a_fast_one(tmp_path, figure):
    folders = [tmp_path / name for name in ("fast", "slow")]
    for folder in folders:
        folder.mkdir()
    with RedisServer(folders[0]) as one, RedisServer(folders[1]) as other:
        async with engine() as backend, slow_proxy(other.port, 0.1) as port:
            late_url = f"redis://127.0.0.1:{port}/0"
            async with (
                joined(folders[0], one.url, 1, backend, alice={}) as ([fast], fast_keys),
                joined(folders[1], late_url, 1, backend, alice={}) as ([slow], slow_keys),
            ):

                async def changes():
                    seconds = {"fast": [], "slow": []}
                    for _ in range(CALLS):
                        for name, rig, keys in (("fast", fast, fast_keys), ("slow", slow, slow_keys)):
                            watch = Watch(own_s)
                            reply = await rig.post(call(max_tokens=1, stream=True), headers=bearer(keys["alice"]))
                            seconds[name].append(watch.s)
                            assert reply.status == 200
                    return [
                        percentile(seconds["slow"], share) - percentile(seconds["fast"], share) for share in (0.5, 0.99)
                    ]

                change = await undisturbed(changes, lambda change: max(change) <= CHANGE_S_MAX)
    figure(25, "change of TTFT, p50, own time", 1e3 * change[0], "ms", target="<= 2")
    figure(25, "change of TTFT, p99, own time", 1e3 * change[1], "ms", target="<= 2")
    assert max(change) <= CHANGE_S_MAX
