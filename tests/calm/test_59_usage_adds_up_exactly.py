"""10,000 calls, of which many are left by their clients or cut by their backend: what each tenant was served, its usage
and its budget are, to the token, what backends reported.

A call that is left before its backend has reported anything is charged by estimate: those are in
test_gateway_left_calls.py.
"""

import asyncio
import json
import random
from collections import Counter

from admin_rig import admin
from gateway_rig import CHAT, call, http, scripted, until, whole

CALLS = 10_000
CLIENTS = 16
SLOTS = 8  # so that half of the calls wait
TENANTS = [f"tenant-{number}" for number in range(5)]
PLENTY = 10**9
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ENDS = Counter({"whole": 20, "streamed": 50, "left": 20, "cut": 10})  # in a hundred


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class ReportingBackend:
    """Answers each call as its text says, and adds up the usage that it has reported for each tenant."""

    def __init__(self):
        self.prompt_tokens, self.output_tokens = Counter(), Counter()
        self.backend = None

    async def chat(self, reader, writer):
        tenant, end, prompt, output = json.loads(json.loads(self.backend.calls.pop().body)["messages"][0]["content"])
        if end == "whole":
            usage = self._reported(tenant, prompt, 0, output)
            message = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
            writer.write(whole({"choices": [message], "usage": usage}))
            return True
        writer.write(STREAM_HEAD)
        for tokens in range(1, output + 1):
            usage = self._reported(tenant, prompt, tokens - 1, tokens)
            delta = {"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": usage}
            writer.write(chunk(b"data: %b\n\n" % json.dumps(delta).encode()))
            await asyncio.sleep(0)
        if end == "streamed":
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return True
        if end == "left":
            await reader.read()  # until the gateway has left, too
        await writer.drain()
        return False

    def _reported(self, tenant, prompt, before, output):
        self.prompt_tokens[tenant] += prompt if before == 0 else 0
        self.output_tokens[tenant] += output - before
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


async def client(port, keys, calls, seen):
    """Makes calls one after the other, until there are no more."""
    reader = writer = None
    for tenant, end, prompt, output in calls:
        if writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        content = json.dumps([tenant, end, prompt, output])
        body = call(stream=end != "whole", messages=[{"role": "user", "content": content}])
        writer.write(http(body, f"Authorization: Bearer {keys[tenant]}", path=CHAT))
        head = await reader.readuntil(b"\r\n\r\n")
        seen[int(head.split(b" ", 2)[1])] += 1
        if end == "whole":
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        elif end == "left":
            for _ in range(output):
                await reader.readuntil(b"\n\n")
            writer.transport.abort()
            writer = None
        else:
            assert (b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")) == (end == "streamed")
            if b"connection: close" in head.lower():
                writer.transport.abort()
                writer = None
    if writer is not None:
        writer.transport.abort()


async def test_usage_is_what_backends_reported_to_the_token(tmp_path, figure):
    rng, reporting, seen = random.Random(59), ReportingBackend(), Counter()
    ends = list(ENDS.elements())
    planned = iter(
        [(rng.choice(TENANTS), rng.choice(ends), rng.randint(1, 900), rng.randint(1, 8)) for _ in range(CALLS)]
    )
    async with scripted(reporting.chat) as backend:
        reporting.backend = backend
        entry = {"name": "b0", "url": backend.url, "requests_running_max": SLOTS}
        async with admin(tmp_path, entry) as api:
            limits = {"tokens_per_day_max": PLENTY, "tokens_per_minute_max": PLENTY}
            keys = {}
            for tenant in TENANTS:
                assert (await api.post("/tenants", {"id": tenant, **limits})).status == 201
                keys[tenant] = await api.key_for(tenant)
            await asyncio.gather(*(client(api.rig.port, keys, planned, seen) for _ in range(CLIENTS)))
            await until(api.rig.idle)
            await api.rig.gateway._management.usage.flush()
            rows = {row["tenant"]: row for row in (await api.get("/usage")).json["items"]}
            budgets = {row["tenant"]: row for row in (await api.get("/state/budgets")).json["items"]}
            service = {tenant: api.rig.service(tenant) for tenant in TENANTS}
    reported = {tenant: (reporting.prompt_tokens[tenant], reporting.output_tokens[tenant]) for tenant in TENANTS}
    used = {tenant: (rows[tenant]["prompt_tokens"], rows[tenant]["output_tokens"]) for tenant in TENANTS}
    wrong = sum(abs(a - b) for tenant in TENANTS for a, b in zip(reported[tenant], used[tenant], strict=True))
    figure(
        59, f"tokens that differ, of {sum(map(sum, reported.values())):,} reported in 10,000 calls", wrong, target="0"
    )
    assert seen == {200: CALLS}
    assert sum(row["requests"] for row in rows.values()) == CALLS
    assert used == reported
    assert service == {tenant: prompt + 2 * output for tenant, (prompt, output) in reported.items()}
    assert {name: (row["used"], row["reserved"]) for name, row in budgets.items()} == {
        tenant: (sum(reported[tenant]), 0) for tenant in TENANTS
    }
