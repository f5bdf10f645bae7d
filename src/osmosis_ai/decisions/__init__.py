"""Decisions about runs: compare them, check them against rules, and plan how many rows and attempts to evaluate.

A row of the dataset is the unit of everything: its attempts are averaged, and copies of it are one row.
Only ``local_runs`` reads files.
"""
