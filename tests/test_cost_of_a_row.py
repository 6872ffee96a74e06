"""The cost of a row of columns, counted and not timed."""

from __future__ import annotations

import pytest

from tests.counting import counted
from tests.live_client import use_live_clients
from tests.needs import needs_compiled
from txnproducer import TransactionalProducer

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
np = pytest.importorskip(
    "numpy", reason="NumPy is not installed (pandas brings it, extra `spark`)"
)

MANY, FEW = 20_000, 2_000
KEYS = [b"%d" % (row * 7919 % 100_003) for row in range(MANY)]
VALUES = [b"v" * 100] * MANY
HEADERS = [[("h", b"1")]] * MANY
ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def producer(monkeypatch):
    use_live_clients(monkeypatch)
    with TransactionalProducer("boot:9092", "txn", linger_ms=10_000) as one:
        one.init_transactions()
        one.begin_transaction()
        yield one
        one.abort_transaction()


@needs_compiled
@pytest.mark.parametrize(
    ("values", "more", "limit"),
    [
        # The rest are the batches, of some 600 rows each.
        pytest.param(VALUES, {}, 4, id="list"),
        pytest.param(VALUES, {"keys": KEYS}, 4, id="list, keys"),
        pytest.param(np.array(VALUES, "S"), {}, 4, id="NumPy S"),
        pytest.param(np.array(VALUES, "V"), {}, 4, id="NumPy V"),
        pytest.param(pa.array(VALUES), {}, 4, id="Arrow"),
        pytest.param(pa.array(VALUES), {"keys": pa.array(KEYS)}, 4, id="Arrow, keys"),
        pytest.param(pa.array(VALUES).cast(pa.binary_view()), {}, 4, id="Arrow view"),
        pytest.param(pa.array(VALUES).dictionary_encode(), {}, 4, id="Arrow dictionary"),
        pytest.param(pa.array(VALUES), {"timestamps_ms": np.arange(MANY)}, 4, id="timestamps"),
        pytest.param(pa.array(VALUES), {"partitions": np.zeros(MANY, int)}, 4, id="partitions"),
        # Python's objects are looked at one by one.
        pytest.param(VALUES, {"partitions": [0] * MANY}, 44, id="list of partitions"),
        pytest.param(VALUES, {"headers": HEADERS}, 80, id="lists of headers"),
        pytest.param(
            pa.array(VALUES), {"headers": pa.array(HEADERS, ARROW_HEADERS)}, 26, id="Arrow headers"
        ),
    ],
)
def test_a_row_of_columns_stays_within_its_opcodes_in_python(producer, values, more, limit):
    def send(count):
        columns = {name: column[:count] for name, column in more.items()}
        return lambda: producer.send_batch("topic", values[:count], **columns)

    send(100)()
    few, many = counted(send(FEW))["opcode"], counted(send(MANY))["opcode"]
    assert (many - few) / (MANY - FEW) <= limit
