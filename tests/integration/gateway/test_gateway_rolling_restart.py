"""Three gateways behind haproxy are restarted one after the other under load, as in a cluster: no client notices."""

import asyncio
import json

import aiohttp
import pytest
from gateway_rig import CHAT, Reply, call, engine
from redis_server import RedisServer
from rolling_rig import NEEDS_HAPROXY, Haproxy, Replica

from gateway.store.base import UsageQuery
from gateway.store.redis_store import RedisStore

REPLICAS = 3
STREAMERS = 4
ASKERS = 3
TOKENS = {
    True: 25,
    False: 2,
}  # of a stream, half a second; of a whole answer, so that some call is always about to come

pytestmark = NEEDS_HAPROXY


class Load:
    """Clients, each with one call after the other, until they are stopped."""

    def __init__(self, session, url):
        self._session, self._url = session, url
        self._stopping = False
        self.replies = []  # (streamed, reply)

    async def __aenter__(self):
        kinds = [True] * STREAMERS + [False] * ASKERS
        self._tasks = [asyncio.create_task(self._call_on(stream)) for stream in kinds]
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _call_on(self, stream):
        body = json.dumps(call(stream=stream, max_tokens=TOKENS[stream]))
        headers = {"Content-Type": "application/json", "Authorization": "Bearer alice"}
        while not self._stopping:
            async with self._session.post(self._url + CHAT, data=body, headers=headers) as answer:
                self.replies.append((stream, Reply(answer.status, answer.headers, await answer.read())))


def assert_whole(streamed, reply):
    assert reply.status == 200, reply
    if not streamed:
        assert reply.json["usage"]["completion_tokens"] == TOKENS[False]
        return
    assert reply.events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in reply.events[:-1]]
    assert sum(bool(choice["delta"].get("content")) for choice in choices) == TOKENS[True]
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.long  # six processes; test_gateway_shutdown.py ends one at a time
async def test_no_call_fails_while_every_replica_is_restarted(tmp_path):
    with RedisServer(tmp_path) as redis:
        async with engine(speed=0.05) as backend, aiohttp.ClientSession() as session:
            replicas = [
                Replica(tmp_path, f"r{number}", backend={"name": "b0", "url": backend.url}, redis_url=redis.url)
                for number in range(REPLICAS)
            ]
            try:
                await asyncio.gather(*(replica.start() for replica in replicas))
                async with Haproxy(replicas).running(tmp_path) as haproxy:
                    await haproxy.until_serving(session, replicas, more=0)
                    async with Load(session, haproxy.url) as load:
                        await haproxy.until_serving(session, replicas)
                        for replica in replicas:
                            await replica.terminate()
                            await replica.start()
                            await haproxy.until_serving(session, [replica])
                await asyncio.gather(*(replica.terminate() for replica in replicas))
            finally:
                await asyncio.gather(*(replica.kill() for replica in replicas))
        for streamed, reply in load.replies:
            assert_whole(streamed, reply)
        # Six lives have told what was used in them, and each once.
        used_tokens = sum(TOKENS[streamed] for streamed, _ in load.replies)
        assert await shared_usage(redis.url) == (len(load.replies), used_tokens)


async def shared_usage(redis_url):
    shared = RedisStore(redis_url)
    rows = await shared.usage(UsageQuery("2000-01-01", "2999-12-31"))
    await shared.close()
    return sum(row.totals.requests for row in rows), sum(row.totals.output_tokens for row in rows)
