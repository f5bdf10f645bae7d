"""Runs: submitted, retried and resumed as rows, executed by workers (``platform/queue``), and readable while running."""
