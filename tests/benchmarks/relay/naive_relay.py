"""The reference for "simple": aiohttp.web in front, aiohttp's client behind, bytes passed on untouched.

python naive_relay.py PORT http://HOST:PORT
"""

import sys

import aiohttp
import orjson
import uvloop
from aiohttp import web

PORT, BACKEND = int(sys.argv[1]), sys.argv[2]
NOT_FORWARDED = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade"}
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    orjson.loads(body)  # every gateway looks at "model"
    headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED}
    async with request.app[SESSION].post(BACKEND + request.path_qs, data=body, headers=headers) as upstream:
        kept = {"content-type": upstream.headers.get("content-type", "")}
        if "text/event-stream" not in kept["content-type"]:
            return web.Response(status=upstream.status, body=await upstream.read(), headers=kept)
        response = web.StreamResponse(status=upstream.status, headers=kept)
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def session(app: web.Application):
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    app[SESSION] = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
    yield
    await app[SESSION].close()


def main() -> None:
    uvloop.install()
    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(session)
    app.router.add_get("/health", health)
    app.router.add_post("/{path:.*}", relay)
    web.run_app(
        app, host="127.0.0.1", port=PORT, access_log=None, print=None, handler_cancellation=True, backlog=4096,
        keepalive_timeout=75,
    )  # fmt: skip


main()
