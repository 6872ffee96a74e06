"""A FastAPI service: a POST writes two records in one transaction, and its answer is the truth.

The answers, and why:

* 201: committed. Both records are visible, or will be in a moment.
* 503: aborted. Nothing was written, and nothing will be. `Retry-After` invites the client to send
  the request again. `pool.run` has tried it several times already.
* 504: in doubt. The commit was sent, and no broker has said how it ended. 503 would be a lie.
* 500: aborted, and the same request would fail again: the text names the mistake.

After a 504, and after an answer that was lost on the way, the client repeats the request with the
same `Idempotency-Key`. It is the key of both records, so a reader takes the first record of a key
and leaves out the second.

It needs: pip install '.[testing]' fastapi httpx uvicorn
Run it: python examples/fastapi_service.py [bootstrap servers]
Serve with it: uvicorn --factory fastapi_service:make_app (KAFKA=host:port in the environment)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from _cluster import cluster, create_topic, new_name, values_in
from _server import has_ended_well, listening, server_program
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

from txnproducer.aio import AsyncProducerPool, AsyncTransaction
from txnproducer.errors import KafkaError

REQUESTS = 200
# Each request that writes has a producer of its own. More of them at the same time than this wait.
AT_ONCE = 8


class Order(BaseModel):
    """The body of a request."""

    customer: str
    amount: int


def make_app(**settings: Any) -> FastAPI:
    """Return the service. The settings are those of its producers."""
    servers, service = os.environ["KAFKA"], os.environ.get("SERVICE", "shop")
    orders, payments = os.environ.get("ORDERS", "orders"), os.environ.get("PAYMENTS", "payments")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # In the event loop that serves, and closed after the last request was answered.
        async with AsyncProducerPool(servers, service, linger_ms=0, **settings) as app.state.pool:
            app.state.at_once = asyncio.Semaphore(AT_ONCE)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def take(order: Order, idempotency_key: Annotated[str, Header()]) -> dict[str, str]:
        key = idempotency_key.encode()

        async def write(transaction: AsyncTransaction) -> None:
            await transaction.send(orders, order.model_dump_json().encode(), key=key)
            await transaction.send(payments, b"%d" % order.amount, key=key)

        try:
            async with app.state.at_once:
                await app.state.pool.run(write, timeout=10)
        except KafkaError as error:
            raise answer_to(error) from error
        return {"outcome": "committed"}

    @app.get("/health")
    async def health() -> None:
        if app.state.pool.failure is not None:
            raise HTTPException(503, f"replace this process: {app.state.pool.failure}")

    return app


def answer_to(error: KafkaError) -> HTTPException:
    """Return the answer after an error of `pool.run`: all but one say that nothing was written."""
    if error.recovery == "unknown":
        return HTTPException(504, f"in doubt: repeat it with the same Idempotency-Key ({error})")
    if error.recovery == "fix":
        return HTTPException(500, f"aborted, and would be again: {error}")
    return HTTPException(503, f"aborted: send it again ({error})", {"Retry-After": "1"})


# --- the clients ---------------------------------------------------------------------------------


def post_all(address: str) -> list[int]:
    """Send all orders, and the first one a second time, as a client that has lost its answer."""
    with httpx.Client(base_url=address, timeout=30) as client, ThreadPoolExecutor(16) as threads:

        def post(number: int) -> int:
            order = {"customer": f"customer {number}", "amount": number}
            key = {"Idempotency-Key": f"order {number}"}
            return int(client.post("/orders", json=order, headers=key).status_code)

        return list(threads.map(post, [*range(REQUESTS), 0]))


def main() -> None:
    with cluster() as bootstrap_servers:
        orders = create_topic(bootstrap_servers, "orders")
        payments = create_topic(bootstrap_servers, "payments")
        loop = os.environ.get("LOOP", "asyncio")  # or uvloop
        with (
            listening() as (address, number),
            server_program(
                "uvicorn",
                *("--factory", "fastapi_service:make_app", "--fd", number),
                *("--loop", loop, "--log-level", "warning"),
                KAFKA=bootstrap_servers,
                SERVICE=new_name("shop"),
                ORDERS=orders,
                PAYMENTS=payments,
            ) as server,
        ):
            answers = post_all(address)
        print(f"the server has ended in order: {has_ended_well(server)}")
        print(f"{answers.count(201)} requests answered with 201")
        found = values_in(bootstrap_servers, orders)
        print(f"read_committed sees {len(found)} orders, {len(set(found))} of them different")
        print(f"and {len(values_in(bootstrap_servers, payments))} payments")


if __name__ == "__main__":
    main()
