"""Another process goes on with a transaction: it adds offsets, commits or aborts."""

from __future__ import annotations

import pytest

from tests.core.on_cluster import committed, is_all_decided, make_cluster, started
from tests.core.sharing import (
    GROUP_OF_NOBODY,
    VERSIONS,
    calls_of,
    lease_of,
    leased,
    participant,
    resumed,
    share,
    write,
)
from tests.harness import TP0, TP1
from txnproducer._core.transactions.state import TransactionState
from txnproducer._protocol.messages import ApiKey
from txnproducer.errors import IllegalStateError, KafkaError, TransactionAbortableError
from txnproducer.records import OffsetAndMetadata


@VERSIONS
@pytest.mark.parametrize("is_commit", [False, True])
def test_a_transaction_is_handed_over(version, is_commit):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.transact(b"before")
    opener.begin()
    opener.write(b"1")
    lease = lease_of(opener, 0)
    assert lease.is_started
    assert not lease.claims
    opener.core.initiate_close(opener.now_ms)
    opener.run_until(lambda: opener.core.is_closed)
    heir = resumed(cluster, lease)
    with pytest.raises(IllegalStateError, match="written by another process"):
        heir.send("topic", b"not mine")
    heir.complete(
        heir.core.send_offsets_to_transaction({TP0: OffsetAndMetadata(3)}, GROUP_OF_NOBODY)
    )
    heir.end(is_commit=is_commit)
    assert is_all_decided(cluster)
    heir.transact(b"next")
    values = [*committed(cluster), *committed(cluster, TP1)]
    assert sorted(values) == sorted([b"before", *([b"1"] if is_commit else []), b"next"])


@VERSIONS
@pytest.mark.parametrize("is_written", [False, True])
def test_a_transaction_handed_over_is_handed_on_with_the_offsets_added(version, is_written):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.begin()
    if is_written:
        opener.write(b"1")
    heir = resumed(cluster, lease_of(opener, 0))
    with pytest.raises(IllegalStateError, match=r"lease\(\) is refused"):
        heir.core.begin_lease(1)
    heir.complete(
        heir.core.send_offsets_to_transaction({TP0: OffsetAndMetadata(3)}, GROUP_OF_NOBODY)
    )
    lease = lease_of(heir, 0)
    assert lease.is_started
    heir.core.initiate_close(heir.now_ms)
    heir.run_until(lambda: heir.core.is_closed)
    assert committed(cluster) == []
    resumed(cluster, lease).end(is_commit=True)
    assert is_all_decided(cluster)
    assert committed(cluster) == ([b"1"] if is_written else [])


@VERSIONS
def test_an_abort_of_what_another_process_has_committed_does_not_succeed(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    lease = leased(holder, 1)
    straggler = participant(cluster, lease, 0)
    write(straggler, TP0, b"1")
    heir = resumed(cluster, lease)
    heir.core.adopt([straggler.core.give_receipt()])
    heir.end(is_commit=True)
    with pytest.raises(KafkaError):
        holder.end(is_commit=False)
    assert holder.state is TransactionState.FATAL_ERROR
    assert committed(cluster) == [b"1"]


@VERSIONS
def test_a_producer_that_has_handed_over_does_nothing_more(version):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.begin()
    opener.write(b"1")
    lease_of(opener, 0)
    for call in calls_of(opener).values():
        with pytest.raises(IllegalStateError):
            call()
    with pytest.raises(IllegalStateError, match="handed over"):
        opener.send("topic", b"2")


@VERSIONS
def test_nothing_is_handed_over_with_records_on_their_way(version):
    opener = started(make_cluster(version))
    opener.begin()
    opener.send("topic", b"1")
    with pytest.raises(IllegalStateError, match=r"flush\(\) first"):
        opener.core.begin_lease(0)


@VERSIONS
def test_offsets_of_which_an_answer_was_lost_can_only_be_aborted(version):
    cluster = make_cluster(version)
    opener = started(cluster)
    offsets = {TP0: OffsetAndMetadata(3)}
    opener.begin()
    opener.lost.append(ApiKey.TXN_OFFSET_COMMIT)
    opener.complete(opener.core.send_offsets_to_transaction(offsets, GROUP_OF_NOBODY))
    with pytest.raises(TransactionAbortableError, match="an answer was lost"):
        opener.core.begin_lease(0)
    opener.end(is_commit=False)
    opener.begin()
    opener.complete(opener.core.send_offsets_to_transaction(offsets, GROUP_OF_NOBODY))
    resumed(cluster, lease_of(opener, 0)).end(is_commit=True)
    assert is_all_decided(cluster)


@VERSIONS
def test_an_empty_transaction_is_handed_over(version):
    cluster = make_cluster(version)
    opener = started(cluster)
    opener.begin()
    heir = resumed(cluster, lease_of(opener, 0))
    heir.end(is_commit=True)
    assert not heir.client.sent(ApiKey.END_TXN)


@VERSIONS
def test_another_process_commits_with_the_receipts_of_a_lease(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [b"1"])
    heir = resumed(cluster, holder.manager.share.lease)
    with pytest.raises(IllegalStateError, match="missing"):
        heir.core.begin_commit()
    heir.core.adopt(receipts)
    heir.end(is_commit=True)
    assert committed(cluster) == [b"1"]
    heir.core.adopt(share(cluster, heir, [b"2"]))
    heir.end(is_commit=True)
    result = holder.core.begin_abort()
    holder.run_until(lambda: result.is_completed)
    assert result.error is not None
    assert committed(cluster) == [b"1", b"2"]


def test_a_producer_with_an_identity_cannot_resume():
    cluster = make_cluster()
    holder = started(cluster)
    lease = leased(holder)
    with pytest.raises(IllegalStateError):
        started(cluster, transactional_id="other").core.resume(lease)


@VERSIONS
def test_offsets_that_the_holder_added_are_committed_by_the_producer_that_resumes(version):
    cluster = make_cluster(version)
    holder = started(cluster)
    receipts = share(cluster, holder, [])
    offsets = {TP0: OffsetAndMetadata(9)}
    holder.complete(holder.core.send_offsets_to_transaction(offsets, GROUP_OF_NOBODY))
    heir = resumed(cluster, holder.manager.share.lease)
    heir.core.adopt(receipts)
    heir.end(is_commit=True)
    assert cluster.group_offsets("ledger").group("ledger").committed[TP0].offset == 9


@pytest.mark.parametrize("version", [1, 2])
def test_closing_decides_nothing_about_a_transaction_handed_over(version):
    opener = started(make_cluster(version))
    opener.begin()
    opener.write(b"1")
    lease_of(opener, 0)
    opener.core.force_close(opener.now_ms)
    assert opener.state is TransactionState.IN_TRANSACTION
