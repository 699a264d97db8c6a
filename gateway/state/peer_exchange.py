"""Peer exchange: replicas that share limits publish their state to each other a few times a second.

Each publishes what it has admitted and claims of limits per minute (policies/admission/shared_limits.py), what budgets
have spent, and its load at the backends. No request waits for the exchange: decisions use the messages received so far.

A replica without a message for GONE_S counts as gone; what it admitted counts until it is older than the minute. While
the exchange is unavailable, each replica limits itself to a fair share: limits over the last known number of replicas.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from gateway.scheduling.shared_limits import Minutes, SharedLimits
from gateway.state.budgets import Budgets, Spent
from gateway.store.base import StoreUnavailable
from gateway.store.periodic import Periodic
from gateway.store.redis_exchange import ExchangeResult
from policies.types import ALONE, NO_PEERS, PeerUse, RateWindowReport, ReplicaShare

EXCHANGE_S = 0.2
GONE_S = 2.0
AWAY_S = 1.0  # without a successful exchange
MINUTE_S = 60.0
TIME_RATIO_MAX = 0.1  # of the event loop's time, for the exchange
PAUSE_S_MAX = 0.8
TRIES_MAX = 5
NAME_BYTES = 9

log = logging.getLogger(__name__)


class PeerExchange(Protocol):
    """Transports messages between replicas."""

    async def receive_from(self, name: str, said: int) -> ExchangeResult: ...
    async def publish(self, name: str, word: bytes, said: int) -> ExchangeResult: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class _Peer:
    """The latest message of another replica."""

    heard_at: float  # when it was published, by this gateway's clock
    writer: str = ""
    leaves: bool = False
    minutes: Minutes = field(default_factory=dict)
    spent: Spent = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)
    backends: Mapping[str, PeerUse] = field(default_factory=dict)

    def is_there(self, now: float) -> bool:
        return not self.leaves and now - self.heard_at < GONE_S


class Replicas:
    """The peer exchange as seen by one gateway. Call `start` on the loop that serves, and `stop`."""

    def __init__(
        self,
        peer_exchange: PeerExchange,
        *,
        limits: SharedLimits,
        budgets: Budgets,
        writer: str,
        on_share: Callable[[ReplicaShare, Mapping[str, PeerUse]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_share` is called with this gateway's share of the limits and the other replicas' load at the backends,
        whenever either changes.
        """
        self._peer_exchange = peer_exchange
        self._limits = limits
        self._budgets = budgets
        self._writer = writer
        self._on_share = on_share
        self._clock = clock
        self.name = secrets.token_urlsafe(NAME_BYTES)
        self._others: dict[str, _Peer] = {}
        self._next_at = clock()
        self._busy_s = 0.0  # seconds of CPU work in the latest exchange
        self._said = 0  # messages published by all replicas, as far as received
        self._met_at = clock()
        self._told: tuple[ReplicaShare, Mapping[str, PeerUse]] = (ALONE, {})
        self._meets = Periodic(self._exchange, EXCHANGE_S, "meet the other gateways")
        self.count = 1
        """Gateways that share the limits, as last known."""
        self.is_cut_off = False

    async def start(self) -> None:
        self._limits.shared_by(1, is_cut_off=False)
        await self._exchange()
        self._meets.start()

    async def stop(self) -> None:
        """Publish that this gateway leaves, so that the others need not wait for GONE_S. Skipped while the exchange is
        unavailable, so that shutdown does not wait for a server.
        """
        await self._meets.stop()
        if not self.is_cut_off:
            try:
                await self._publish(leaves=True)
            except StoreUnavailable as error:
                log.debug("the other gateways are not told that this one leaves: %s", error)
        await self._peer_exchange.close()

    # -- exchange ------------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        if self._clock() < self._next_at:
            return
        self._busy_s = 0.0
        try:
            is_said, why = await self._publish(leaves=False), "too many say something at once"
        except StoreUnavailable as error:
            is_said, why = False, str(error)
        if is_said:
            now = self._clock()
            if self.is_cut_off:
                log.info("the other gateways are met again")
                for other in self._others.values():  # they could not publish either
                    other.heard_at = min(now, other.heard_at + now - self._met_at)
            self.is_cut_off, self._met_at = False, now
            self._look()
        elif self._clock() - self._met_at > AWAY_S and not self.is_cut_off:
            self.is_cut_off = True
            log.warning("the other gateways cannot be met, limits are kept to a share of 1/%d: %s", self.count, why)
        self._limits.shared_by(self.count, is_cut_off=self.is_cut_off and self.count > 1)
        self._budgets.cut_off(self.count if self.is_cut_off else 1)
        self._next_at = self._clock() + min(self._busy_s / TIME_RATIO_MAX, PAUSE_S_MAX) - EXCHANGE_S

    async def _publish(self, *, leaves: bool) -> bool:
        """Receive messages until there are no new ones, then publish this gateway's own; returns whether it was
        published.
        """
        await self._receive(await self._peer_exchange.receive_from(self.name, self._said))
        for _ in range(TRIES_MAX):
            began = time.perf_counter()
            word = self._word(leaves=leaves)
            self._busy_s += time.perf_counter() - began
            met = await self._peer_exchange.publish(self.name, word, self._said)
            if met.taken:
                self._said = met.said
                self._limits.agreed()
                return True
            await self._receive(met)
        return False

    def _word(self, *, leaves: bool) -> bytes:
        now = self._clock()
        heard = {name: _minutes_at(other, now) for name, other in self._others.items()}
        spent, reserved = self._budgets.spent_here()
        word = {
            "writer": self._writer,
            "leaves": leaves,
            "minutes": self._limits.propose(self.name, heard),
            "spent": spent,
            "reserved": reserved,
            "backends": self._limits.at_backends(),
        }
        return orjson.dumps(word, default=tuple)  # a RateWindowReport is a named tuple

    async def _receive(self, met: ExchangeResult) -> None:
        now = self._clock()
        for name, (age_s, word) in met.heard.items():
            began = time.perf_counter()
            try:
                self._others[name] = _read(orjson.loads(word), now - age_s)
            except (AttributeError, KeyError, TypeError, ValueError) as error:  # from another version
                log.debug("what another gateway says is not understood: %s", error)
            self._busy_s += time.perf_counter() - began
            await asyncio.sleep(0)  # a message may hold thousands of tenants
        self._said = met.said

    def _look(self) -> None:
        """Update the number of replicas, and this gateway's share of limits and budgets."""
        now = self._clock()
        self._others = {name: each for name, each in self._others.items() if now - each.heard_at < MINUTE_S}
        there = {name: each for name, each in self._others.items() if each.is_there(now)}
        if len(there) + 1 != self.count:
            log.info("%d gateways share the limits", len(there) + 1)
        self.count = len(there) + 1
        reserved: dict[str, int] = {}
        for each in there.values():
            self._budgets.spent_elsewhere(each.writer, each.spent)
            for holder, tokens in each.reserved.items():
                reserved[holder] = reserved.get(holder, 0) + tokens
        self._budgets.reserved_elsewhere = reserved
        share = ReplicaShare(self.count, sorted((self.name, *there)).index(self.name)) if there else ALONE
        told = (share, _at_backends(there.values()))
        if told != self._told:
            self._told = told
            self._on_share(*told)


def _read(word: Any, heard_at: float) -> _Peer:
    """Raises ValueError, TypeError, KeyError."""
    return _Peer(
        heard_at,
        writer=str(word["writer"]),
        leaves=bool(word["leaves"]),
        minutes={
            pool: {
                tenant: RateWindowReport(
                    (float(used[0]), float(used[1])), (float(claims[0]), float(claims[1])), bool(asks)
                )
                for tenant, (used, claims, asks) in tenants.items()
            }
            for pool, tenants in word["minutes"].items()
        },
        spent={day: {name: int(tokens) for name, tokens in holders.items()} for day, holders in word["spent"].items()},
        reserved={name: int(tokens) for name, tokens in word["reserved"].items()},
        backends={backend_id: PeerUse(*map(int, use)) for backend_id, use in word["backends"].items()},
    )


def _minutes_at(other: _Peer, now: float) -> Minutes:
    """What the replica has admitted and claims; for one that is gone, the part that may still be within the minute."""
    if other.is_there(now):
        return other.minutes
    left = max(0.0, 1 - (now - other.heard_at) / MINUTE_S)
    return {
        pool: {
            tenant: RateWindowReport((said.used[0] * left, said.used[1] * left), (0.0, 0.0), asks=False)
            for tenant, said in tenants.items()
        }
        for pool, tenants in other.minutes.items()
    }


def _at_backends(others: Iterable[_Peer]) -> dict[str, PeerUse]:
    """The sum of these replicas' load, by backend."""
    found: dict[str, PeerUse] = {}
    for other in others:
        for backend_id, use in other.backends.items():
            before = found.get(backend_id, NO_PEERS)
            found[backend_id] = PeerUse(before.requests + use.requests, before.tokens + use.tokens)
    return found
