"""A viewer of the live page's stream, which keeps the document as the patches say."""

import asyncio
import json

EVENTS = {"Accept": "text/event-stream"}


def merged(target, patch):
    """The algorithm of RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merged(target.get(name), value)
    return target


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


class Viewer:
    """Reads the stream of the live document, and keeps it as the patches say."""

    def __init__(self, response):
        self.response = response
        self.events, self.document = [], None
        self._data = b""

    async def read(self):
        """The next event, or comment."""
        while b"\n\n" not in self._data:
            piece = await self.response.content.readany()
            assert piece, "the stream has ended"
            self._data += piece
        block, self._data = self._data.split(b"\n\n", 1)
        fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
        self.events.append(fields)
        if fields.get("event") == "state":
            self.document = json.loads(fields["data"])
        elif fields.get("event") == "patch":
            self.document = merged(self.document, json.loads(fields["data"]))
        return fields

    async def until(self, condition, timeout_s=20.0):
        async with asyncio.timeout(timeout_s):
            while self.document is None or not condition(self.document):
                await self.read()
        return self.document
