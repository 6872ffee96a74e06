"""Keys that other Kafka clients know and this one does not, each with the way out.

Why it exists: a user who brings a configuration along should read what to do, not "unknown".
Owns: Java's keys without a counterpart here, its consumer's keys, and other clients' names of
settings that exist here.
Must not know: values, except the few that change nothing (such as a feature that is off).
Rules: a reason is a sentence that starts with the key as its subject.
"""

from __future__ import annotations

from typing import Final

_NO_CLASSES = "names a Java class, which Python cannot load"
_NO_JVM_TLS = "belongs to Java's TLS; pass an `ssl_context` of your own if you need it"
_NO_OAUTH = "configures Java's token retrieval; pass `sasl_oauth_token_provider` instead"
_NO_LOGIN = "configures Java's login thread, which does not exist here"
_NO_METRICS = "is for Java's metrics; read `producer.metrics()` instead"
_NO_STATISTICS = "does not exist here: call `producer.metrics()` when you want the numbers"
_NO_LOG_CALLS = "does not exist here: configure the logger `txnproducer` of the module `logging`"
_ONE_RECORD = "belongs to a record: pass `on_delivery` to `send`"
_OF_BYTES = "does not exist here: `batch_size` and `buffer_memory` count bytes, not records"
_NEGOTIATED = "is not needed: versions are negotiated with each broker"
_PROVIDERS = (
    "is for other classes than Java's env, file and directory, which `ProducerConfig.from_file` "
    "follows without it; read other secrets in your program and pass the values"
)
_INLINE_PEM = "holds a certificate or key as text; write it to a file and pass"

UNSUPPORTED: Final[dict[str, str]] = {
    "client.dns.lookup": "cannot be chosen: all addresses of a name are tried",
    "config.providers": _PROVIDERS,
    "enable.metrics.push": "is not supported: nothing is sent to the brokers' telemetry (KIP-714)",
    "interceptor.classes": f"{_NO_CLASSES}; wrap `send`, or use its `on_delivery`",
    "metadata.recovery.rebootstrap.trigger.ms": "cannot be set",
    "metadata.recovery.strategy": "cannot be chosen",
    "metric.reporters": _NO_METRICS,
    "metrics.num.samples": _NO_METRICS,
    "metrics.recording.level": _NO_METRICS,
    "metrics.sample.window.ms": _NO_METRICS,
    "partitioner.class": f"{_NO_CLASSES}; pass `partition=` to `send`",
    "security.providers": _NO_JVM_TLS,
    "transaction.two.phase.commit.enable": (
        "is not needed: with transaction_timeout_ms=2147483647 `prepare_transaction()` and"
        " `complete()` are its two phases (KIP-939) on the brokers of today"
    ),
    "sasl.client.callback.handler.class": f"{_NO_CLASSES}; pass the credentials themselves",
    "sasl.login.callback.handler.class": f"{_NO_CLASSES}; pass the credentials themselves",
    "sasl.login.class": f"{_NO_CLASSES}; pass the credentials themselves",
    "sasl.kerberos.kinit.cmd": "is not supported: keep the ticket fresh with kinit or k5start",
    "sasl.kerberos.min.time.before.relogin": _NO_LOGIN,
    "sasl.kerberos.ticket.renew.jitter": _NO_LOGIN,
    "sasl.kerberos.ticket.renew.window.factor": _NO_LOGIN,
    "ssl.cipher.suites": "uses Java's names; pass `ssl_ciphers` in OpenSSL's notation",
    "ssl.enabled.protocols": _NO_JVM_TLS,
    "ssl.engine.factory.class": f"{_NO_CLASSES}; pass an `ssl_context` of your own",
    "ssl.keymanager.algorithm": _NO_JVM_TLS,
    "ssl.keystore.certificate.chain": f"{_INLINE_PEM} `ssl_certfile`",
    "ssl.keystore.key": f"{_INLINE_PEM} `ssl_keyfile`",
    "ssl.protocol": _NO_JVM_TLS,
    "ssl.provider": _NO_JVM_TLS,
    "ssl.secure.random.implementation": _NO_JVM_TLS,
    "ssl.trustmanager.algorithm": _NO_JVM_TLS,
    "ssl.truststore.certificates": f"{_INLINE_PEM} `ssl_cafile`",
    # kafka-python's
    "allow_auto_create_topics": "cannot be set: the broker's `auto.create.topics.enable` decides",
    "api_version": _NEGOTIATED,
    "bootstrap_timeout_ms": "does not exist here: `max_block_ms` bounds the first call",
    "kafka_client": "cannot be replaced",
    "metric_reporters": _NO_METRICS,
    "metrics_enabled": _NO_METRICS,
    "metrics_num_samples": _NO_METRICS,
    "metrics_sample_window_ms": _NO_METRICS,
    "partitioner": "cannot be replaced; pass `partition=` to `send`",
    "proxy_url": "is not supported: connections are made directly",
    "receive_message_max_bytes": "cannot be set",
    "selector": "cannot be replaced",
    "socket_options": "cannot be set; see `send_buffer_bytes` and `receive_buffer_bytes`",
    "socks5_proxy": "is not supported: connections are made directly",
    # aiokafka's
    "loop": "is not needed: `AsyncTransactionalProducer` uses the loop that runs",
    # librdkafka's and confluent-kafka's
    "api.version.request": _NEGOTIATED,
    "batch.num.messages": _OF_BYTES,
    "broker.version.fallback": _NEGOTIATED,
    "debug": _NO_LOG_CALLS,
    "delivery.report.only.error": _ONE_RECORD,
    "dr_cb": _ONE_RECORD,
    "dr_msg_cb": _ONE_RECORD,
    "enable.gapless.guarantee": "does not exist here: a record that fails ends its transaction",
    "error_cb": (
        "does not exist here: errors are raised by calls and passed to `on_delivery`, and the"
        " logger `txnproducer` has the others"
    ),
    "log_cb": _NO_LOG_CALLS,
    "log_level": _NO_LOG_CALLS,
    "logger": _NO_LOG_CALLS,
    "on_delivery": _ONE_RECORD,
    "queue.buffering.max.messages": _OF_BYTES,
    "ssl.ca.pem": f"{_INLINE_PEM} `ssl_cafile`",
    "ssl.certificate.pem": f"{_INLINE_PEM} `ssl_certfile`",
    "ssl.key.pem": f"{_INLINE_PEM} `ssl_keyfile`",
    "statistics.interval.ms": _NO_STATISTICS,
    "stats_cb": _NO_STATISTICS,
    "throttle_cb": "does not exist here: read `produce-throttle-time-max` of `producer.metrics()`",
}

UNSUPPORTED_PREFIXES: Final = {
    "sasl.oauthbearer.": _NO_OAUTH,
    "sasl.login.": _NO_LOGIN,
    "config.providers.": _PROVIDERS,
}

HARMLESS: Final[dict[str, tuple[str, ...]]] = {
    "client.dns.lookup": ("use_all_dns_ips",),
    "enable.metrics.push": ("false",),
    "interceptor.classes": ("",),
    "metric.reporters": ("",),
    "statistics.interval.ms": ("0",),
    "transaction.two.phase.commit.enable": ("false",),
}
"""Values that change nothing: accepted and ignored, so that files can be shared."""

FOREIGN_NAMES: Final[dict[str, tuple[str, str]]] = {
    "bootstrap.server": ("bootstrap_servers", ""),
    "metadata.broker.list": ("bootstrap_servers", "librdkafka"),
    "message.timeout.ms": ("delivery_timeout_ms", "librdkafka"),
    "message.max.bytes": ("max_request_size", "librdkafka"),
    "message.send.max.retries": ("retries", "librdkafka"),
    "queue.buffering.max.ms": ("linger_ms", "librdkafka"),
    "queue.buffering.max.kbytes": ("buffer_memory", "librdkafka"),
    "compression.codec": ("compression_type", "librdkafka"),
    "max.in.flight": ("max_in_flight_requests_per_connection", "librdkafka"),
    "request.required.acks": ("acks", "librdkafka"),
    "sasl.mechanisms": ("sasl_mechanism", "librdkafka"),
    "sasl.username": ("sasl_plain_username", "librdkafka"),
    "sasl.password": ("sasl_plain_password", "librdkafka"),
    "ssl.ca.location": ("ssl_cafile", "librdkafka"),
    "ssl.certificate.location": ("ssl_certfile", "librdkafka"),
    "ssl.key.location": ("ssl_keyfile", "librdkafka"),
    "ssl.crl.location": ("ssl_crlfile", "librdkafka"),
    "socket.timeout.ms": ("request_timeout_ms", "librdkafka"),
    "socket.send.buffer.bytes": ("send_buffer_bytes", "librdkafka"),
    "socket.receive.buffer.bytes": ("receive_buffer_bytes", "librdkafka"),
    "topic.metadata.refresh.interval.ms": ("metadata_max_age_ms", "librdkafka"),
    "oauth_cb": ("sasl_oauth_token_provider", "confluent-kafka"),
    "enable.ssl.certificate.verification": ("ssl_context", "librdkafka"),
    "max_batch_size": ("batch_size", "aiokafka"),
}


CONSUMER_KEYS: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "client.rack",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "value.deserializer",
    }
)
"""Keys of Java's consumer alone, which a file may have if a consumer shares it."""


def reason_unsupported(dotted_or_plain: str) -> str | None:
    """Return why a key of another client is not supported, or None if it is not such a key."""
    # Names of kafka-python have underscores in the table, Java's have dots.
    for key in (dotted_or_plain, dotted_or_plain.replace("_", ".")):
        if key in UNSUPPORTED:
            return UNSUPPORTED[key]
        for prefix, reason in UNSUPPORTED_PREFIXES.items():
            if key.startswith(prefix):
                return reason
    return None


def is_harmless(key: str, value: object) -> bool:
    """Return whether an unsupported key has a value that changes nothing."""
    # Programs pass empty lists where property files have an empty text.
    text = "" if value is None or value in ([], ()) else str(value)
    return text.strip().lower() in HARMLESS.get(key.replace("_", "."), ())
