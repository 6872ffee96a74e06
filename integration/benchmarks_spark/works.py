"""The frames, their writers, and the targets of ours. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from txnproducer.spark.driver.small_batches import DRIVER_ROWS

MODES = ("partition", "batch", "prepared")
SPARK = "Spark's own"
OURS = tuple(f"ours, {mode}" for mode in MODES)
# Each batch comes after one of the other kind: the driver reads a large one, or tasks write a
# small one.
WRONG_GUESS = tuple(f"{name}, wrong guess" for name in OURS)
# A batch may be slower after another kind by itself, so Spark's own sink is measured there too.
SPARK_THERE = "Spark's own, after the other kind"
IN_JVM, IN_PYTHON = NO_OPS = ("no-op in the JVM", "no-op in Python")


@dataclass(frozen=True)
class Frame:
    """A frame that is written.

    Attributes:
        rows: of 100 bytes.
        partitions: of Spark.
        has_keys: whether each row has one of 100,000 keys.
        by_tasks: whether tasks of ours write it, however few rows it has.
    """

    rows: int
    partitions: int = 2
    has_keys: bool = False
    by_tasks: bool = False

    @property
    def name(self) -> str:
        """The frame in words."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"{rows}{' with keys' * self.has_keys}"


LARGE, SMALL = Frame(2 * DRIVER_ROWS), Frame(100)


def frame_before(frame: Frame, writer: str) -> Frame | None:
    """Return the frame that is written right before one, without being measured.

    After one of the other kind the guess is wrong. Where that is measured, each batch has another
    one right before it: after a pause Spark is quicker.
    """
    if frame.by_tasks or frame.rows not in _GUESSED_WRONG:
        return None
    if writer in (SPARK_THERE, *WRONG_GUESS):
        return LARGE if frame.rows <= DRIVER_ROWS else SMALL
    return frame


LONG_ROWS = 2_000_000
PARTS = ("long", "curve", "growth")
# A batch of one row more than the driver writes is the one that a wrong guess costs most.
_SIZES = (0, 1, 10, 100, 1_000, 10_000, DRIVER_ROWS + 1, 100_000, 1_000_000)
_PARTITIONS = (2, 20, 200, 1_000)
# The time of a small batch hardly depends on its rows, where tasks write it.
_GUESSED_WRONG = {100, 10_000, DRIVER_ROWS + 1, 100_000, 1_000_000}


def frames(part: str, long_rows: int = LONG_ROWS) -> tuple[Frame, ...]:
    """Return the frames of a part of the benchmark."""
    if part == "long":
        return Frame(long_rows), Frame(long_rows, has_keys=True)
    if part == "curve":
        return tuple(map(Frame, _SIZES))
    return tuple(Frame(count, count, by_tasks=True) for count in _PARTITIONS)


def writers(part: str, rows: int, *, has_connector: bool) -> tuple[str, ...]:
    """Return the writers of a frame of so many rows."""
    besides: dict[str, tuple[str, ...]] = {"growth": NO_OPS}
    if rows in _GUESSED_WRONG:
        besides["curve"] = (*WRONG_GUESS, *(SPARK_THERE,) * has_connector)
    return (*(SPARK,) * has_connector, *OURS, *besides.get(part, ()))


def batches_of(frame: Frame) -> tuple[int, int]:
    """Return how many batches a round has: some that are not measured, and some that are.

    The first batch of a sink takes ids, and the second is the first one after a guess.
    """
    if frame.partitions >= 200:
        return 0, 1  # minutes, of which the ids are a second
    if frame.rows >= 1_000_000:
        return 1, 2
    return 2, 4 if frame.rows >= 100_000 else 8


@dataclass(frozen=True)
class Target:
    """A target of one of our writers beside another one.

    Attributes:
        part: of the benchmark.
        rows: of the frame.
        writer: ours.
        limit: of the ratio.
        beside: the other writer.
        has_keys: see `Frame`.
        is_of_time: whether the ratio is of the time of a batch, at most; of rows/s otherwise, at
            least.
    """

    part: str
    rows: int
    writer: str
    limit: float
    beside: str = SPARK
    has_keys: bool = False
    is_of_time: bool = True

    @property
    def frame(self) -> Frame:
        """The frame that is written."""
        return Frame(self.rows, has_keys=self.has_keys)

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.limit if self.is_of_time else ratio >= self.limit


_AT_MOST = ((0, 1.0), (100, 1.0), (1_000, 1.2))
_AT_LEAST = (
    (OURS[0], True, 1.5),
    (OURS[0], False, 1.25),
    (OURS[2], True, 1.25),
    (OURS[2], False, 1.25),
)
TARGETS = (
    *(Target("curve", rows, writer, limit) for rows, limit in _AT_MOST for writer in OURS),
    *(
        Target("long", LONG_ROWS, writer, limit, has_keys=has_keys, is_of_time=False)
        for writer, has_keys, limit in _AT_LEAST
    ),
    *(
        Target("curve", rows, wrong, 1.3, beside=right)
        for rows in sorted(_GUESSED_WRONG)
        for right, wrong in zip(OURS, WRONG_GUESS, strict=True)
    ),
)
