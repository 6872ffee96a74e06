"""What a Python worker of Spark imports by, kept from being read anew with each task.

Why it exists: before Spark 4.2 (SPARK-54744) a worker begins each task with
`importlib.invalidate_caches()`, and before Python 3.12 (gh-103200) each importer of a zip file
takes that for an order to read the file's whole directory at once. A worker has sixteen of them,
for pyspark.zip, py4j's and Spark's own jar: 0.2 s of computing and more for each task, which is
more than all the rest of a small batch.

Owns: which importers are forgotten. Must not know: tasks.
"""

from __future__ import annotations

import re
import sys
import zipimport
from pathlib import PurePath
from typing import Final

_IS_EAGER: Final = sys.version_info < (3, 12)
# What Spark puts on a worker's path by itself.
_SPARKS: Final = re.compile(r"pyspark\.zip|py4j-.*-src\.zip|spark-core_.*\.jar")


def forget_sparks_zips() -> None:
    """Forget the importers of Spark's own archives: the next import makes anew what it needs.

    Those of other archives stay, for these may change while the worker lives (`addPyFile`).
    """
    if not _IS_EAGER:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if not isinstance(importer, zipimport.zipimporter):
            continue
        if _SPARKS.fullmatch(PurePath(importer.archive).name):
            sys.path_importer_cache.pop(path, None)
