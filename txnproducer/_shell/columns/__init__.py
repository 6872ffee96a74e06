"""Many records in one call: from lists, arrays and tables to batches.

It is for the accepted kinds of columns, the order of rows by partition, and their way into the
core. It must not know transactions: a call's rows are refused or taken by the core.
"""
