"""The port of the metrics: Prometheus reads them without a key, and nothing else is to be had there."""

import asyncio
import contextlib

import pytest
from aiohttp import ClientConnectorError
from gateway_rig import PATIENCE_S, Wire, engine, gateway
from prometheus_client.parser import text_string_to_metric_families


@contextlib.asynccontextmanager
async def metrics_port(**config):
    async with engine() as server, gateway(server, metrics={"port": 0}, **config) as rig:
        yield rig, rig.gateway.metrics_url.removesuffix("/metrics")


async def test_prometheus_reads_all_metrics_without_a_key_or_an_admin_port():
    async with metrics_port() as (rig, url):
        assert rig.gateway.admin_url is None
        assert (await rig.post()).status == 200
        async with rig.session.get(url + "/metrics") as reply:
            assert (reply.status, reply.content_type) == (200, "text/plain")
            families = {family.name for family in text_string_to_metric_families(await reply.text())}
        assert {"fairlead_tenant_requests", "fairlead_backend_available", "process_open_fds"} <= families


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/livez", 200),
        ("HEAD", "/metrics", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/livez", 405),
        ("GET", "/", 404),
        ("GET", "/admin/v1/tenants", 404),
        ("GET", "/admin/v1/openapi.json", 404),
        ("GET", "/v1/models", 404),
        ("POST", "/v1/chat/completions", 404),
    ],
)
async def test_nothing_else_is_served_there(method, path, status):
    async with metrics_port() as (rig, url), rig.session.request(method, url + path, data=b"{}") as reply:
        assert reply.status == status


async def test_what_is_no_http_is_refused_and_not_repeated():
    async with metrics_port() as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        wire = Wire(reader, writer)
        wire.send(b"GET zebra-marker\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            told = await reader.read()
        wire.reset()
        assert told.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        assert b"zebra" not in told


async def test_it_ends_with_the_gateway_and_is_off_by_default():
    async with engine() as server, gateway(server) as rig:
        assert rig.gateway.metrics_url is None
    async with metrics_port() as (rig, url):
        await rig.gateway.stop()
        with pytest.raises(ClientConnectorError):
            await rig.session.get(url + "/livez")
