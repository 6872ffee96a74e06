"""The compiled parts use a batch's memory again, but never while anybody has its bytes."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.needs import needs_compiled
from txnproducer._record import RecordBatchBuilder
from txnproducer._record.batch_reader import read_batches

pytestmark = needs_compiled

LIMIT = 20_000


def batch(value, limit=LIMIT):
    """Return the bytes of a full batch of equal records."""
    builder = RecordBatchBuilder(limit)
    while builder.append(0, None, value) is not None:
        pass
    return builder.build()


def address(data):
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def test_memory_that_nobody_has_is_used_again():
    first = address(batch(b"a" * 100))
    # If the memory had been freed, one of these would have it now.
    others = [bytearray(LIMIT) for _ in range(100)]
    assert first in {address(batch(b"a" * 100)) for _ in range(1_000)}
    assert first not in {address(other) for other in others}


@pytest.mark.parametrize("ratio", [1.0, 0.7, 0.45, 0.3])
def test_the_buffer_of_a_batch_with_a_codec_is_made_as_large_as_it_becomes(ratio):
    import_module("txnproducer._record._speedups").forget_kept_buffers()
    builder = RecordBatchBuilder(200_000, "lz4")
    builder.compression_ratio = ratio
    while builder.append(0, None, b"a" * 100) is not None:
        pass
    records = builder.records_buffer.take()
    assert len(records) > 200_000 / ratio / 1.06
    assert sys.getsizeof(records) < 1.1 * len(records)


def test_a_batch_keeps_its_bytes_as_long_as_anybody_has_them():
    held = batch(b"a" * 100)
    views = [memoryview(batch(b"b" * 100))[61:]]
    before = bytes(held), bytes(views[0])
    for _ in range(1_000):
        batch(b"c" * 100)
    assert (bytes(held), bytes(views[0])) == before


@pytest.mark.parametrize("limit", [20_000, 200_000])
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(300, 3_000), st.booleans()), max_size=12))
def test_batches_of_any_sizes_are_right(limit, wanted):
    held = []
    for size, is_held in wanted:
        value = bytes([size % 256]) * size
        data = batch(value, limit)
        (found,) = read_batches(data)
        assert {record.value for record in found} == {value}
        if is_held:
            held.append((data, bytes(data)))
    assert all(data == copy for data, copy in held)


def full_and_partial(limit, partial_bytes, count):
    """Build batches as a transaction does: full ones, and a last one that is smaller."""
    held: list[bytearray] = []
    for number in range(count):
        builder = RecordBatchBuilder(limit)
        size = partial_bytes if number % 4 == 3 else limit
        while builder.size_bytes < size and builder.append(0, None, b"x" * 1_000) is not None:
            pass
        held = [*held[-5:], builder.build()]
    return held


@pytest.mark.parametrize(
    ("limit", "partial_bytes"),
    [(65_536, 1_000), (65_536, 40_000), (1 << 20, 100_000), (1 << 20, 700_000), (4 << 20, 9_000)],
)
def test_batches_of_mixed_sizes_need_hardly_any_new_pages(limit, partial_bytes):
    full_and_partial(limit, partial_bytes, 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batches = 40
    full_and_partial(limit, partial_bytes, batches)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    if limit <= 1 << 20:  # of larger ones, too few fit into the bound
        assert faults * resource.getpagesize() < batches * limit // 4


def test_a_batch_that_stays_in_use_hides_no_others():
    stuck = batch(b"s" * 100, 40_000)
    kept = {address(batch(b"a" * 100, 40_000)) for _ in range(20)}
    assert address(batch(b"a" * 100, 40_000)) in kept
    assert address(stuck) not in kept


def test_a_forked_child_begins_without_any():
    batch(b"a" * 100)
    child = os.fork()
    if not child:
        # The parent's list is not its own: this would be the address of one of them.
        is_right = bytes(batch(b"b" * 100))[-2:-1] == b"b"
        os._exit(0 if is_right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
