"""What tests of usage, budgets and notices share: a clock that goes on when it is told to, and a store in memory."""

import pytest

from gateway.store.sqlite import SqliteStore


class Clock:
    now_s = 1_795_176_000.0  # 2026-11-20 12:00 UTC

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def store():
    made = SqliteStore(None)
    await made.open()
    yield made
    await made.close()
