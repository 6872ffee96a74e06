"""The table of all settings: names, types, defaults, limits and meaning.

Why it exists: checking, reading property files, similar names and the documentation page all need
the same facts, so these are written down once, as data.
Owns: one `Setting` per name. Must not know: how values are checked, rules between settings.
Rules: the Java client's name in snake_case and its default. If the default differs, `why` gives
the reason for the documentation. Times end in `_ms` and are milliseconds, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["int", "bool", "text", "choice", "servers", "serializer", "object"]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
KIB: Final = 1024
MIB: Final = 1024 * KIB

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "GSSAPI",
    "AWS_MSK_IAM",
)
COMPRESSION_TYPES: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: a setting, its type and limits, and a sentence for the documentation.

    Attributes:
        default: the value of a setting that is not given; None if it is computed or stays unset.
        low: the least value of a number.
        high: the greatest value of a number.
        choices: the values of a "choice", as they are stored; matched without regard to case.
        java_default: Java's default, if it differs.
        why: the reason for the other default.
        secret: whether it is hidden in reprs and messages.
    """

    name: str
    kind: Kind
    default: object
    doc: str
    group: str = ""
    low: int = 0
    high: int = INT_MAX
    choices: tuple[str, ...] = ()
    java_default: str = ""
    why: str = ""
    secret: bool = False

    @property
    def dotted_name(self) -> str:
        """The spelling of the Java client's property files."""
        return self.name.replace("_", ".")


_CONNECTION = (
    Setting(
        "bootstrap_servers",
        "servers",
        None,
        "Brokers to ask for the cluster first: `host:port` separated by commas, or a sequence of "
        "them. The port is 9092 if left out; IPv6 as `[::1]:9092`. Required.",
    ),
    Setting(
        "client_id",
        "text",
        None,
        "Name of this client in the brokers' logs and quotas. If not given: `producer-` and the "
        "transactional id, or a number.",
    ),
    Setting(
        "request_timeout_ms",
        "int",
        30_000,
        "How long one request may wait for its answer before it counts as lost.",
        low=1,
    ),
    Setting(
        "socket_connection_setup_timeout_ms",
        "int",
        10_000,
        "How long a connection may take to be made; grows with each attempt in a row that runs "
        "out of it.",
        low=1,
    ),
    Setting(
        "socket_connection_setup_timeout_max_ms", "int", 30_000, "The longest such time.", low=1
    ),
    Setting(
        "reconnect_backoff_ms",
        "int",
        50,
        "Pause before connecting to the same broker again; doubles with each failure. With 0 the"
        " first retry follows at once, and later ones after 5 ms.",
    ),
    Setting(
        "reconnect_backoff_max_ms",
        "int",
        1_000,
        "The longest such pause. If only `reconnect_backoff_ms` is given, it is the "
        "same, as in Java.",
    ),
    Setting(
        "connections_max_idle_ms",
        "int",
        540_000,
        "A connection that was idle for so long is closed; -1 for never.",
        low=-1,
    ),
    Setting(
        "send_buffer_bytes",
        "int",
        -1,
        "Size of the socket's send buffer; -1 leaves it to the system.",
        low=-1,
        java_default="131072",
        why="a fixed size switches off the system's own tuning, which suits large requests better",
    ),
    Setting(
        "receive_buffer_bytes",
        "int",
        -1,
        "Size of the socket's receive buffer; -1 leaves it to the system.",
        low=-1,
        java_default="32768",
        why="as for `send_buffer_bytes`",
    ),
    Setting(
        "metadata_max_age_ms",
        "int",
        300_000,
        "Topics and leaders are asked for again after this time, even if nothing failed.",
    ),
    Setting(
        "metadata_max_idle_ms",
        "int",
        300_000,
        "A topic that was not written to for so long is forgotten.",
        low=5_000,
    ),
)

_TRANSACTIONS = (
    Setting(
        "transactional_id",
        "text",
        None,
        "Identity of the producer across restarts; turns transactions on. Two live producers with "
        "one id fence each other.",
    ),
    Setting(
        "transaction_timeout_ms",
        "int",
        60_000,
        "The broker aborts a transaction that is open for longer. At most the broker's "
        "`transaction.max.timeout.ms` (15 minutes unless changed).",
        low=1,
    ),
    Setting(
        "enable_idempotence",
        "bool",
        True,
        "Number the batches, so that a repeated one is not written twice. Needs `acks=all`, "
        "`retries` above 0 and at most 5 requests in flight; `acks` or `retries` that do not fit "
        "switch it off unless it was asked for.",
    ),
    Setting(
        "acks",
        "choice",
        "all",
        "Which replicas must have a record before it counts as written: `all` in-sync replicas, "
        "the leader (`1`) or none (`0`: it counts once the socket has taken it). `-1` means "
        "`all`.",
        choices=("all", "1", "0"),
    ),
    Setting(
        "retries",
        "int",
        INT_MAX,
        "How often a batch is sent again. Better leave it and bound the time by "
        "`delivery_timeout_ms`.",
    ),
    Setting(
        "max_in_flight_requests_per_connection",
        "int",
        5,
        "Produce requests on their way to one broker; at most 5 with idempotence. Order holds.",
        low=1,
    ),
)

_RECORDS = (
    Setting(
        "key_serializer",
        "serializer",
        None,
        "Makes bytes of keys: a function such as `str.encode`, a `Serializer`, or one of "
        "confluent-kafka's. None: keys are bytes already.",
    ),
    Setting(
        "value_serializer",
        "serializer",
        None,
        "Likewise of values. None: values are bytes already.",
    ),
    Setting(
        "linger_ms",
        "int",
        5,
        "How long a batch that is not full waits for more records. A commit or flush does not "
        "wait for it.",
    ),
    Setting(
        "batch_size",
        "int",
        64 * KIB,
        "Bytes of a batch for one partition; 0 sends each record alone.",
        java_default="16384",
        why="the cost of a request is mostly fixed in Python, and 64 KiB batches need a quarter "
        "of the requests",
    ),
    Setting(
        "buffer_memory",
        "int",
        32 * MIB,
        "Bytes of records waiting to be sent; `send` blocks when it is full.",
        low=1,
        high=LONG_MAX,
    ),
    Setting(
        "max_request_size",
        "int",
        MIB,
        "Bytes of the largest request, and so of the largest record, before compression.",
        low=1,
    ),
    Setting(
        "max_block_ms",
        "int",
        60_000,
        "The longest wait of calls such as `send` (for metadata and memory), `init_transactions` "
        "and `commit_transaction`: [which ones](transactions.md#settings-that-matter).",
    ),
    Setting(
        "delivery_timeout_ms",
        "int",
        120_000,
        "From `send` to success or failure, all retries included. At least `linger_ms` + "
        "`request_timeout_ms`; raised to that if it was not given.",
    ),
    Setting(
        "retry_backoff_ms",
        "int",
        100,
        "Pause before a request is sent again. It doubles with each failure of a batch or of a"
        " metadata request, and stays the same for requests to coordinators.",
    ),
    Setting("retry_backoff_max_ms", "int", 1_000, "The longest such pause."),
    Setting(
        "compression_type",
        "choice",
        "none",
        "Codec of the batches. `lz4`, `snappy` and `zstd` need the extras of these names; `zstd` "
        "needs none on Python 3.14.",
        choices=COMPRESSION_TYPES,
    ),
    Setting(
        "compression_level",
        "int",
        None,
        "Level of the codec: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22. None: the codec's own. "
        "Java's `compression.gzip.level`, `compression.lz4.level` and `compression.zstd.level` "
        "count for the codec in use.",
        low=-131_072,
        high=22,
    ),
    Setting(
        "compression_lz4_block_bytes",
        "int",
        65_536,
        "Bytes of a block of lz4: 65536, 262144, 1048576 or 4194304. With large batches 262144 is "
        "faster, by a fifth with text and several times with data that can hardly be compressed, "
        "and compresses a little less. Java has 65536 and no setting; every client reads all.",
        low=65_536,
        high=4_194_304,
    ),
    Setting(
        "partitioner_ignore_keys",
        "bool",
        False,
        "Spread records with a key like those without one.",
    ),
    Setting(
        "partitioner_adaptive_partitioning_enable",
        "bool",
        True,
        "Give fewer records to partitions whose broker is slow.",
    ),
    Setting(
        "partitioner_availability_timeout_ms",
        "int",
        0,
        "Leave out partitions whose broker took nothing for so long; 0 for never.",
    ),
)

_SECURITY = (
    Setting(
        "security_protocol",
        "choice",
        "PLAINTEXT",
        "Protocol of the connections.",
        choices=SECURITY_PROTOCOLS,
    ),
    Setting(
        "ssl_context",
        "object",
        None,
        "An `ssl.SSLContext` of your own instead of the other `ssl_` settings. A configuration "
        "with one cannot be sent to other processes.",
    ),
    Setting("ssl_check_hostname", "bool", True, "Compare the broker's name with its certificate."),
    Setting("ssl_cafile", "text", None, "PEM file of the authorities to trust."),
    Setting(
        "ssl_certfile",
        "text",
        None,
        "PEM file of the client's certificate chain, perhaps with its key.",
    ),
    Setting(
        "ssl_keyfile", "text", None, "PEM file of the client's key, if it is not in that file."
    ),
    Setting("ssl_password", "text", None, "Password of the client's key.", secret=True),
    Setting("ssl_crlfile", "text", None, "PEM file of revoked certificates."),
    Setting("ssl_ciphers", "text", None, "Ciphers, in OpenSSL's notation."),
    Setting(
        "sasl_mechanism",
        "choice",
        None,
        "Mechanism of the login; required with SASL_PLAINTEXT and SASL_SSL.",
        choices=SASL_MECHANISMS,
        java_default="GSSAPI",
        why="a forgotten mechanism should say so, and not look for a Kerberos ticket",
    ),
    Setting("sasl_plain_username", "text", None, "User for PLAIN and SCRAM."),
    Setting("sasl_plain_password", "text", None, "Password for PLAIN and SCRAM.", secret=True),
    Setting(
        "sasl_oauth_token_provider",
        "object",
        None,
        "For OAUTHBEARER: a [function that returns a token and when it expires](#tokens); or an "
        "instance of kafka-python's `AbstractTokenProvider`, whose `token()` is called for each "
        "connection and each new session, on several threads at once, and has to keep its token.",
        secret=True,
    ),
    Setting("sasl_kerberos_name", "object", None, "For GSSAPI: a `gssapi.Name` or its text."),
    Setting(
        "sasl_kerberos_service_name",
        "text",
        "kafka",
        "For GSSAPI: the brokers' service name.",
        java_default="none",
        why="kafka-python's default, and the name in nearly every cluster",
    ),
    Setting(
        "sasl_kerberos_domain_name",
        "text",
        None,
        "For GSSAPI: the host part of the service name; by default the broker's.",
    ),
)

GROUPS: Final[tuple[tuple[str, tuple[Setting, ...]], ...]] = (
    ("Connection", _CONNECTION),
    ("Transactions and delivery", _TRANSACTIONS),
    ("Records and batches", _RECORDS),
    ("Security", _SECURITY),
)
SETTINGS: Final[dict[str, Setting]] = {row.name: row for _, rows in GROUPS for row in rows}
SECURITY_NAMES: Final = frozenset(row.name for row in _SECURITY)

COMPRESSION_LEVELS: Final[dict[str, tuple[int, int]]] = {
    "gzip": (1, 9),
    "lz4": (1, 17),
    "zstd": (-131_072, 22),
}
LZ4_BLOCKS_BYTES: Final = (65_536, 262_144, 1_048_576, 4_194_304)
LEVEL_KEYS: Final = {f"compression_{codec}_level": codec for codec in COMPRESSION_LEVELS}
