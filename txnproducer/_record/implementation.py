"""The choice between compiled and Python code, for the work on each record and batch.

There are two kinds of compiled modules. The code for the bytes of records has twins, one of them
written in Cython: `chosen` picks one. The code that decides (states, numbers, queues) has one
source, which is compiled unchanged and found first if it lies in a package's `_compiled`
(`places_of_modules`).

Owns: the choice, for the whole package. `TXNPRODUCER_IMPL=python` or `cython` sets it. Otherwise
the compiled modules are used if this installation has them. If it has none, that is logged once,
as a warning: everything works, but sends more slowly. Compiled modules that exist and are not used
are a RuntimeWarning, since they are a mistake of the installation.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txnproducer._record.compiled_sources import is_checkout, module_of_other_sources

_LOG = logging.getLogger(__name__)

NAMES: Final = ("python", "cython")
_COMPILED: Final = "txnproducer._record._speedups"
_ROOT: Final = Path(__file__).parent.parent.parent


def implementation_name(wanted: str | None) -> str:
    """Return the implementation that `TXNPRODUCER_IMPL` names, or the best one available.

    Raises:
        ImportError: the name is not an implementation, or that one is not installed.
    """
    name = (wanted or "").strip().lower()
    if name and name not in NAMES:
        raise ImportError(
            f"TXNPRODUCER_IMPL must be python or cython, not {wanted!r}; unset it for the best"
            " that this installation has"
        )
    if name == "python":
        return name
    try:
        import_module(_COMPILED)
        refuse_other_sources(_ROOT)
    except ImportError as error:
        # A name is a demand, as of a benchmark or a test: nothing else may run under it.
        if name:
            raise ImportError(
                f"TXNPRODUCER_IMPL={name} demands the compiled parts, and this installation"
                f" cannot use any ({error}). Compile them again, unset it, or set"
                " TXNPRODUCER_IMPL=python"
            ) from error
        _warn_not_compiled(error)
        return "python"
    return "cython"


def _warn_not_compiled(why: ImportError) -> None:
    """Report that the compiled parts are not used, with the reason."""
    # Not compiled is only slower, and may be meant. Every other reason is a broken installation.
    if why.name == _COMPILED and isinstance(why, ModuleNotFoundError):
        _LOG.warning(
            "txnproducer runs without its compiled parts (%s): records are sent more slowly;"
            " reinstall it where a C compiler is at hand, or set TXNPRODUCER_IMPL=python",
            why,
        )
        return
    warnings.warn(
        f"txnproducer does not use its compiled parts ({why}): records are sent more slowly;"
        " compile them again, or set TXNPRODUCER_IMPL=python",
        RuntimeWarning,
        stacklevel=2,
    )


def refuse_other_sources(root: Path) -> None:
    """Refuse compiled modules that were made of other sources: a change would have no effect.

    This applies only in a checkout. Installed files are not edited.

    Args:
        root: the folder that has the package.

    Raises:
        ImportError: a compiled module was made of other sources than those in the checkout.
    """
    other = module_of_other_sources(root) if is_checkout(root) else None
    if other is not None:
        raise ImportError(f"{other.name} was made of other sources than those in {root}")


def chosen(python_module: str, compiled_module: str, name: str) -> Any:
    """Return a class or a function of the implementation in use.

    Args:
        python_module: the module with the Python version.
        compiled_module: the module with its compiled twin.
        name: the name in both modules.
    """
    return getattr(import_module(compiled_module if IMPL == "cython" else python_module), name)


def places_of_modules(package_path: Sequence[str]) -> list[str]:
    """Return the folders of a package's modules: compiled ones first, if they are used.

    Args:
        package_path: the package's `__path__`.
    """
    compiled = [str(Path(package_path[0]) / "_compiled")] if IMPL == "cython" else []
    return [*compiled, *package_path]


IMPL: Final = implementation_name(os.environ.get("TXNPRODUCER_IMPL"))
"""The implementation in use."""

# Type checkers see the Python twins, since the compiled ones have no types for them.
if TYPE_CHECKING:
    from .murmur2 import murmur2 as murmur2
    from .record_buffer import RecordBuffer as RecordBuffer
    from .rows import Rows as Rows
    from .rows import first_not_bytes as first_not_bytes
else:
    murmur2 = chosen("txnproducer._record.murmur2", _COMPILED, "murmur2")
    RecordBuffer = chosen("txnproducer._record.record_buffer", _COMPILED, "RecordBuffer")
    Rows = chosen("txnproducer._record.rows", _COMPILED, "Rows")
    first_not_bytes = chosen("txnproducer._record.rows", _COMPILED, "first_not_bytes")
