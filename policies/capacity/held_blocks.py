"""Held blocks: the prompt blocks that the running requests of one backend share, each of which counts once.

A chained hash identifies everything before it. So requests that have a block have all blocks before it, and what they
hold is a tree of runs: blocks in a row that the same requests hold, found by the first of them. A request that holds a
part of a run alone splits it. So a request costs as many steps as its prompt has runs, however many blocks it has.

Blocks that are no chained hashes are not found to be shared, or are where they are not; what is taken is given back.
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
        """The request holds its blocks from now on. Returns the tokens of those that no other holds."""
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
        """The request has ended. Yields the tokens that none holds any more, by the tier that was charged."""
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
