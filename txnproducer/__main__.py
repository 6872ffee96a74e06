"""Run the command line as `python -m txnproducer`."""

from __future__ import annotations

from txnproducer.cli import main

if __name__ == "__main__":
    main(prog_name="txnproducer")
