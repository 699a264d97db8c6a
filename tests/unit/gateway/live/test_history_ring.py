"""Rings of rows by slot of time: bounds, roll-over, gaps, and what compression keeps."""

import tracemalloc
from operator import mul
from random import Random

import pytest

from gateway.live.history.columns import ENGINE, PER_OCTAVE, USE, USE_TOGETHER, coded, merged, spanned
from gateway.live.history.ring import BLOCK_SLOTS, CHUNK_NAMES, Ring

WIDTH = 3


def row(*codes):
    return bytes(codes)


def test_what_was_put_is_read_across_blocks_compressed_or_not():
    rng, ring, put = Random(7), Ring(4, WIDTH, 1000), {}
    for slot in range(3 * BLOCK_SLOTS + 10):
        some = {f"t{rng.randrange(150)}": rng.randbytes(WIDTH) for _ in range(90)}
        ring.put(slot, some.items())
        ring.recorded(slot)
        put |= {(name, slot): codes for name, codes in some.items()}
        if slot % 50 == 0:
            ring.compress()  # a part is compressed, and a part is not
    last = 3 * BLOCK_SLOTS + 9
    for _ in range(2):
        for name in (f"t{number}" for number in range(150)):
            columns = ring.read(name, 0, last)
            found = {slot: codes for slot in range(last + 1) if any(codes := bytes(each[slot] for each in columns))}
            assert found == {slot: codes for (of, slot), codes in put.items() if of == name and any(codes)}
        for slot in (0, 61, last):
            found = {name: bytes(each[0] for each in columns) for name, columns in ring.rows(slot, slot)}
            assert found == {name: codes for (name, at), codes in put.items() if at == slot and any(codes)}
        while ring.compress():
            pass


def test_the_oldest_block_leaves_and_no_more_blocks_are_kept():
    ring = Ring(2, WIDTH, 10)
    for slot in range(5 * BLOCK_SLOTS):
        ring.put(slot, [("a", row(1, 2, 3))])
        ring.recorded(slot)
    assert sum(ring.is_recorded(0, 5 * BLOCK_SLOTS - 1)) == 3 * BLOCK_SLOTS
    columns = ring.read("a", 0, 5 * BLOCK_SLOTS - 1)
    assert columns[1] == bytes(2 * BLOCK_SLOTS) + b"\2" * 3 * BLOCK_SLOTS


def test_a_gap_in_time_is_not_recorded_and_what_was_before_it_stays():
    ring = Ring(2, WIDTH, 10)
    ring.put(5, [("a", row(9, 9, 9))])
    ring.recorded(5)
    late = 5 + 4 * BLOCK_SLOTS
    ring.put(late, [("a", row(8, 8, 8))])
    ring.recorded(late)
    assert [number for number, flag in enumerate(ring.is_recorded(0, late)) if flag] == [5, late]
    assert ring.read("a", 5, late)[0] == b"\x09" + bytes(late - 6) + b"\x08"
    ring.put(5, [("a", row(1, 1, 1))])  # the clock was set back: what is over stays as it was
    assert ring.read("a", 5, 5)[0] == b"\x09"


def test_a_ring_that_is_set_back_keeps_what_was_before_and_goes_on_from_there():
    ring = Ring(9, WIDTH, 10)
    for slot in (5, 65, 70, 300, 400):
        ring.put(slot, [("a", row(9, 9, 9))])
        ring.recorded(slot)
    while ring.compress():
        pass
    for back, known in ((130, [5, 65, 70, 130]), (125, [5, 65, 70, 125, 130]), (66, [5, 66])):
        ring.set_back(back)
        ring.put(back, [("a", row(8, 8, 8))])
        ring.recorded(back)
        assert [number for number, flag in enumerate(ring.is_recorded(0, 400)) if flag] == known
        assert ring.read("a", back, back)[0] == b"\x08"
    while ring.compress():
        pass
    ring.put(130, [("a", row(7, 7, 7))])
    while ring.compress():
        pass
    ring.set_back(71)
    assert [number for number, flag in enumerate(ring.is_recorded(0, 400)) if flag] == [5]


def test_a_block_has_no_more_names_than_it_may():
    ring = Ring(1, WIDTH, 3)
    ring.put(0, ((f"t{number}", row(1, 1, 1)) for number in range(10)))
    assert [name for name, _ in ring.rows(0, 0)] == ["t0", "t1", "t2"]
    assert ring.read("t3", 0, 0) is None


def test_one_compression_takes_one_chunk():
    ring = Ring(1, WIDTH, 1000)
    ring.put(0, ((f"t{number}", row(1, 1, 1)) for number in range(2 * CHUNK_NAMES + 1)))
    assert not ring.compress(), "the present block is written to"
    ring.put(BLOCK_SLOTS, [])
    assert [ring.compress() for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("column", [*USE_TOGETHER, *ENGINE], ids=lambda each: each.name)
def test_a_value_comes_back_within_its_error(column):
    rng = Random(2)
    error = 2 ** (0.5 / PER_OCTAVE) - 1
    assert column.values(bytes([column.code(0.0)])) == [0.0]
    for _ in range(1000):
        value = column.least * 2 ** rng.uniform(0, 250 / PER_OCTAVE)
        assert column.values(bytes([column.code(value)]))[0] == pytest.approx(value, rel=error * 1.001)
    assert column.code(1e300) == 255


def test_processes_are_added_up_and_parts_of_a_minute_are_weighted():
    one, other = [[0.5], [60.0], [2.0], [0.3], [1.0], [0.1], [7.0]], [[0.0], [0.0], [5.0], [0.1], [2.0], [0.2], [0.0]]
    assert merged(USE_TOGETHER, one, other) == [[0.5], [60.0], [5.0], [0.3], [3.0], [pytest.approx(0.3)], [7.0]]
    parts = [[1.0, 0.1], [10.0, 90.0], [1.0, 2.0], [0.0, 0.4], [1.0, 1.0], [0.0, 0.5], [3.0, 4.0]]
    assert spanned(USE_TOGETHER, parts, [10.0, 900.0]) == pytest.approx([100 / 910, 100.0, 2.0, 0.4, 2.0, 0.5, 4.0])


@pytest.mark.parametrize(("hours", "bytes_max"), [(8, 2048), pytest.param(24, 3100, marks=pytest.mark.long)])
def test_what_a_tenant_takes_that_is_active_for_some_hours(hours, bytes_max):
    """With noise of a tenth from step to step, as a busy tenant has it. At the end both blocks that are written to, and
    not compressed, are full.
    """
    rng, names = Random(3), [f"tenant-{number}" for number in range(CHUNK_NAMES)]
    usual = {name: [rng.uniform(*of) for of in ((0.001, 0.1), (1e3, 1e6), (0.1, 9), (0.1, 3))] for name in names}
    noise = [[rng.lognormvariate(0, 0.1) for _ in range(4)] for _ in range(997)]

    def noisy(name):
        return coded(USE, [*map(mul, usual[name], rng.choice(noise)), 0.0, 0.0])

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rings = [Ring(6, len(USE), 5000), Ring(24, len(USE), 5000)]
    for ring, blocks in zip(rings, (7, hours + 1), strict=True):
        for slot in range(blocks * BLOCK_SLOTS):
            ring.put(slot, [(name, noisy(name)) for name in names])
            ring.compress()
    taken = (tracemalloc.get_traced_memory()[0] - before) / len(names)
    tracemalloc.stop()
    assert taken < bytes_max
    print(f"\nbytes of a tenant that is active for {hours} h: {taken:.0f}")  # noqa: T201 - a figure
