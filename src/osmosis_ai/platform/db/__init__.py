"""Database models, engine and migrations.

Transactions are short and never span a network call, a subprocess or a file transfer.
"""
