"""No field, header or target of a client decides where its call goes, and its credential goes nowhere."""

import asyncio

import pytest
from gateway_rig import CHAT, call, gateway, http, scripted, wire

KEY = "sk-client-canary"
FIELDS = ("api_base", "base_url", "api_key", "url", "host", "backend", "custom_llm_provider", "extra_headers", "proxy")
HEADERS = (
    "X-Backend", "X-Forwarded-Host", "X-Forwarded-Server", "Forwarded", "X-Original-URL", "X-Rewrite-URL", "X-Host",
    "X-Api-Base", "X-Upstream", "Host-Override", "X-Gateway-Destination-Endpoint", "Proxy-Authorization",
)  # fmt: skip


@pytest.mark.parametrize("way", ["fields", "headers", "Host", "absolute"])
async def test_the_call_reaches_the_configured_backend_with_its_own_credential_alone(way, figure):
    reached = []

    async def decoy_serve(reader, writer):
        reached.append(await reader.read(1000))
        writer.close()

    decoy = await asyncio.start_server(decoy_serve, "127.0.0.1", 0)
    there = f"127.0.0.1:{decoy.sockets[0].getsockname()[1]}"
    async with decoy, scripted() as backend:
        entry = {"name": "b0", "url": backend.url, "api_key": "sk-of-the-backend"}
        async with gateway(entry) as rig, wire(rig) as connection:
            body, headers, path = call(), [f"Authorization: Bearer {KEY}"], CHAT
            if way == "fields":
                body |= dict.fromkeys(FIELDS, f"http://{there}/v1")
            elif way == "headers":
                headers += [f"{name}: http://{there}/" for name in HEADERS]
            elif way == "absolute":
                path = f"http://{there}{CHAT}"
            data = http(body, *headers, path=path)
            connection.send(
                data.replace(b"Host: gateway", f"Host: {there}".encode()) if way in ("Host", "absolute") else data
            )
            assert (await connection.reply()).status == 200
            (asked,) = backend.calls
            assert f"host: {backend.url.removeprefix('http://')}" in (f"{n}: {v}" for n, v in asked.headers.items())
            assert asked.headers["authorization"] == "Bearer sk-of-the-backend"
            assert KEY not in str(asked.headers) + asked.body.decode()
            assert there not in str(asked.headers)
            figure(49, f"connections to the place that {way} name", len(reached), target="0")
            assert reached == []
