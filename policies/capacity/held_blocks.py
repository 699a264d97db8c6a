"""Held blocks: the prompt blocks that the running requests of one backend share, each of which counts once.

A chained hash identifies everything before it. So requests that have a block have all blocks before it, and the held
blocks are a tree of runs. A run is a row of blocks that the same requests hold, found by its first block. A request
that holds a part of a run alone splits it. So a request costs one step per run of its prompt.

If the hashes are not chained, sharing is missed or wrongly found, but each request still releases what it has taken.
"""

from collections.abc import Iterator

from policies.capacity.prefix_index import matching_blocks
from policies.reservation import Reservation


class _SharedRun:
    """Blocks that the same running requests hold, charged to the tier of the request that brought them. Who holds them
    holds those of `before`, too.
    """

    __slots__ = ("before", "block_tokens", "blocks", "holders", "tier_id")

    def __init__(
        self, before: "_SharedRun | None", blocks: tuple[int, ...], tier_id: str, block_tokens: float, holders: int
    ) -> None:
        self.before, self.blocks, self.holders = before, blocks, holders
        self.tier_id, self.block_tokens = tier_id, block_tokens


class HeldBlocks:
    """The prompt blocks that the running requests of one backend hold; a shared block counts once. Mutable."""

    __slots__ = ("_last", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, _SharedRun] = {}
        """By the first block. To read."""
        self._last: dict[Reservation, _SharedRun] = {}  # of the running requests

    def unheld_tokens(self, reservation: Reservation) -> float:
        """The tokens of the prompt's blocks that no request holds."""
        prefix = reservation.prefix
        return reservation.block_tokens * (len(prefix) - sum([matched for _, matched in self._found(prefix)]))

    def take(self, reservation: Reservation) -> float:
        """Record that the request holds its blocks. Returns the tokens of its blocks that no other request holds."""
        prefix, runs, last, at = reservation.prefix, self.runs, None, 0
        for run, matched in self._found(prefix):
            last, at = run, at + matched
            if matched < len(run.blocks):  # the end stays the last run of those that hold it
                last = _SharedRun(run.before, run.blocks[:matched], run.tier_id, run.block_tokens, run.holders)
                run.before, run.blocks = last, run.blocks[matched:]
                runs[run.blocks[0]] = run
                runs[last.blocks[0]] = last
            last.holders += 1
        if at < len(prefix):
            last = runs[prefix[at]] = _SharedRun(last, prefix[at:], reservation.tier_id, reservation.block_tokens, 1)
        assert last is not None, "it has blocks"
        self._last[reservation] = last
        return (len(prefix) - at) * reservation.block_tokens

    def release(self, reservation: Reservation) -> Iterator[tuple[str, float]]:
        """The request has ended. Yields the tokens of blocks that no request holds now, by the charged tier."""
        run: _SharedRun | None = self._last.pop(reservation)
        while run is not None:
            run.holders -= 1
            if not run.holders:
                if self.runs.get(run.blocks[0]) is run:
                    del self.runs[run.blocks[0]]
                yield run.tier_id, len(run.blocks) * run.block_tokens
            run = run.before

    def _found(self, prefix: tuple[int, ...]) -> list[tuple[_SharedRun, int]]:
        """The runs that a prompt begins with, and how many blocks of each: all, but for the last."""
        found, at, before = list[tuple[_SharedRun, int]](), 0, None
        while at < len(prefix):
            run = self.runs.get(prefix[at])
            if run is None or run.before is not before:
                break
            matched = matching_blocks(prefix, at, run.blocks)
            found.append((run, matched))
            at += matched
            if matched < len(run.blocks):
                break
            before = run
        return found
