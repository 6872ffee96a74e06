"""A benchmark: the producers for asyncio side by side, on one broker of this machine.

Transactions of few records and of many, and 50,000 values that are at hand in a list. It measures
transactions and records a second, the time of a transaction, the processor's time of a record, and
how late a task of the same event loop is woken meanwhile.
"""
