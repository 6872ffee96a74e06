"""The record of a build: of which sources the compiled modules in a checkout were made.

`setup.py` writes it, by loading this file alone, and `implementation` reads it. It compares
contents and not times, since a change of branches and back touches files and changes none.

Owns: the record's file and its format. Must not know: compilers, and any other module.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Final

_FILE: Final = "_record/compiled_from.json"


def sources_of(compiled: Path, package: Path) -> list[Path]:
    """Return the sources of a compiled module that are in the checkout."""
    module = compiled.name.partition(".")[0]
    folder = compiled.parent.parent if compiled.parent.name == "_compiled" else compiled.parent
    types = package.parent / "compiled" / folder.relative_to(package.parent)
    found = [folder / f"{module}.py", folder / f"{module}.pyx", types / f"{module}.pxd"]
    # The twins' shared C headers are sources of the `.pyx` as well.
    if found[1].exists():
        found += sorted(folder.glob("*.h"))
    return [path for path in found if path.exists()]


def changed_source(compiled: Path, package: Path, record: dict[str, int]) -> Path | None:
    """Return a source of a compiled module that it was not made of, or None.

    Args:
        compiled: the module.
        package: the folder of the whole package.
        record: of the build, by `read_record`.
    """
    for source in sources_of(compiled, package):
        if record.get(_key(compiled, source, package)) != _checksum(source):
            return source
    return None


def write_record(compiled: list[Path], package: Path) -> None:
    """Note the present sources of modules that have just been compiled."""
    record = {
        _key(module, source, package): _checksum(source)
        for module in compiled
        for source in sources_of(module, package)
    }
    (package / _FILE).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")


def read_record(package: Path) -> dict[str, int]:
    """Return the checksums of the sources. It is empty if nothing was compiled here."""
    path = package / _FILE
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _key(compiled: Path, source: Path, package: Path) -> str:
    module = compiled.relative_to(package).as_posix().partition(".")[0]
    return f"{module} < {source.relative_to(package.parent).as_posix()}"


def _checksum(source: Path) -> int:
    return zlib.crc32(source.read_bytes())
