"""BudgetNotices: the watch on budgets, together with the webhook that gets the notices."""

import time
from collections.abc import Collection, Mapping
from random import Random
from typing import TYPE_CHECKING

from backends.tls import tls_context
from gateway.budgets.budgets import Budgets
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.notices.thresholds import BudgetWatch
from gateway.config.budgets import BudgetsSection, WebhookSection
from gateway.observability.metrics.instruments import NOTICES, Family, Values
from gateway.store.base import Store
from gateway.store.periodic import Periodic

if TYPE_CHECKING:
    from gateway.budgets.notices.sender import NoticeSender

LOOK_S = 0.5


class BudgetNotices:
    """The parts that send notices when budgets reach thresholds: the watch on budgets and the sender to the webhook.
    Create it on the loop that runs it; call `start` and `stop`.
    """

    def __init__(
        self,
        settings: BudgetsSection,
        budgets: Budgets,
        store: Store,
        *,
        replica: str,
        place: str,
    ) -> None:
        """`replica` is the name of this gateway among those that share the state, and `place` the location of its own
        state. Raises ValueError where the secret or the CA of the webhook cannot be read.
        """
        self._watch = BudgetWatch(budgets.ledger, settings.thresholds, budgets.book.today)
        self._sender: NoticeSender | None = None
        if settings.webhook is not None:
            self._sender = _make_sender(settings.webhook, store, budgets.prices, replica=replica, place=place)
        self._looker = Periodic(self._look, LOOK_S, "tell of budgets")

    def start(self) -> None:
        self._looker.start()

    async def stop(self) -> None:
        await self._looker.stop()
        if self._sender is not None:
            await self._sender.stop()

    def values(self, shown: Collection[str]) -> Mapping[Family, Values]:
        """The metrics of budgets, with these tenants by name."""
        outcomes: Values = {}
        if self._sender is not None:
            outcomes = {(outcome,): count for outcome, count in self._sender.outcomes.items()}
        return {**self._watch.values(shown), NOTICES: outcomes}

    async def _look(self) -> None:
        notices = self._watch.look()
        if self._sender is not None:
            self._sender.offer(notices)
            await self._sender.send_due()


def _make_sender(hook: WebhookSection, store: Store, prices: PriceBook, *, replica: str, place: str) -> "NoticeSender":
    """Make the sender. Raises ValueError where the secret or the CA of the webhook cannot be read."""
    # What sends is loaded where a webhook is set, and by no other start.
    from gateway.budgets.notices.claims import NoticeClaims  # noqa: PLC0415
    from gateway.budgets.notices.sender import NoticeSender  # noqa: PLC0415
    from gateway.budgets.notices.webhook import Webhook  # noqa: PLC0415

    return NoticeSender(
        Webhook(hook.url, hook.secrets(), tls=None if hook.ca_file is None else tls_context(hook.ca_file)),
        NoticeClaims(store, replica=replica, place=place, clock=time.time),
        currency=lambda: prices.currency,
        clock=time.time,
        rng=Random(),  # noqa: S311 - jitter
    )
