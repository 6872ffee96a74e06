"""The records of a batch that takes no more, ready to be compressed on any thread.

Why it exists: compression takes longer than all other work on a batch, and needs no lock if it
touches no data that a lock guards. Owns: the records, until they are dropped, and their compressed
form. Must not know: the batch, its header, the threads.

Rules:
* No thread waits for another here. Two may compress at once, and both write equal bytes.
* The module is never compiled: the interpreter makes sure that another thread reads an attribute
  whole, with the GIL and without.
"""

from __future__ import annotations

from .compression import RecordCodec
from .format import BATCH_OVERHEAD_BYTES


class SealedRecords:
    """Records that do not change any more.

    Args:
        codec: the batch's codec.
        records: room for a batch's header, and the records after it.

    Attributes:
        records: as passed; empty after they were dropped.
        body: the compressed records; None before compression, and without a codec.
    """

    __slots__ = ("_codec", "body", "records")

    def __init__(self, codec: RecordCodec, records: bytearray) -> None:
        self._codec = codec
        self.records = records
        self.body: bytes | None = None

    def compress(self) -> None:
        """Compress the records, unless they are compressed or there is no codec. Thread-safe.

        Raises:
            Exception: the codec failed.
        """
        records = self.records  # first: another thread drops them once the body is there
        if self.body is None and self._codec.codec_id:
            self.body = self._codec.compress(memoryview(records)[BATCH_OVERHEAD_BYTES:])

    def drop_records(self) -> bool:
        """Drop the records if they are compressed. Return whether they are."""
        if self.body is None:
            return False
        # Replaced and not cleared: a thread that is still compressing reads the old one, and a
        # bytearray that is being read cannot be resized.
        self.records = bytearray()
        return True
