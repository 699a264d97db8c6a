"""The table of failures on real processes: three replicas, a real Redis, two engines, under load."""

import pytest
from failures import EVENTS, run
from failures_rig import CLIENTS, SLOTS
from network import Network

from gateway.cluster.checkpoints import CHECKPOINT_S

MARGIN = 4.0  # of times, on a machine that others use too; `make bench-replicas` prints the figures
SHORT = ("the leader is killed", "the leader is told to stop")


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in EVENTS]
)
async def test_it_breaks_as_the_table_says(tmp_path, name):
    if EVENTS[name].has_network and not Network.is_possible():
        pytest.skip("network namespaces need CAP_NET_ADMIN and the tool ip")
    figures, may_fail = await run(name, tmp_path)
    event = EVENTS[name]
    assert set(figures.failed) <= may_fail, figures
    assert sum(figures.failed.values()) <= CLIENTS, figures  # those that it had
    assert max(figures.most.values()) <= SLOTS + event.over, figures
    assert event.gap_s is None or figures.gap_s < event.gap_s * MARGIN, figures
    assert figures.forgotten_s <= MARGIN, figures
    # What failed calls had been sent. And what a leader charged after its last checkpoint is not in the books that the
    # next one goes on from: that one charges it again, while this sum has it of both processes.
    assert figures.twice <= CLIENTS + CHECKPOINT_S * figures.calls_s, figures
