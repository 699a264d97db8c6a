"""fairlead's token path alone: upstream, meter and relay behind aiohttp.web, without auth, queue or scheduler.

The difference to the whole gateway is what everything else costs.

python token_path.py PORT http://HOST:PORT
"""

import sys

import orjson
import uvloop
from aiohttp import web

from backends.meters.chunks import ChunkMeter
from backends.meters.events import StreamCall
from backends.meters.usage import openai_usage
from backends.upstream import Upstream
from gateway.forwarding.answers.relay import read_whole, relay_body, relay_stream
from gateway.forwarding.answers.unread_bytes import UnreadBytes
from policies.types import Usage

PORT, BACKEND = int(sys.argv[1]), sys.argv[2]
UPSTREAM = web.AppKey("upstream", Upstream)
BODY_BYTES_MAX = 1 << 26
HEADERS = {"content-type": "application/json", "accept": "application/json"}


class Account:
    """Where the usage of all streams goes: an instance, as writing to a class empties the interpreter's caches."""

    __slots__ = ("output_tokens",)

    def __init__(self) -> None:
        self.output_tokens = 0

    def charge(self, usage: Usage) -> float:
        """Hear of every token, as a scheduler would that has no prediction."""
        self.output_tokens += usage.output_tokens
        return usage.output_tokens + 1


ACCOUNT = Account()
UNREAD = UnreadBytes(BODY_BYTES_MAX)


async def relay(request: web.Request) -> web.StreamResponse:
    body = orjson.loads(await request.read())
    streamed = body.get("stream") is True
    usage_wanted = streamed and bool(body.get("stream_options", {}).get("include_usage"))
    if streamed:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    data = orjson.dumps(body)
    async with await request.app[UPSTREAM].open("POST", request.path_qs, HEADERS, data) as exchange:
        if not streamed:
            answer = await read_whole(exchange, BODY_BYTES_MAX, UNREAD, "all")
            exchange.release()
            usage = openai_usage(orjson.loads(answer.data))
            if usage is not None:
                ACCOUNT.charge(usage)
            return relay_body(exchange, answer, headers={}).response
        meter = ChunkMeter(StreamCall(keeps_usage=usage_wanted))
        result = await relay_stream(request, exchange, meter, ACCOUNT.charge, headers={})
        return result.response


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def upstream(app: web.Application):
    app[UPSTREAM] = Upstream(
        BACKEND, connect_timeout_s=5.0, idle_s_max=60.0, idle_connections_max=4096, silence_s_max=600.0
    )
    yield
    await app[UPSTREAM].aclose()


def main() -> None:
    uvloop.install()
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.cleanup_ctx.append(upstream)
    app.router.add_get("/health", health)
    app.router.add_post("/{path:.*}", relay)
    web.run_app(
        app, host="127.0.0.1", port=PORT, access_log=None, print=None, handler_cancellation=True, backlog=4096,
        keepalive_timeout=75,
    )  # fmt: skip


main()
