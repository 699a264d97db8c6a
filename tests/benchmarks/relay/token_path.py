"""fairlead's token path alone: server, upstream, meter and relay, without auth, queue or scheduler.

The difference to the whole gateway is what everything else costs.

python token_path.py PORT http://HOST:PORT
"""

import asyncio
import sys

import orjson
import uvloop

from backends.meters.chunks import ChunkMeter
from backends.meters.events import StreamCall
from backends.meters.usage import openai_usage
from backends.upstream import ConnectionLimits, Upstream
from gateway.api.endpoints import CHAT, HEALTH
from gateway.forwarding.answers.relay import StreamReports, read_whole, relay_body, relay_stream
from gateway.forwarding.answers.unread_bytes import UnreadBytes
from gateway.http.cors import Cors
from gateway.http.request import HttpRequest
from gateway.http.request_ids import RequestIds
from gateway.http.response import EventStream, Response
from gateway.http.server import GatewayServer
from gateway.ports.listener import Listener
from policies.types import Usage

PORT, BACKEND = int(sys.argv[1]), sys.argv[2]
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


class Relay:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def answer(self, request: HttpRequest) -> Response | EventStream:
        data = request.body_at_hand()
        body = orjson.loads(await request.read_body(lambda _bytes: None) if data is None else data)
        streamed = body.get("stream") is True
        usage_wanted = streamed and bool(body.get("stream_options", {}).get("include_usage"))
        if streamed:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        async with await self._upstream.open("POST", request.target, HEADERS, orjson.dumps(body)) as exchange:
            if not streamed:
                answer, unread = await read_whole(exchange, BODY_BYTES_MAX, UNREAD, "all")
                exchange.release()
                usage = openai_usage(orjson.loads(answer))
                if usage is not None:
                    ACCOUNT.charge(usage)
                return relay_body(exchange, answer, unread, headers={})
            meter = ChunkMeter(StreamCall(keeps_usage=usage_wanted))
            result = await relay_stream(request, exchange, meter, StreamReports(ACCOUNT.charge), headers={})
            return result.response


async def health(_request: HttpRequest) -> Response:
    return Response(200)


async def main() -> None:
    upstream = Upstream(
        BACKEND,
        ConnectionLimits(connect_timeout_s=5.0, idle_s_max=60.0, idle_connections_max=4096, silence_s_max=600.0),
    )
    server = GatewayServer(
        {CHAT: Relay(upstream).answer, HEALTH: health},
        names=RequestIds(),
        cors=Cors(()),
        body_bytes_max=BODY_BYTES_MAX,
    )
    await Listener(server, "127.0.0.1", PORT, None, stop_s_max=1.0).start()
    await asyncio.Event().wait()


uvloop.run(main())
