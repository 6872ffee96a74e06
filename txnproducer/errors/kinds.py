"""The base of all errors, and the kinds that show a caller the next step.

Why it exists: a caller needs one question answered when a call fails, "what now?". The kind of
the class answers it in general, the instance's `recovery` for this very failure.
Owns: `KafkaError`, the parent kinds of KIP-1050, the registry from code to class, the look-up.
Must not know: any state of a producer. The raising code sets `recovery` if the producer's state
decides otherwise than the class does.
Rules: one class per code; a class without a code of its own carries its parent's, as the Java
client's look-up by exception does. Users import all of it from `txnproducer.errors`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from .codes import ErrorCode

__all__ = [
    "ApplicationRecoverableError",
    "InvalidConfigurationError",
    "InvalidMetadataError",
    "KafkaError",
    "Recovery",
    "RefreshRetriableError",
    "RetriableError",
    "TransactionAbortableError",
    "UnknownServerError",
    "class_for_code",
    "error_for_code",
]

Recovery = Literal["resume", "abort", "restart", "fix", "unknown"]
"""The next step of the caller:

* `resume`: call the same method again; its operation goes on.
* `abort`: call `abort_transaction()`, then go on with the same producer.
* `restart`: close this producer and make a new one (with the same transactional id).
* `fix`: a person or the program must change something first: configuration, rights, the record.
  A record's future says so in a transaction as well; the commit's error says `abort` then.
* `unknown`: whether the transaction was committed is not known; find out before writing again.
"""

# Filled as the classes are made, so that no second list of them can become outdated.
_BY_CODE: dict[int, type[KafkaError]] = {}
_PRIVATE_HOMES = frozenset(f"txnproducer.errors.{name}" for name in ("kinds", "rare", "security"))
_PUBLIC_HOME = "txnproducer.errors"


class KafkaError(Exception):
    """Base of all errors that come from Kafka or from the producer's state.

    A wrong argument is a `TypeError` or a `ValueError`.

    Attributes:
        code: the broker's error code for this class; -1 if there is none.
        recovery: the next step (see `Recovery`). The class has the default. The producer sets it
            on the instance, since its state decides: the same code can require an abort in one
            place and a new producer in another.
        causes: for a time-out, the last failure of each address that could not be reached, then
            the last refusal of the request that was waited for. If the last of them is the cause
            of the time-out, it is `__cause__` as well.
    """

    __module__ = _PUBLIC_HOME

    # -1, the protocol's code for an error that has none.
    code: ClassVar[int] = ErrorCode.UNKNOWN_SERVER_ERROR
    recovery: Recovery = "restart"
    # A tuple: all errors without causes share this one, so nobody may add to it.
    causes: tuple[KafkaError, ...] = ()

    def __init__(self, message: str | None = None, *, recovery: Recovery | None = None) -> None:
        super().__init__(self.default_message() if message is None else message)
        if recovery is not None:
            self.recovery = recovery

    def __init_subclass__(
        cls, *, code: int | None = None, recovery: Recovery | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        # Tracebacks and pickles name the place from which users import the class.
        if cls.__module__ in _PRIVATE_HOMES:
            cls.__module__ = _PUBLIC_HOME
        if recovery is not None:
            cls.recovery = recovery
        if code is None:
            return
        # A second class would silently take the look-up of the first one.
        if code in _BY_CODE:
            raise TypeError(f"error code {code} already belongs to {_BY_CODE[code].__name__}")
        cls.code = ErrorCode(code)
        _BY_CODE[code] = cls

    @classmethod
    def default_message(cls) -> str:
        """Return the message of an error of this class that was raised without one."""
        # The first line of each docstring is written for users, so it is not repeated as a text.
        return (cls.__doc__ or cls.__name__).partition("\n")[0].rstrip(".")

    def __reduce__(self) -> tuple[type[KafkaError], tuple[Any, ...], dict[str, Any]]:
        """Pickle the error with its recovery, its fields and a Kafka cause.

        Exceptions lose their cause when pickled. Another library's exception may not pickle at
        all, so only causes of this package are kept.
        """
        # A copy, or this error itself would get an attribute `__cause__` in its fields.
        state = dict(self.__dict__)
        if isinstance(self.__cause__, KafkaError):
            state["__cause__"] = self.__cause__
        return type(self), self.args, state


class RetriableError(KafkaError, recovery="resume"):
    """The same request may succeed later.

    The producer retries these by itself; outside they appear as the cause of another error, and
    as `KafkaTimeoutError` from a blocking call.
    """


class RefreshRetriableError(RetriableError):
    """The same request may succeed once metadata or the coordinator was looked up again."""


class InvalidMetadataError(RefreshRetriableError):
    """The client's metadata is out of date. It asks again and retries."""


# A code as well as a kind: brokers with transactions v2 answer with it (KIP-890).
class TransactionAbortableError(
    KafkaError, code=ErrorCode.TRANSACTION_ABORTABLE, recovery="abort"
):
    """The transaction cannot be committed any more, but the producer is sound.

    Call `abort_transaction()` and go on, usually by doing the transaction's work again (KIP-890).
    """


class ApplicationRecoverableError(KafkaError, recovery="restart"):
    """This producer is at its end, but the application can go on with a new one (KIP-1050)."""


class InvalidConfigurationError(KafkaError, code=ErrorCode.INVALID_CONFIG, recovery="fix"):
    """A setting, a right or a version is wrong. Retrying cannot help until it is changed."""


class UnknownServerError(KafkaError, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """The broker met an error it has no code for, or one this version does not know.

    The broker's log tells more. It is not retriable.
    """


def class_for_code(code: int) -> type[KafkaError]:
    """Return the class of an error code; `UnknownServerError` for a code not known here.

    Raises:
        ValueError: the code is 0, which means that there is no error.
    """
    if code == ErrorCode.NONE:
        raise ValueError("code 0 (NONE) means success and has no error class")
    # As in Java: newer brokers have codes that this version cannot know.
    return _BY_CODE.get(code, UnknownServerError)


def error_for_code(code: int, message: str | None = None) -> KafkaError:
    """Return a new error for a broker's error code.

    Args:
        code: the number on the wire. One that this version does not know gives
            `UnknownServerError`, as in the Java client; the message keeps the number.
        message: the broker's own text, if it sent one.

    Returns:
        A new instance, so that a traceback or `recovery` set on it belongs to this failure alone.

    Raises:
        ValueError: the code is 0, which means that there is no error.
    """
    cls = class_for_code(code)
    if message is None:
        known = code in _BY_CODE
        # The protocol's name, since the broker's log and Kafka's documentation have it.
        name = ErrorCode(code).name if known else "a code unknown to this version"
        message = f"{name} ({code}): {cls.default_message()}"
    return cls(message)
