"""WorkerPlace: the facts that the parent gives a worker at its start."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.shared_order.place import MemberPlace

SOCKET_NAME = "leader"
"""The name of the socket in the private folder at which worker 0 listens for the others."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The facts about itself and its parent that a worker process gets at its start. It is number `index` (from 0) of
    `workers` workers; worker 0 leads.

    `name` is never used again by another process. `epoch` counts the starts of worker 0. `others` are the names of the
    workers that run already. `secret` is known only to the workers of this parent. `folder` is private to them.
    `control` is the reading end of a pipe on which the parent names workers that have died; the end of the pipe means
    that the parent has died.
    """

    index: int
    workers: int
    name: str
    epoch: int
    others: tuple[str, ...]
    secret: bytes
    folder: Path
    listening: socket.socket
    control: int

    @property
    def is_leading(self) -> bool:
        return self.index == 0

    @property
    def counters_file(self) -> Path:
        """The file with the counts of all workers, for the next worker 0."""
        return self.folder / "counters"

    def place(self) -> MemberPlace:
        """The worker's place in the order: it reaches the others by sockets in the private folder, named as the
        workers.
        """
        leader = str(self.folder / SOCKET_NAME)
        return MemberPlace(
            name=self.name,
            secret=self.secret,
            listen=leader if self.is_leading else str(self.folder / self.name),
            leader_address=leader,
            epoch=self.epoch,
            others=self.others,
            processes=self.workers,
            addresses=_Sockets(self.folder),
        )


@dataclass(frozen=True, slots=True)
class _Sockets(Mapping[str, str]):
    """The sockets at which the followers listen, by name."""

    folder: Path

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self.folder.iterdir())

    def __len__(self) -> int:
        return sum(1 for _ in self)
