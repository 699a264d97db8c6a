"""StoreElection: calls the election store for one process's Member, outside of the turns of the order."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from gateway.cluster.campaign import Campaign
from gateway.cluster.election import Candidate
from gateway.cluster.election_store import ElectionStore, StoreCall
from gateway.cluster.member import Member
from gateway.shared_order.place import MemberPlace
from gateway.shared_order.roles import Roles
from gateway.store.base import StoreUnavailable
from gateway.tasks import Tasks


class StoreElection:
    """The caller of the election store (Redis): it makes the calls that this process's Member asks for, and gives the
    answers to the Member. Mutable; used on one loop.
    """

    def __init__(
        self, store: ElectionStore, member: Member, place: MemberPlace, roles: Roles, soon: Callable[[], None]
    ) -> None:
        """`soon` is called when the store has answered, or has failed."""
        self._store = store
        self._member = member
        self._place = place
        self._roles = roles
        self._soon = soon
        self._loop = asyncio.get_running_loop()
        self._asking = Tasks()
        self._error = ""

    def stand(self) -> None:
        """Stand for election from now on."""
        place, member = self._place, self._member
        member.stand(Candidate(place.name, place.address, now=self._loop.time()))
        place.leads = member.lead.is_for_all
        self.read_checkpoint()

    def ask(self) -> None:
        """Make the calls that the Member has due now."""
        campaign = self._member.campaign
        if campaign is not None:
            for call in campaign.calls():
                self._in_background(self._call(campaign, call))

    def read_checkpoint(self) -> None:
        """Read the checkpoint that the store keeps for the next leader."""

        async def read() -> None:
            body = await self._store.checkpoint()
            if body is not None:
                self._member.checkpoint.told(body)

        self._in_background(read())

    def put_checkpoint(self, body: bytes) -> None:
        """Store this checkpoint for the next leader."""
        self._in_background(self._store.put_checkpoint(body))

    async def leave(self, now: float) -> None:
        """Make the last calls, and leave the list of members. Raises TimeoutError or StoreUnavailable."""
        campaign = self._member.campaign
        if campaign is not None:
            for call in [*campaign.calls(), campaign.candidate.leave(now)]:
                await self._store.call(call)

    async def stop(self) -> None:
        """Make no more calls."""
        await self._asking.cancel()

    async def _call(self, campaign: Campaign, call: StoreCall) -> None:
        candidate = campaign.candidate
        try:
            view = await self._store.call(call)
        except StoreUnavailable as error:
            candidate.asking.failed(call, self._loop.time())
            self._error = str(error)
            self._roles.because(f"the store that elects does not answer ({error})")
        else:
            if self._error:
                self._roles.because(f"the store that elects answers again ({self._error})")
                self._error = ""
            campaign.answered(call, view, self._loop.time())
            self._place.addresses = candidate.listed.addresses
            if candidate.key.is_refused(self._loop.time()):
                self._roles.because("a majority may still follow the leader of before, which is not reached")
            if candidate.listed.strangers:
                names = ", ".join(sorted(candidate.listed.strangers))
                self._roles.because(
                    f"another version of the cluster protocol is spoken by {names}: they share no order"
                )
        self._soon()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            with suppress(StoreUnavailable):
                await work

        self._asking.start(run())
