"""Write the page of all settings to standard output: `python -m txnproducer.config`."""

from __future__ import annotations

import sys

from ._docs import page

if __name__ == "__main__":
    sys.stdout.write(page())
