"""gunicorn's configuration for gunicorn_service.py."""

from __future__ import annotations

from typing import Any

workers = 4
# A request is answered after its transaction, so the end has to wait longer than one lasts.
graceful_timeout = 30


def worker_exit(server: Any, worker: Any) -> None:  # noqa: ARG001 - gunicorn names them
    """Close the producers of a worker that ends, after its last request."""
    from gunicorn_service import pool  # here, since the worker loads it after this file

    pool.close(timeout=10)
