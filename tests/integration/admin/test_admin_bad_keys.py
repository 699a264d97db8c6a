"""A client that tries keys learns nothing, costs little, and is told to wait."""

import asyncio
import contextlib
import gc
import time

import pytest
from admin_rig import admin
from gateway_rig import Reply, bearer, http, scripted, wire
from multidict import CIMultiDict

from gateway.config.key_file import new_key
from gateway.identity.auth import KEY_CHARS_MAX, Authenticator, Unauthorized
from gateway.identity.key_ring import KeyRing
from gateway.identity.throttle import ADDRESSES_MAX, FAILURES_BURST, FailureThrottle

TRIES_OVER_HTTP = 2_400
OBJECTS_MAX = 2_000  # fewer than one for each try
PIPELINED = 200
TIMES_MAX = 1.25  # slower or faster than an unknown key that another may look, in the median


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


def told(reply):
    """An answer without the name and the time that every answer has."""
    varying = {"x-request-id", "date"}
    return (
        reply.status,
        {name: value for name, value in reply.headers.items() if name.lower() not in varying},
        reply.body,
    )


@pytest.mark.parametrize("port", ["data", "admin"])
async def test_unknown_revoked_expired_and_malformed_keys_get_one_answer(api, port):
    made = [
        (await api.post("/keys", body)).json for body in ({"tenant": "declared"}, {"role": "admin"}) for _ in (1, 2)
    ]
    revoked, expired = made[:2] if port == "data" else made[2:]
    await api.patch(f"/keys/{revoked['id']}", {"revoked": True})
    await api.post(f"/keys/{expired['id']}/rotate", {"overlap_s": 0})
    keys = [new_key(), revoked["secret"], expired["secret"], "x", "x" * 600, "ey.a.b", "", "\xe9"]
    headers = [bearer(key) for key in keys]
    headers += [{"Authorization": f"Basic {new_key()}"}, {"Authorization": "x"}, {"x-api-key": new_key()}, {}]
    where = f"http://127.0.0.1:{api.rig.port}/v1/models" if port == "data" else f"{api.url}/admin/v1/tenants"
    replies = []
    for given in headers:
        async with api.session.get(where, headers=given) as response:
            replies.append(Reply(response.status, response.headers, await response.read()))
    assert [reply.status for reply in replies] == [401] * len(headers)
    assert all(told(reply) == told(replies[0]) for reply in replies)


async def test_a_data_key_at_the_admin_port_is_told_so_and_an_admin_key_at_the_data_port_is_unknown(api):
    reply = await api.get("/tenants", key=await api.key_for("declared"))
    assert reply.status == 403
    assert "data port" in reply.json["detail"]
    for key in (api.key, (await api.post("/keys", {"role": "viewer"})).json["secret"]):
        assert (await api.rig.get("/v1/models", headers=bearer(key))).status == 401


def test_looking_up_a_revoked_an_expired_a_malformed_and_an_unknown_key_takes_the_same_time():
    ring = KeyRing(b"0123456789abcdef")
    for number in range(1000):
        ring.put(f"k{number}", ring.hmac_hex(new_key()), number)
    kinds = {"unknown": [new_key() for _ in range(2000)], "revoked": [], "expired": []}
    for number in range(2000):
        key = new_key()
        kinds["revoked"].append(key)
        ring.put(f"r{number}", ring.hmac_hex(key), number)
        ring.drop(f"r{number}")
        key = new_key()
        kinds["expired"].append(key)
        ring.put(f"e{number}", ring.hmac_hex(key), number, expires_at_s=1.0)
    asked = {kind: [CIMultiDict(bearer(key)) for key in keys] for kind, keys in kinds.items()}
    asked["malformed"] = [CIMultiDict(bearer("x" * (KEY_CHARS_MAX + 1)))] * 2000
    keys = Authenticator(keys=ring)

    def median_s(headers):
        times = []
        for each in headers:
            started = time.perf_counter()
            with contextlib.suppress(Unauthorized):
                keys.identify(each)
                pytest.fail("a key is accepted")
            times.append(time.perf_counter() - started)
        return sorted(times)[len(times) // 2]

    for _ in range(5):  # a busy machine may spoil a round
        times_s = {kind: median_s(headers) for kind, headers in asked.items()}
        if all(1 / TIMES_MAX < each / times_s["unknown"] < TIMES_MAX for each in times_s.values()):
            return
    pytest.fail(f"they take different times: {times_s}")


async def test_an_address_that_fails_over_and_over_is_told_to_wait_and_a_right_key_from_there_is_served(api):
    key = await api.key_for("declared")
    for ask in (
        lambda key: api.rig.get("/v1/models", headers=bearer(key)),
        lambda key: api.get("/tenants", key=key),
    ):
        replies = [await ask(new_key()) for _ in range(int(FAILURES_BURST) + 3)]
        assert [reply.status for reply in replies[: int(FAILURES_BURST)]] == [401] * int(FAILURES_BURST)
        assert replies[-1].status == 429
        assert int(replies[-1].headers["Retry-After"]) >= 1
    assert (await api.rig.get("/v1/models", headers=bearer(key))).status == 200
    assert (await api.get("/tenants")).status == 200


def test_bad_keys_from_more_addresses_than_are_remembered_leave_no_more_memory_than_the_limit():
    ring, throttle = KeyRing(b"0123456789abcdef"), FailureThrottle()
    for number in range(ADDRESSES_MAX + 5_000):
        assert ring.find(f"fl-{number}") is None
        throttle.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", float(number))
    assert len(throttle._buckets._buckets) == ADDRESSES_MAX
    assert ring.find("fl-1") is None
    assert len(ring.known) == 0


async def test_thousands_of_bad_keys_leave_no_objects_no_tenant_and_no_series_behind(api):
    before = len((await api.get("/metrics")).body.splitlines())

    async def try_keys(count):
        async with wire(api.rig) as connection:
            for _ in range(0, count, PIPELINED):
                keys = [new_key() for _ in range(PIPELINED)]
                connection.send(
                    b"".join(http(b"", f"Authorization: Bearer {key}", path="/v1/models", method="GET") for key in keys)
                )
                for _ in keys:
                    assert (await connection.reply()).status in (401, 429)

    await try_keys(1_000)
    gc.collect()
    objects = len(gc.get_objects())
    await asyncio.gather(*(try_keys(TRIES_OVER_HTTP // 4) for _ in range(4)))
    gc.collect()
    assert len(gc.get_objects()) - objects < OBJECTS_MAX
    assert (await api.get("/state/tenants")).json["items"] == []
    after = (await api.get("/metrics")).body.decode().splitlines()
    assert len(after) - before < 60, [line for line in after if "unknown" in line or "401" in line][:20]
