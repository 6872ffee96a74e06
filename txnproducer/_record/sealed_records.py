"""The records of a batch that takes no more, for whichever thread compresses them.

Why it exists: compressing takes longer than all else that is done for a batch, and needs no lock,
if it touches nothing that is guarded by one. Owns: the records, until they are dropped, and what
the codec made of them. Must not know: the batch, its header, who waits.

Rules:
* No thread waits for another here. Two may compress at once: both write equal bytes.
* It is interpreted everywhere: the interpreter sees to it that another thread reads an attribute
  whole, with the GIL and without.
"""

from __future__ import annotations

from .compression import Codec
from .format import BATCH_OVERHEAD_BYTES


class SealedRecords:
    """Records that nobody changes any more.

    Args:
        codec: what they are compressed with.
        records: room for a batch's header, and the records behind it.

    Attributes:
        records: as given; empty once they were dropped.
        body: what the codec made of them; None before that, and without a codec.
    """

    __slots__ = ("_codec", "body", "records")

    def __init__(self, codec: Codec, records: bytearray) -> None:
        self._codec = codec
        self.records = records
        self.body: bytes | None = None

    def compress(self) -> None:
        """Compress the records, unless that was done, or there is no codec; on any thread.

        Raises:
            Exception: the codec's.
        """
        records = self.records  # first: they are dropped behind the body
        if self.body is None and self._codec.codec_id:
            self.body = self._codec.compress(memoryview(records)[BATCH_OVERHEAD_BYTES:])

    def drop_records(self) -> bool:
        """Keep only what they were compressed to; return whether there is that."""
        if self.body is None:
            return False
        self.records = bytearray()
        return True
