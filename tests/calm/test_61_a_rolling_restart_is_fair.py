"""Three replicas behind haproxy are restarted one after the other: no call fails, and two tenants that always wait are
served alike all the while, although one of them has three times as many clients.
"""

import asyncio
import json

import aiohttp
from gateway_rig import CHAT, FAST, call, engine
from redis_server import RedisServer
from rolling_rig import NEEDS_HAPROXY, Haproxy, Replica

REPLICAS = 3
SLOTS = 8
CLIENTS = {"alice": 24, "bob": 72}  # one of them had three quarters if the order were that of arrival
WINDOW_CALLS = 400  # in which eight slots are a fiftieth
ERROR_MAX = 0.05
SETTINGS = {
    "auth": {"secret": "0123456789abcdef", "trusted_proxies": ["127.0.0.1"]},
    "tenants": {name: {} for name in CLIENTS},
}

pytestmark = NEEDS_HAPROXY


class Clients:
    """Clients that call one after the other until they are stopped; `served` has the tenant of each call by its end."""

    def __init__(self, session, url):
        self._session, self._url, self._stopping = session, url, False
        self.served, self.failed = [], []

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._call_on(name)) for name in CLIENTS for _ in range(CLIENTS[name])]
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _call_on(self, tenant):
        data, headers = json.dumps(call(max_tokens=8)), {"Content-Type": "application/json", "X-Tenant-Id": tenant}
        while not self._stopping:
            async with self._session.post(self._url + CHAT, data=data, headers=headers) as answer:
                body = await answer.read()
                if answer.status == 200:
                    self.served.append(tenant)
                else:
                    self.failed.append((answer.status, body))


def errors(served):
    """How far alice's part is from a half in each window of so many calls, relative to a half."""
    windows = [
        served[start : start + WINDOW_CALLS] for start in range(0, len(served) - WINDOW_CALLS, WINDOW_CALLS // 4)
    ]
    return [abs(window.count("alice") / WINDOW_CALLS - 0.5) / 0.5 for window in windows]


async def test_no_call_fails_and_shares_hold_throughout(tmp_path, figure):
    connector = aiohttp.TCPConnector(limit=0)
    options = {**FAST, "speed": 0.2, "requests_running_max": SLOTS}  # so slow that both always wait
    with RedisServer(tmp_path) as redis:
        async with engine(**options) as backend, aiohttp.ClientSession(connector=connector) as session:
            entry = {"name": "b0", "url": backend.url, "requests_running_max": SLOTS}
            replicas = [
                Replica(tmp_path, f"r{number}", backend=entry, redis_url=redis.url, **SETTINGS)
                for number in range(REPLICAS)
            ]
            try:
                await asyncio.gather(*(replica.start() for replica in replicas))
                async with Haproxy(replicas).running(tmp_path) as haproxy:
                    await haproxy.until_serving(session, replicas, more=0)
                    async with Clients(session, haproxy.url) as clients:
                        await haproxy.until_serving(session, replicas)
                        began = len(clients.served)
                        for replica in replicas:
                            await replica.terminate()
                            await replica.start()
                            await haproxy.until_serving(session, [replica])
                        ended = len(clients.served)
                await asyncio.gather(*(replica.terminate() for replica in replicas))
            finally:
                await asyncio.gather(*(replica.kill() for replica in replicas))
    found = errors(clients.served[began:ended])
    figure(61, f"calls that failed, of {len(clients.served):,}", len(clients.failed), target="0")
    figure(61, f"largest error of a share in {len(found)} windows of 400 calls", max(found), target="<= 0.05")
    assert not clients.failed
    assert len(found) > REPLICAS
    assert max(found) <= ERROR_MAX
