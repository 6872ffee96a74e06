"""SQLAlchemy, or the command that installs it."""

from __future__ import annotations

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "an outbox needs SQLAlchemy: pip install 'txnproducer[outbox]', and the driver of your"
        " database",
        name=error.name,
    ) from error

__all__ = ["sa"]
