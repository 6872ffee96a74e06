"""The producer for asyncio: the same core, I/O thread and lock, with calls that are awaited.

There is no executor and no second buffer. A task that has to wait is woken by the I/O thread, as a
thread is; each event loop once a turn for all of its tasks. It must not know the states of the
core, nor how a call is begun: it takes the steps of the producer for threads.
"""

from __future__ import annotations

from txnproducer.aio.pool import AsyncProducerPool
from txnproducer.aio.producer import AsyncTransactionalProducer
from txnproducer.aio.transaction import AsyncTransaction

__all__ = ["AsyncProducerPool", "AsyncTransaction", "AsyncTransactionalProducer"]
