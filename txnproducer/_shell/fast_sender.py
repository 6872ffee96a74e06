"""The compiled fast path of `send`, or its stand-in in pure Python, where no record is fast."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from txnproducer._core.batches.results import FutureRecordMetadata
from txnproducer._record.implementation import IMPL

__all__ = ["FastSender", "compiled_send"]

compiled_send: Callable[..., Any] | None = None

if TYPE_CHECKING or IMPL != "cython":

    class FastSender:
        """See `_fast_send.pyx`."""

        def _enable_fast_path(self, *_: object) -> None: ...

        def _disable_fast_path(self) -> None: ...

        def _try_serialized(self, *_: object) -> FutureRecordMetadata | None:
            return None

else:
    _compiled = import_module("txnproducer._shell._fast_send")
    FastSender, compiled_send = _compiled.FastSender, _compiled.send
