"""NoticeSender: sends notices to the webhook until it accepts them, each by one process at a time (claims.py).

A notice that was not accepted is sent again after 1 s, then 2, 4 ... up to 5 minutes, each plus up to half of it by
chance, for a day. Where several processes find the same notice, the others wait until the one with the claim has sent
it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from gateway.budgets.notices.claims import Claimed, NoticeClaims
from gateway.budgets.notices.thresholds import Notice
from gateway.budgets.notices.webhook import Webhook, WebhookFailed
from gateway.store.base import StoreFull, StoreUnavailable

BACKOFF_S_MAX: Final = 300.0  # half of a claim's time
JITTER_RATIO: Final = 0.5
GIVE_UP_S: Final = 86_400.0
CLAIM_AGAIN_S: Final = BACKOFF_S_MAX * (1 + JITTER_RATIO)  # a claim that ends sooner is claimed again before it is sent
AT_ONCE_MAX: Final = 8
PENDING_MAX: Final = 10_000
DELIVERED, FAILED, GIVEN_UP = "delivered", "failed", "given_up"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    """A notice that is to be sent. Mutable."""

    notice: Notice
    since_s: float
    next_at_s: float
    attempts: int = 0
    is_mine: bool = False
    is_taken: bool = False  # by the webhook, but that is not written down yet


class NoticeSender:
    """The sender of notices about budgets to the webhook, with retries. Mutable; used on one loop."""

    def __init__(
        self,
        webhook: Webhook,
        claims: NoticeClaims,
        *,
        currency: Callable[[], str | None],
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        """`currency` gives the currency of costs; `clock` gives seconds since 1970."""
        self._webhook = webhook
        self._claims = claims
        self._currency = currency
        self._clock = clock
        self._rng = rng
        self._pending: dict[str, _Pending] = {}
        self.outcomes: Counter[str] = Counter({DELIVERED: 0, FAILED: 0, GIVEN_UP: 0})
        """The number of notices that were delivered or given up here, and of attempts that failed."""

    def offer(self, notices: Iterable[Notice]) -> None:
        """Send these notices, unless they were sent or are being sent."""
        now_s = self._clock()
        for notice in notices:
            if len(self._pending) < PENDING_MAX:
                self._pending.setdefault(notice.id, _Pending(notice, now_s, now_s))
            else:
                self._end(notice, GIVEN_UP)

    async def send_due(self) -> None:
        """Send the notices that are due now, and record those that were accepted."""
        now_s = self._clock()
        due = [each for each in self._pending.values() if each.next_at_s <= now_s][:AT_ONCE_MAX]
        if due:
            try:
                await self._claims.refresh()
            except StoreUnavailable:
                return  # the next look tries again
            await asyncio.gather(*map(self._try, due))

    async def stop(self) -> None:
        """Let other processes send the notices that are not sent yet."""
        for each in self._pending.values():
            if each.is_mine and not each.is_taken:
                try:
                    await self._claims.give_up(each.notice)
                except (StoreUnavailable, StoreFull):
                    break
        await self._webhook.close()

    async def _try(self, pending: _Pending) -> None:
        try:
            await self._tell(pending)
        except (StoreUnavailable, StoreFull) as error:
            log.warning("a notice waits for the store: %s", error)
            self._later(pending)
        except WebhookFailed as error:
            self.outcomes[FAILED] += 1
            self._later(pending)
            log.warning("%s: the webhook did not take it, attempt %d: %s", _named(pending), pending.attempts, error)
        if pending.notice.id in self._pending and self._clock() - pending.since_s >= GIVE_UP_S:
            self._end(pending.notice, GIVEN_UP)

    async def _tell(self, pending: _Pending) -> None:
        """Send one notice. Raises StoreUnavailable, StoreFull, WebhookFailed."""
        notice = pending.notice
        if not pending.is_taken:
            if not pending.is_mine or self._claims.holds_for_s(notice) < CLAIM_AGAIN_S:
                claimed = await self._claims.claim(notice)
                pending.is_mine = claimed is Claimed.MINE
                if claimed is Claimed.TOLD:
                    self._pending.pop(notice.id, None)
                    return
            if not pending.is_mine:
                pending.next_at_s = self._clock() + min(max(self._claims.holds_for_s(notice), 0.0), BACKOFF_S_MAX)
                return
            now_s = self._clock()
            await self._webhook.send(notice.id, notice.document(now_s, self._currency()), now_s)
            pending.is_taken = True
        await self._claims.told(notice)
        self._end(notice, DELIVERED)

    def _later(self, pending: _Pending) -> None:
        wait_s = min(2.0 ** min(pending.attempts, 30), BACKOFF_S_MAX)
        pending.attempts += 1
        pending.next_at_s = self._clock() + wait_s * (1 + JITTER_RATIO * self._rng.random())

    def _end(self, notice: Notice, outcome: str) -> None:
        self._pending.pop(notice.id, None)
        self.outcomes[outcome] += 1
        log.log(
            logging.INFO if outcome == DELIVERED else logging.ERROR,
            "budget %s has reached %d %%: %s", notice.name, notice.threshold, outcome,
        )  # fmt: skip


def _named(pending: _Pending) -> str:
    return f"budget {pending.notice.name} has reached {pending.notice.threshold} %"
