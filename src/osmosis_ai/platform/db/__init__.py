"""Rows: the models, the engine and the migrations.

Transactions are short and never span a network call, a subprocess or a file transfer.
"""
