"""With which settings: tables of them, each in the words of each peer.

Data, and the translation. Must not know works or processes. What is not named is a peer's default;
all of them write with `acks=all`, which transactions ask for, and without keys.
"""

from __future__ import annotations

from dataclasses import dataclass

PEERS = {
    "txnproducer.send": "txnproducer",
    "txnproducer.send_batch": "txnproducer",
    "txnproducer.send_arrow": "txnproducer",
    "txnproducer.python": "txnproducer",
    "kafka-python": "kafka-python",
    "aiokafka": "aiokafka",
    "confluent.produce": "confluent-kafka",
    "confluent.produce_batch": "confluent-kafka",
    "java": "java",
    "raw.sender": "raw",
    "raw.loop": "raw",
    "raw.waits": "raw",
}
"""Each peer, and the client it is a call of. `txnproducer.python` is `send` without its compiled
parts."""
RAW = ("raw.sender", "raw.loop", "raw.waits")
"""The limits, which are no clients: see `raw`."""
LOOPS = RAW[1:]
"""Those that write transactions. Which one is quicker depends on how soon a coordinator writes
markers."""


@dataclass(frozen=True)
class Settings:
    """The settings that decide the speed, in nobody's words.

    Attributes:
        batch_bytes: at which a batch is full.
        linger_ms: how long one that is not is waited for.
        buffer_bytes: of records that wait to be sent.
        request_bytes: of one request at most.
    """

    batch_bytes: int
    linger_ms: int
    buffer_bytes: int = 32 * 1024 * 1024
    request_bytes: int = 1_048_576


_EQUAL = Settings(65_536, 5)
_SHORT = Settings(65_536, 0)
_PARTITIONS = Settings(16_384, 1_000)
_LARGE = Settings(1_000_000, 5)
_BEST = {
    "txnproducer.send": Settings(262_144, 5),
    "txnproducer.send_batch": Settings(1_000_000, 5, request_bytes=4_194_304),
    "txnproducer.send_arrow": Settings(1_000_000, 5, request_bytes=4_194_304),
    "txnproducer.python": Settings(262_144, 5),
    "kafka-python": _LARGE,
    "aiokafka": _LARGE,
    "confluent.produce": Settings(1_000_000, 5, buffer_bytes=1_073_741_824),
    "confluent.produce_batch": Settings(1_000_000, 5, buffer_bytes=1_073_741_824),
    "java": Settings(1_000_000, 5, buffer_bytes=64 * 1024 * 1024),
    **dict.fromkeys(RAW, Settings(262_144, 5)),
}
TABLES: dict[str, dict[str, Settings]] = {
    "equal": dict.fromkeys(PEERS, _EQUAL),
    "best": _BEST,
    "short": dict.fromkeys(PEERS, _SHORT),
    "partitions": dict.fromkeys(PEERS, _PARTITIONS),
}
ABOUT = {
    "equal": "the same settings for all",
    "best": "each at its own best",
    "short": "short transactions, no lingering, otherwise equal",
    "partitions": "small full batches, the same for all",
}

# Setting by setting, what a client calls it; None: it has no such setting.
_FIELDS = ("batch_bytes", "linger_ms", "buffer_bytes", "request_bytes")
_NAMES: dict[str, tuple[str | None, ...]] = {
    "txnproducer": ("batch_size", "linger_ms", "buffer_memory", "max_request_size"),
    "kafka-python": ("batch_size", "linger_ms", None, "max_request_size"),
    "aiokafka": ("max_batch_size", "linger_ms", None, "max_request_size"),
    "confluent-kafka": ("batch.size", "linger.ms", None, None),
    "java": ("batch.size", "linger.ms", "buffer.memory", "max.request.size"),
    "raw": ("batch_size", None, None, "max_request_size"),
}
_CODEC_NAMES = {"confluent-kafka": "compression.type", "java": "compression.type"}


def in_words_of(peer: str, table: str, codec: str = "none") -> dict[str, object]:
    """Return the settings of a table, and a codec, as a peer's client takes them."""
    client, chosen = PEERS[peer], TABLES[table][peer]
    told: dict[str, object] = {
        name: getattr(chosen, field)
        for field, name in zip(_FIELDS, _NAMES[client], strict=True)
        if name is not None
    }
    if client == "confluent-kafka":
        # Its queue is counted in records too, and so are its batches; bytes shall decide.
        told["queue.buffering.max.kbytes"] = chosen.buffer_bytes // 1024
        told["queue.buffering.max.messages"] = 1_000_000
        told["batch.num.messages"] = 1_000_000
    if codec != "none":
        told[_CODEC_NAMES.get(client, "compression_type")] = codec
    return told
