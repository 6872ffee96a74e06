"""The end of one transactional operation, for its caller to wait for.

Owns: `TransactionalRequestResult`. Must not know: how to wait (the shell does), which operation it
belongs to.

Rules:
* It completes once; a second end is ignored. A commit that succeeded stays so, even if the
  producer fails before the caller asks (Java lets the later error replace the success).
* Completed is not acknowledged. The caller acknowledges when its waiting call has returned, or has
  raised the operation's own error; a time-out or an interrupt acknowledges nothing. Until then the
  same call, made again, gets this same result, and other calls are refused.
"""

from __future__ import annotations

from txnproducer.errors import KafkaError


class TransactionalRequestResult:
    """A one-shot result.

    Args:
        operation: the method that it belongs to; used in messages.

    Attributes:
        error: the operation's error; None while it goes on, and after success.
        is_completed: whether it has ended.
        is_acked: whether the caller has seen the end.
    """

    __slots__ = ("error", "is_acked", "is_completed", "operation")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.error: KafkaError | None = None
        self.is_completed = False
        self.is_acked = False

    @property
    def is_successful(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed and self.error is None

    def done(self) -> None:
        """End well."""
        self.is_completed = True

    def fail(self, error: KafkaError) -> None:
        """End with an error, unless it has ended already."""
        if not self.is_completed:
            self.is_completed = True
            self.error = error

    def acknowledge(self) -> None:
        """Note that the caller has seen the end."""
        self.is_acked = True

    def __repr__(self) -> str:
        end = "pending" if not self.is_completed else self.error or "done"
        return f"<TransactionalRequestResult {self.operation}: {end}>"
