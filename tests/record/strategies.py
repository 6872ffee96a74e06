"""Random records, the awkward ones likely: nulls, empties, bounds of varints, time going back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

# A busy machine must not fail a test.
unhurried = settings(deadline=None)

BASE_MS = 1_700_000_000_000

# Lengths around which a varint grows, or a lookup table ends.
_edges = st.sampled_from([0, 1, 62, 63, 64, 65, 127, 128, 8190, 8191, 8192, 16383, 16384])
_payload = st.one_of(
    st.none(),
    st.binary(max_size=40),
    _edges.map(lambda size: b"x" * size),
)
timestamps = st.one_of(
    st.just(BASE_MS),
    st.integers(BASE_MS - 10_000, BASE_MS + 10_000),
    st.integers(-1, 2**62),
)
headers = st.lists(
    st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=12))), max_size=3
).map(tuple)
records = st.tuples(timestamps, _payload, _payload, headers)
record_lists = st.lists(records, min_size=1, max_size=25)
