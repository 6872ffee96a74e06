"""One connection per call, with a time bound and errors of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import kafka.errors
from kafka import KafkaAdminClient
from tenacity import (
    RetryCallState,
    Retrying,
    retry_base,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from txnproducer._wire.called_tokens import with_token_provider
from txnproducer.errors import (
    DisconnectError,
    InvalidMetadataError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotControllerError,
    RetriableError,
    UnknownTopicOrPartitionError,
    error_for_code,
)

from ._reachable import why_unreachable
from ._sockets import owned_connections

DEFAULT_TIMEOUT = 30.0
# Between two attempts, and between two looks at an answer that is not final.
POLL_SECONDS = 0.1
# How long a new topic may be unknown to one of the brokers.
SETTLE_SECONDS = 3.0
# A broker cannot be reached, or the cluster named one that it does not list: it is starting, or
# has just gone. A new connection asks again.
_GONE = (kafka.errors.RetriableError, kafka.errors.UnknownBrokerIdError)
UNSETTLED = (UnknownTopicOrPartitionError.code, LeaderNotAvailableError.code)

_MOST_NAMED = 10

T = TypeVar("T")


class Asker(Protocol):
    """A function that puts a question to a cluster, as `ask` does."""

    def __call__(
        self,
        bootstrap_servers: str,
        question: Callable[[KafkaAdminClient], T],
        timeout: float = DEFAULT_TIMEOUT,
        **security: Any,
    ) -> T:
        """Return the question's answer."""


@contextlib.contextmanager
def connect(
    bootstrap_servers: str, timeout: float = DEFAULT_TIMEOUT, **security: Any
) -> Iterator[KafkaAdminClient]:
    """Connect to a cluster for the length of a `with` block.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        timeout: seconds to wait for a broker, and for each answer.
        **security: kafka-python's security settings. A `sasl_oauth_token_provider` may also be a
            function, as for a producer.

    Yields:
        kafka-python's admin client. Its errors leave the block as errors of this package.

    Raises:
        KafkaTimeoutError: no broker answered in time.
        DisconnectError: the broker is gone, or the connection was lost.
        KafkaError: any other failure, by the broker's error code.
    """
    # In this order, so that an error of the cleanup becomes one of ours as well.
    is_direct = "proxy_url" not in security
    with our_errors(bootstrap_servers, is_direct=is_direct), contextlib.ExitStack() as cleanup:
        owned = cleanup.enter_context(owned_connections())
        client = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers.split(","),
            bootstrap_timeout_ms=to_ms(timeout),
            request_timeout_ms=to_ms(timeout),
            # Its first attempt often meets a broker that is just starting, and kafka-python's own
            # limit of 30 s could be more than all of the time there is.
            reconnect_backoff_max_ms=500,
            # A proxy that the user names wins, since no broker may be reachable without it.
            **{**owned, **with_token_provider(security)},
        )
        # Called first, since such a stack runs backwards: the client ends before its connections.
        cleanup.callback(client.close)
        yield client


@contextlib.contextmanager
def our_errors(bootstrap_servers: str, *, is_direct: bool = True) -> Iterator[None]:
    """Turn the errors that kafka-python raises in a block into errors of this package.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        is_direct: whether they are reached without a proxy, so that an attempt to connect tells.
    """
    try:
        yield
    # Before its base class: this text names the most frequent causes.
    except kafka.errors.KafkaTimeoutError as error:
        # kafka-python tries again after a refused login or certificate until the time is over.
        why = (is_direct and why_unreachable(bootstrap_servers)) or (
            "a wrong password, or a certificate that is not trusted, shows itself like this as"
            f" well ({error})"
        )
        raise KafkaTimeoutError(f"{bootstrap_servers} did not answer in time: {why}") from error
    except kafka.errors.KafkaError as error:
        code = getattr(error, "errno", None)
        if isinstance(code, int) and code > 0:
            raise error_for_code(code, str(error)) from error
        # kafka-python's own errors have no code of the protocol.
        if isinstance(error, _GONE):
            raise DisconnectError(f"{bootstrap_servers}: {error}") from error
        # Its text begins with its name.
        raise KafkaError(str(error)) from error
    except RuntimeError as error:
        # Two brokers in a row said that another one is the controller.
        if "active controller" not in str(error):
            raise
        raise NotControllerError(f"{bootstrap_servers}: {error}") from error


def to_ms(seconds: float) -> int:
    # kafka-python takes 0 for "not given", and would wait as long as it does by default.
    return max(1, int(seconds * 1000))


def some(names: Sequence[object]) -> str:
    """Return the first of many names, for the text of an error."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(map(str, names[:_MOST_NAMED]))}{more}"


def ask(
    bootstrap_servers: str,
    question: Callable[[KafkaAdminClient], T],
    timeout: float = DEFAULT_TIMEOUT,
    **security: Any,
) -> T:
    """Put a question to a cluster. Repeat it on a new connection after a passing failure.

    kafka-python asks any broker that the cluster named, and one of them may just have died.

    Args:
        bootstrap_servers: "host:port", several separated by commas.
        question: asks the connected client; it may be called twice.
        timeout: seconds.
        **security: kafka-python's security settings.

    Raises:
        KafkaTimeoutError: the cluster did not answer in time.
        KafkaError: the cluster refused.
    """

    def once() -> T:
        with connect(bootstrap_servers, timeout, **security) as client:
            return question(client)

    return again_while_passing(once, timeout)


def again_while_passing(once: Callable[[], T], timeout: float) -> T:
    """Call a function again while it fails for a passing reason, up to a time-out in seconds."""
    # A broker that does not answer has used all of the time; another attempt would double it. An
    # error about metadata is an answer: the questions themselves wait for a topic that is new.
    is_passing = retry_if_exception_type(RetriableError) & retry_if_not_exception_type(
        (KafkaTimeoutError, InvalidMetadataError)
    )
    return again_while(is_passing, once, timeout)


def again_while(is_passing: retry_base, once: Callable[[], T], timeout: float) -> T:
    """Call a function again while its error is a passing one. Raise the last one in the end."""
    return Retrying(
        stop=stop_after_delay(timeout),
        wait=wait_fixed(POLL_SECONDS),
        retry=is_passing,
        reraise=True,
    )(once)


def poll_while(question: Callable[[], T], is_unfinished: Callable[[T], bool], timeout: float) -> T:
    """Ask until the answer is final or the time is over, and return the last answer."""
    return Retrying(
        stop=stop_after_delay(timeout),
        wait=wait_fixed(POLL_SECONDS),
        retry=retry_if_result(is_unfinished),
        retry_error_callback=_last_result,
    )(question)


def _last_result(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome else None
