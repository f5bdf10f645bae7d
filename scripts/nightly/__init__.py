"""Faults in series: what ``scripts/nightly_workers.py`` kills, cuts, watches and compares."""
