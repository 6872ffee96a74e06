"""The works: those of the default run, and those that `--full` adds.

Data only. Must not know how anybody writes, or with which settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from integration.benchmarks.settings import LOOPS, RAW
from integration.benchmarks.values import HEX, TEXT

LONG, LZ4, THOUSAND = "100 B, 50,000 per txn", "1 KB lz4, 20,000 per txn", "100 B, 1,000 per txn"
ZSTD = "codec zstd"
HUNDRED, TEN, ONE = "100 B, 100 per txn", "100 B, 10 per txn", "100 B, 1 per txn"
MEMORY, MEMORY_LZ4 = "memory, 10 million x 100 B", "memory, 10 million x 100 B lz4"
FEW_PARTITIONS, MANY_PARTITIONS = "6 partitions", "600 partitions"
HEADLINES = (LONG, LZ4, THOUSAND, TEN, ONE)
_PER_RECORD = ("txnproducer.send", "confluent.produce")
_BY_THE_BATCH = ("txnproducer.send_batch", "confluent.produce_batch")
# The clients that are the quickest at something. The default run has nine minutes: the others are
# seen in one work there, and everybody in everything with `--full`.
_QUICK = (*_PER_RECORD, *_BY_THE_BATCH, "java")
_COLUMNS = ("txnproducer.send_arrow",)
_SLOW = ("txnproducer.python", "kafka-python", "aiokafka")
# The others take so long for hundreds of partitions that one work would be half of the run; and
# `produce_batch` writes all that it is given into one partition.
_QUICK_PARTITIONS = ("txnproducer.send_batch", "confluent.produce", "java")
_FOR_PARTITIONS = (*_PER_RECORD, "txnproducer.send_batch", "java", *_COLUMNS, *RAW[:2])


@dataclass(frozen=True)
class Work:
    """The records and transactions that a peer writes in one measurement.

    Attributes:
        name: of the work.
        value_bytes: of each record; there are no keys.
        records: of each transaction.
        codec: "none", or how batches are compressed.
        partitions: of the topic; where there are several, each record names the next one.
        threads: that send, into one transaction.
        least: transactions that are measured at the very least, however long they take.
        most: transactions after which a measurement ends, however short it was.
        tables: of settings it is done with.
        peers: which take part with `--full`; none named: all.
        brief: which take part without it, by the table; a table not named is not done then.
        values: what records hold; see `values`.
        is_quiet: without warm-up and in one round; memory is watched.
    """

    name: str
    value_bytes: int
    records: int
    codec: str = "none"
    partitions: int = 1
    threads: int = 1
    least: int = 2
    most: int = 20
    tables: tuple[str, ...] = ("best",)
    peers: tuple[str, ...] = ()
    brief: dict[str, tuple[str, ...]] = field(default_factory=dict)
    values: str = HEX
    is_quiet: bool = False

    def takes_part(self, peer: str, table: str, *, is_full: bool) -> bool:
        # Their batches are built without the ratio that clients learn, so they would be small.
        if peer in RAW and self.codec != "none":
            return False
        if is_full:
            return table in self.tables and peer in (self.peers or (peer,))
        return peer in self.brief.get(table, ())

    @property
    def is_long(self) -> bool:
        """Whether records are counted, and not transactions."""
        return self.records >= 1_000

    def shortened(self) -> Work:
        """As little of it as shows whether all works."""
        if self.is_quiet:
            return replace(self, records=self.records // 10)
        return replace(self, least=max(1, self.least // 20))


_HEADLINES = (
    Work(
        LONG,
        100,
        50_000,
        tables=("equal", "best"),
        brief={"equal": (*_QUICK, *_COLUMNS, *_SLOW, *RAW), "best": (*_QUICK, *_COLUMNS, *RAW)},
    ),
    Work(
        LZ4,
        1_000,
        20_000,
        "lz4",
        most=10,
        values=TEXT,
        tables=("equal", "best"),
        brief={"equal": _QUICK, "best": _QUICK},
    ),
    Work(
        THOUSAND,
        100,
        1_000,
        least=20,
        most=500,
        tables=("equal", "best"),
        brief={"best": (*_QUICK, *RAW)},
    ),
    Work(
        TEN,
        100,
        10,
        least=100,
        most=2_000,
        tables=("short",),
        brief={"short": (*_PER_RECORD, "java", *LOOPS)},
    ),
    Work(
        ONE,
        100,
        1,
        least=100,
        most=2_000,
        tables=("short",),
        brief={"short": (*_PER_RECORD, "java", *LOOPS)},
    ),
)
# Of sizes, codecs and transactions only those that no headline has.
_SIZES = tuple(
    Work(f"size {size:,} B", size, records, most=most)
    for size, records, most in (
        (10, 50_000, 20),
        (1_000, 20_000, 10),
        (10_000, 2_000, 10),
        (100_000, 200, 10),
    )
)
_CODECS = tuple(
    Work(
        f"codec {codec}",
        1_000,
        20_000,
        codec,
        most=10,
        values=TEXT,
        tables=("equal", "best") if codec == "zstd" else ("best",),
        brief={"equal": _QUICK} if codec == "zstd" else {},
    )
    for codec in ("none", "zstd", "snappy", "gzip")
)
_TRANSACTIONS = (
    Work("100 B, 10,000 per txn", 100, 10_000, least=5, most=100),
    Work("100 B, 100,000 per txn", 100, 100_000, most=10),
)
# Records of one partition fill three batches in a transaction of 600 partitions, 300 in one of 6.
_PARTITIONS = tuple(
    Work(
        f"{count} partitions",
        100,
        270_000,
        partitions=count,
        most=4,
        tables=("partitions",),
        peers=_FOR_PARTITIONS,
        brief={} if count == 60 else {"partitions": (*_QUICK_PARTITIONS, *RAW[:2])},
    )
    for count in (6, 60, 600)
)
_THREADS = tuple(
    Work(
        f"{count} sending threads",
        100,
        48_000,
        threads=count,
        tables=("equal",),
        peers=_PER_RECORD,
    )
    for count in (1, 2, 4, 8, 16)
)
_LATENCY = Work(HUNDRED, 100, 100, least=500, most=1_000, tables=("short",))
_MEMORY = Work(
    MEMORY,
    100,
    1_000_000,
    least=10,
    most=10,
    tables=("equal",),
    peers=("txnproducer.send", "txnproducer.send_batch"),
    brief={"equal": ("txnproducer.send", "txnproducer.send_batch")},
    is_quiet=True,
)
# A codec has buffers of its own, and its batches are held twice for a moment.
_MEMORY_LZ4 = replace(
    _MEMORY,
    name=MEMORY_LZ4,
    codec="lz4",
    values=TEXT,
    tables=("best",),
    peers=("txnproducer.send_batch",),
    brief={"best": ("txnproducer.send_batch",)},
)
WORKS = (
    *_HEADLINES,
    *_SIZES,
    *_CODECS,
    *_TRANSACTIONS,
    *_PARTITIONS,
    *_THREADS,
    _LATENCY,
    _MEMORY,
    _MEMORY_LZ4,
)
