"""The mark of compiled modules in a checkout: of which sources they were made.

It compares contents and not times: a change of branches and back touches files and changes none,
and a copy of another version may keep its times. `setup.py` adds the mark to the C of each module,
by loading this file alone, so no module can be taken for one of another build.

Owns: the mark, and the list of sources. Must not know: compilers, and any other module.
"""

from __future__ import annotations

import zlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

_PACKAGE: Final = "txnproducer"
_TYPES: Final = "compiled"


def is_checkout(root: Path) -> bool:
    """Return whether a folder has the sources of the compiled modules. An installation has not."""
    return (root / _TYPES / _PACKAGE).is_dir()


def mark_of_sources(root: Path) -> str:
    """Return the mark of the present sources.

    It is of all sources together, since the compiled modules rely on the types of each other.

    Args:
        root: the checkout's folder.
    """
    checksum = 0
    for source in sources(root):
        content = source.read_bytes()
        # The name and the size as well: contents that move between files make other sources.
        named = f"{source.relative_to(root).as_posix()} {len(content)}\n".encode()
        checksum = zlib.crc32(named + content, checksum)
    return f"{_PACKAGE} compiled from {checksum:08x}"


def sources(root: Path) -> list[Path]:
    """Return the sources of all compiled modules, in the order of their names."""
    types = list((root / _TYPES).rglob("*.pxd"))
    package = root / _PACKAGE
    written = [*package.rglob("*.pyx"), *package.rglob("*.h")]
    # A module that is compiled as it is has types.
    as_they_are = [root / path.relative_to(root / _TYPES).with_suffix(".py") for path in types]
    return sorted([*types, *written, *(path for path in as_they_are if path.exists())])


def has_mark(built: Path, mark: str) -> bool:
    """Return whether a compiled module, or its C, was made of the sources with a mark."""
    return mark.encode() in built.read_bytes()


def module_of_other_sources(root: Path) -> Path | None:
    """Return a compiled module of this interpreter that other sources made, or None."""
    mark = mark_of_sources(root)
    compiled = (root / _PACKAGE).rglob(f"*{EXTENSION_SUFFIXES[0]}")
    return next((module for module in compiled if not has_mark(module, mark)), None)
