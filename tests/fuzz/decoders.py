"""Feed damaged answers to every decoder.

    python -m tests.fuzz.decoders --count 100000 [--seed S] [--only N]

An answer may be refused (a `KafkaError`, for which the connection is given up), or taken as well
formed: then kafka-python reads the same from it, it names only what was asked about, and no leader
changes but those that it names. Nothing else may be raised, and nothing may take much time or
memory. A failure prints the seed and the number of its case.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

from tests.fuzz.limits import limit_memory, limit_time
from tests.fuzz.mutations import Damaged, damage
from tests.fuzz.samples import U0, Sample, samples
from txnproducer._core.metadata import NO_LEADER, Metadata
from txnproducer._protocol import messages as m
from txnproducer._wire import codec
from txnproducer.errors import ErrorCode, KafkaError
from txnproducer.records import TopicPartition

HEADROOM_BYTES = 512 * 1024 * 1024
# Of the processor, not of the clock: a thousand times what the slowest one needs.
MOST_CPU_S = 2.0
_MOST_MISSING = 100_000
_BASE = m.MetadataResponse(
    (m.BrokerNode(2, "h", 9), m.BrokerNode(3, "h", 10)),
    (
        m.TopicMetadata("t", tuple(m.PartitionMetadata(i, 2 + i, 5) for i in (0, 1))),
        m.TopicMetadata("u", (m.PartitionMetadata(0, 3, 5),)),
    ),
)


class WrongAnswerError(AssertionError):
    """An answer was taken that must not be."""


def main() -> None:
    arguments = _arguments()
    seed: int = arguments.seed
    print(f"seed {seed}", flush=True)
    good = samples()
    limit_memory(HEADROOM_BYTES)
    limit_time(60 + arguments.count / 500)
    numbers = range(arguments.count) if arguments.only is None else [arguments.only]
    taken = 0
    for number in numbers:
        rng = random.Random(f"{seed}:{number}")
        sample, other = rng.choice(good), rng.choice(good)
        damaged = damage(rng, sample.payload, other.payload)
        try:
            taken += _is_taken(sample, damaged)
        except BaseException as error:
            print(
                f"{type(error).__name__}: {sample.name} after {damaged.kinds}: "
                f"{damaged.payload[:300].hex()}\nagain: python -m tests.fuzz.decoders "
                f"--seed {seed} --only {number}",
                file=sys.stderr,
            )
            raise
    print(f"{len(numbers)} answers: {taken} taken, {len(numbers) - taken} refused")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--only", type=int)
    return parser.parse_args()


def _is_taken(sample: Sample, damaged: Damaged) -> bool:
    started = time.thread_time()
    try:
        answer = sample.read(damaged.payload)
    except KafkaError:
        return False
    finally:
        took = time.thread_time() - started
        if took > MOST_CPU_S:
            raise WrongAnswerError(f"reading took {took:.1f} s")
    if damaged.is_surely_bad:
        raise WrongAnswerError(f"read as {answer!r}")
    if sample.body is not None:
        _compare_with_kafka_python(sample, damaged.payload, answer)
        judge(sample.body, answer)
    return True


def _compare_with_kafka_python(sample: Sample, payload: bytes, answer: Any) -> None:
    assert sample.body is not None
    schema, convert = codec._DECODERS[type(sample.body)]
    reference = convert(schema.decode(payload, version=sample.version, header=True), sample.body)
    if answer != reference:
        raise WrongAnswerError(f"read as {answer!r}, by kafka-python as {reference!r}")


# --- what was taken -----------------------------------------------------------------------------


def judge(body: m.Request, answer: Any) -> None:
    """Check an answer that a decoder has accepted."""
    match body, answer:
        case m.MetadataRequest(), m.MetadataResponse():
            _judge_nodes(answer.brokers)
            _judge_leaders(body, answer)
        case m.FindCoordinatorRequest(), m.FindCoordinatorResponse():
            (found,) = answer.coordinators
            _check(found.key == body.key, found)
            if found.error_code == ErrorCode.NONE:
                _judge_nodes((found.node,))
        case m.InitProducerIdRequest(), m.InitProducerIdResponse():
            is_told = answer.producer_id >= 0 and answer.producer_epoch >= 0
            _check(bool(answer.error_code) or is_told, answer)
        case m.ProduceRequest(), m.ProduceResponse():
            _judge_nodes(answer.nodes)
            _judge_keys(
                [part.topic_partition for part in body.partitions],
                [part.topic_partition for part in answer.partitions],
            )
        case m.AddPartitionsToTxnRequest(), m.AddPartitionsToTxnResponse():
            _judge_keys(body.partitions, [result.topic_partition for result in answer.results])
        case m.TxnOffsetCommitRequest(), m.TxnOffsetCommitResponse():
            _judge_keys(
                [where for where, _ in body.offsets],
                [result.topic_partition for result in answer.results],
            )
        case m.DescribeTransactionsRequest(), m.DescribeTransactionsResponse():
            told = [transaction.transactional_id for transaction in answer.transactions]
            _judge_keys(body.transactional_ids, told)


def _check(is_good: bool, what: object) -> None:
    if not is_good:
        raise WrongAnswerError(repr(what))


def _judge_nodes(nodes: Any) -> None:
    _check(len({node.node_id for node in nodes}) == len(nodes), nodes)
    for node in nodes:
        is_address = isinstance(node.host, str) and node.host and 0 < node.port < 65_536
        _check(bool(is_address) and node.node_id >= 0, node)


def _judge_keys(asked: Any, told: Any) -> None:
    _check(len(set(told)) == len(told) and set(told) <= set(asked), told)


def _judge_leaders(body: m.MetadataRequest, answer: m.MetadataResponse) -> None:
    metadata = Metadata(
        (),
        retry_backoff_ms=1,
        retry_backoff_max_ms=1,
        max_age_ms=1,
        max_idle_ms=1000,
        rng=random.Random(1),
    )
    for topic in ("t", "u"):
        metadata.add_topic(topic, 0)
    metadata.handle_response(m.MetadataRequest(("t", "u")), _BASE, 0)
    metadata.handle_response(body, answer, 0)
    _check(metadata.leader_of(U0) == (3, 5), "the leader of a topic that was not asked about")
    named = {
        TopicPartition(topic.topic, part.partition): part.leader_id
        for topic in answer.topics
        for part in topic.partitions
    }
    snapshot = metadata.topics.get("t")
    if snapshot is None or not answer.topics:
        return
    _check(snapshot.partition_count <= len(named) + _MOST_MISSING, snapshot.partition_count)
    for partition in range(min(snapshot.partition_count, 10)):
        where = TopicPartition("t", partition)
        leader_id, _ = metadata.leader_of(where)
        before = 2 + partition if partition < 2 else NO_LEADER
        _check(leader_id in {named.get(where, NO_LEADER), before}, (where, leader_id))


if __name__ == "__main__":
    main()
