"""A running gateway tells its webhook of budgets, once over restarts and over replicas that share a Redis."""

import asyncio
import json
import time
from random import Random

from admin_rig import admin, within
from gateway_rig import MODEL, PATIENCE_S, bearer, scripted
from redis_server import RedisServer
from webhook_receiver import SECRET, receiver

from gateway.budgets.accounts import BudgetLimits
from gateway.budgets.budgets import Budgets
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.notices.claims import NoticeClaims
from gateway.budgets.notices.sender import NoticeSender
from gateway.budgets.notices.thresholds import BudgetWatch
from gateway.budgets.notices.webhook import Webhook
from gateway.budgets.usage import UsageBook
from gateway.store.mirrored import MirroredStore
from gateway.store.redis_store import RedisStore
from gateway.store.sqlite import SqliteStore

PRICES = {MODEL: {"currency": "EUR", "periods": [{"prompt": 1_000_000, "output": 1_000_000}]}}
COST = "12.00"  # of one answer of a scripted backend
SETTLED_S = 1.5  # three looks


async def test_a_gateway_tells_of_a_budget_in_money_once_also_after_a_restart(tmp_path):
    secret = tmp_path / "webhook.secret"
    secret.write_bytes(SECRET)
    async with scripted() as backend, receiver() as hook:
        config = {
            "state": tmp_path / "state", "prices": PRICES,
            "budgets": {"thresholds": [50, 100], "webhook": {"url": hook.url, "secret_file": str(secret)}},
        }  # fmt: skip

        async def is_told():
            return bool(hook.events)

        async with admin(tmp_path, backend, **config) as api:
            await api.post("/tenants", {"id": "alice", "cost_per_month_max": 20})
            key = await api.key_for("alice")
            assert (await api.rig.post(headers=bearer(key))).status == 200
            await within(is_told, PATIENCE_S)

            async def is_counted():
                return 'fairlead_notices_total{outcome="delivered"} 1.0' in (await api.get("/metrics")).body.decode()

            await within(is_counted, PATIENCE_S)
            page = (await api.get("/metrics")).body.decode()
            assert 'fairlead_tenant_budget_used_ratio{period="month",tenant="alice",unit="cost"} 0.6' in page
            audit = (await api.get("/audit?kind=notices")).json["items"]
            assert {each["name"] for each in audit} == {"alice - cost month"}
        async with admin(tmp_path, backend, **config):
            await asyncio.sleep(SETTLED_S)
    ((id_, document),) = hook.events
    data = document["data"]
    assert id_.startswith("budget_")
    assert (data["used"], data["limit"], data["currency"], data["threshold_percent"]) == (COST, "20.00", "EUR", 50)
    assert SECRET.decode() not in json.dumps(document)


async def test_replicas_that_share_a_redis_tell_once(tmp_path):
    with RedisServer(tmp_path) as server:
        async with receiver() as hook:
            stores, senders = [], []
            for name in ("a", "b", "c"):
                store = MirroredStore(RedisStore(server.url, settle_s=0.05), SqliteStore(tmp_path / f"{name}.db"))
                await store.open()
                stores.append(store)
                book = UsageBook(store)
                budgets = Budgets(book, store, is_shared=True, prices=PriceBook())
                budgets.put(("alice", ""), BudgetLimits(day=10))
                book.used("alice", key="", model="m", prompt_tokens=10, cached_tokens=0, output_tokens=0)
                claims = NoticeClaims(store, replica=name, clock=time.time)
                webhook = Webhook(hook.url, [SECRET])
                sender = NoticeSender(webhook, claims, currency=lambda: None, clock=time.time, rng=Random(1))
                sender.offer(BudgetWatch(budgets.ledger, (50, 80, 100), book.today).look())
                senders.append(sender)
            deadline = time.monotonic() + PATIENCE_S
            while len(hook.events) < 3:
                assert time.monotonic() < deadline
                await asyncio.gather(*(each.send_due() for each in senders))
                await asyncio.sleep(0.05)
            for each in senders:
                for pending in each._pending.values():
                    pending.next_at_s = 0.0
                await each.send_due()
                await each.stop()
            for store in stores:
                await store.close()
    assert sorted(hook.thresholds()) == [("alice", 50), ("alice", 80), ("alice", 100)]
    assert hook.attempts == 3
