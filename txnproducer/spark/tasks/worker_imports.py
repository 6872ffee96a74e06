"""Importers of a Python worker. Those of Spark's own archives are dropped after each task.

Why it exists: before Spark 4.2 (SPARK-54744) a worker begins each task with
`importlib.invalidate_caches()`. Before Python 3.12 (gh-103200) each importer of a zip file then
reads the file's whole directory at once. A worker has sixteen of them, for pyspark.zip, py4j's and
Spark's own jar: 0.2 s of computing and more for each task, which is more than the rest of a small
batch.

Owns: which importers are dropped. Must not know: tasks.
"""

from __future__ import annotations

import re
import sys
import zipimport
from pathlib import PurePath
from typing import Final

_IS_EAGER: Final = sys.version_info < (3, 12)
# The archives that Spark itself puts on a worker's path.
_SPARKS: Final = re.compile(r"pyspark\.zip|py4j-.*-src\.zip|spark-core_.*\.jar")


def forget_sparks_zips() -> None:
    """Drop the importers of Spark's own archives. The next import makes those it needs.

    Importers of other archives stay: these may change while the worker lives (`addPyFile`).
    """
    if not _IS_EAGER:
        return
    # A copy, since entries are taken out on the way.
    for path, importer in list(sys.path_importer_cache.items()):
        # The cache also holds finders of folders, and None where no importer fits.
        if not isinstance(importer, zipimport.zipimporter):
            continue
        if _SPARKS.fullmatch(PurePath(importer.archive).name):
            sys.path_importer_cache.pop(path, None)
