"""Gateways of one state have one secret: with another, none starts, because every key would answer 401."""

import asyncio
import logging

import pytest
import yaml
from founding import found
from gateway_rig import until
from redis_server import RedisServer
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config.state import StateSection
from gateway.identity.key_secret import KIND, FingerprintCheck, SecretMismatch
from gateway.store.assembly import make_store
from gateway.store.sqlite import SqliteStore

ONE, OTHER = b"the secret of the first gateway", b"the secret of another gateway"


@pytest.fixture
def server(tmp_path, monkeypatch):
    found(monkeypatch.setattr)
    with RedisServer(tmp_path) as made:
        yield made


async def check(store, secret):
    found = FingerprintCheck(store, secret)
    try:
        await found.start()
    finally:
        await found.stop()


def of_redis(server, tmp_path, name):
    return make_store(StateSection(file=tmp_path / f"{name}.db", redis={"url": server.url, "timeout_ms": 200}), None)


async def test_a_state_file_goes_with_one_secret(tmp_path):
    for secret, is_accepted in ((ONE, True), (ONE, True), (OTHER, False), (ONE, True)):
        store = SqliteStore(tmp_path / "fairlead.db")
        await store.open()
        try:
            if is_accepted:
                await check(store, secret)
            else:
                with pytest.raises(SecretMismatch, match="fairlead keys accept-secret"):
                    await check(store, secret)
            kept = [document.body for document in (await store.news(0)).documents if document.kind == KIND]
        finally:
            await store.close()
        assert len(kept) == 1
        assert ONE.decode() not in str(kept)


async def test_two_gateways_with_different_secrets_cannot_share_one_redis(server, tmp_path):
    first, second = of_redis(server, tmp_path, "first"), of_redis(server, tmp_path, "second")
    await first.open()
    await second.open()
    try:
        await check(first, ONE)
        with pytest.raises(SecretMismatch):
            await check(second, OTHER)
        await check(second, ONE)
    finally:
        await first.close()
        await second.close()


async def test_a_redis_that_comes_later_is_compared_with_then(server, tmp_path, caplog):
    first = of_redis(server, tmp_path, "first")
    await first.open()
    await check(first, ONE)
    await first.close()
    server.freeze()
    late = of_redis(server, tmp_path, "late")
    await late.open()
    waiting = FingerprintCheck(late, OTHER)
    try:
        await waiting.start()  # it serves meanwhile
        server.thaw()
        with caplog.at_level(logging.ERROR):
            await until(lambda: "another secret" in caplog.text)
    finally:
        await waiting.stop()
        await late.close()


def test_serve_refuses_another_secret_and_accept_secret_takes_it(tmp_path):
    config = {
        "access_log": {"enabled": False},
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"enabled": True, "port": 0},
        "backends": [{"url": "http://127.0.0.1:9"}],
        "auth": {"secret": OTHER.decode()},
    }
    file = tmp_path / "fairlead.yaml"
    file.write_text(yaml.safe_dump(config))

    async def begin():
        store = SqliteStore(tmp_path / "fairlead.db")
        await store.open()
        await check(store, ONE)
        await store.close()

    asyncio.run(begin())
    refused = CliRunner().invoke(app, ["serve", "--config", str(file)])
    assert refused.exit_code == 1
    assert "another secret" in refused.output
    accepted = CliRunner().invoke(app, ["keys", "accept-secret", "--config", str(file)])
    assert accepted.exit_code == 0, accepted.output

    async def again():
        store = SqliteStore(tmp_path / "fairlead.db")
        await store.open()
        await check(store, OTHER)
        await store.close()

    asyncio.run(again())
