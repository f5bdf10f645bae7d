"""Evaluation runs: run locally, submit, watch, download, compare, gate."""
