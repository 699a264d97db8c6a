"""Others: the other processes of an order, as the parts of one process reach them. A single process has none."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.store.base import StoreFull, StoreUnavailable

Service = Callable[[bytes], Awaitable[bytes]]


class Others:
    """The access of one process to the other processes that share an order of requests with it (one of them, the
    leader, decides for all). It asks them questions, and answers theirs by the functions in `services`. This base class
    is for a single process, which has no others, and leads itself.
    """

    def __init__(self, name: str) -> None:
        """`name` is the name of this process."""
        self.name = name
        self.services: dict[str, Service] = {}
        """What the others tell and ask this process."""

    @property
    def is_leading(self) -> bool:
        """Whether this process leads: the Schedulers run in it."""
        return True

    def names(self) -> Sequence[str]:
        """The names of all other processes."""
        return ()

    def followers(self) -> Sequence[str]:
        """The names of the processes that are connected to this one while it leads."""
        return ()

    def scheduler_id(self, request_id: str) -> str:
        """The id of a request of this process at the Scheduler that decides on it, perhaps in another process."""
        return request_id

    def tell(self, service: str, body: bytes, name: str | None = None) -> None:
        """Send a message to this service of one process (None: of the leader), in the background. It may be lost."""

    async def ask_leader(self, service: str, body: bytes = b"") -> bytes:
        """The answer of this service of the leading process. Raises StoreUnavailable, StoreFull."""
        raise StoreUnavailable("no other process leads")

    async def ask(self, name: str, service: str, body: bytes = b"") -> bytes:
        """The answer of this service of the process `name`. Raises StoreUnavailable, StoreFull."""
        raise StoreUnavailable(f"{name} is not there")

    async def ask_all(self, names: Sequence[str], service: str, body: bytes) -> tuple[list[bytes], list[str]]:
        """The answers of this service of the processes `names`, and the names of those that did not answer."""

        async def answer_of(name: str) -> bytes | None:
            try:
                return await self.ask(name, service, body)
            except (StoreUnavailable, StoreFull):
                return None

        answers = await asyncio.gather(*map(answer_of, names))
        missing = [name for name, answer in zip(names, answers, strict=True) if answer is None]
        return [answer for answer in answers if answer is not None], missing
