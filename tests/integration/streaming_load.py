"""Clients that ask for one stream after the other while backends come and go, and what makes a stream whole."""

import asyncio
import json

import aiohttp
from gateway_rig import CHAT, Reply, call

STREAMS = 18  # at once
TOKENS = 60
OPTIONS = {"include_usage": True}
PATIENT = aiohttp.ClientTimeout(total=120)  # on a machine that others use too


class Load:
    """Clients that ask for one stream after the other, until they are told to stop."""

    def __init__(self, url, session):
        self._url, self._session, self._stopping = url, session, False
        self.replies = []
        self.open = set()
        """The numbers of the streams that are under way."""
        self._number = 0
        self._tasks = []

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(STREAMS)]
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _ask_on(self):
        while not self._stopping:
            body = call(stream=True, max_tokens=TOKENS, stream_options=OPTIONS)
            self._number += 1
            number = self._number
            self.open.add(number)
            async with self._session.post(self._url + CHAT, json=body, timeout=PATIENT) as response:
                self.replies.append(Reply(response.status, response.headers, await response.read()))
            self.open.discard(number)


def usage_of(reply):
    """Of a stream that is whole: it has one id, one role, one end, and as many tokens as were asked for."""
    assert reply.status == 200, reply
    *events, done = reply.events
    messages = [json.loads(event) for event in events]
    assert done == "[DONE]", messages[-1]
    assert len({each["id"] for each in messages}) == 1
    choices = [choice for each in messages for choice in each["choices"]]
    assert [each["finish_reason"] for each in choices if each["finish_reason"]] == ["length"]
    assert sum("role" in each["delta"] for each in choices) == 1
    assert sum(len(each["delta"].get("content", "").split()) for each in choices) == TOKENS
    usage = messages[-1]["usage"]
    assert usage["completion_tokens"] == TOKENS
    return usage


def due(replies):
    """What these streams cost, all of which are whole."""
    return sum(usage_of(reply)["prompt_tokens"] + 2 * TOKENS for reply in replies)
