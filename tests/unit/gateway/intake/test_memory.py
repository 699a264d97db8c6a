"""When the gateway refuses bodies and pauses accepting for its memory, and which limit it finds."""

import pytest

from gateway.api.errors import ProblemError
from gateway.intake.memory import BODY_COPIES, MemoryGuard, memory_limit, resident_bytes

LIMIT = 1000


class Process:
    """A process whose memory is said."""

    def __init__(self, used):
        self.used, self.paused = used, False
        self.guard = MemoryGuard(LIMIT, resident=lambda: self.used)

    def uses(self, used):
        self.used = used
        self.guard.look(0.0, self)

    def pause(self, _reason):
        self.paused = True

    def resume(self, _reason):
        self.paused = False


def is_refused(guard, size=0):
    try:
        with guard.body() as body:
            body.expect(size)
    except ProblemError:
        return True
    return False


def test_bodies_are_refused_above_90_percent_and_connections_above_95():
    process = Process(0)
    for used, refused, paused in ((890, False, False), (901, True, False), (951, True, True), (890, False, False)):
        process.uses(used)
        assert (is_refused(process.guard), process.paused) == (refused, paused), used
    assert process.guard.refused == 2


def test_bodies_that_arrive_together_count_with_all_that_they_will_take():
    process = Process(500)
    with process.guard.body() as first, process.guard.body() as second:
        first.expect(300 // BODY_COPIES)
        assert is_refused(process.guard, 200)
        second.expect(50 // BODY_COPIES)
        second.expect(50 // BODY_COPIES)  # the same bytes
        assert not is_refused(process.guard, 50 // BODY_COPIES)
        with pytest.raises(ProblemError):
            second.expect(200)
    assert process.guard.expected_bytes == 0
    assert not is_refused(process.guard, 300 // BODY_COPIES)


def test_without_a_limit_nothing_is_refused():
    assert not is_refused(MemoryGuard(None), 1 << 60)


def test_the_resident_memory_is_that_of_this_process():
    assert 10 << 20 < resident_bytes() < 10 << 30


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "300"}, 300),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "200", "a/b/memory.max": "300"}, 200),
        ("0::/kubepods/pod\n", {"memory.max": "300"}, 300),  # the path is the host's
        ("5:cpu:/\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "400"}, 400),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/../outside\n", {"memory.max": "300"}, 300),
        ("0::/\n", {}, None),
        ("garbage\n", {"memory.max": "300"}, None),
    ],
)
def test_the_limit_is_found_in_the_control_group(tmp_path, groups, files, limit):
    proc = tmp_path / "cgroup"
    proc.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limit(None, proc=proc, root=tmp_path / "root") == limit
    assert memory_limit(7, proc=proc, root=tmp_path / "root") == 7


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert memory_limit(None, proc=tmp_path / "none", root=tmp_path) is None
