"""Faults in series: what ``scripts/soak_workers.py`` kills, cuts, watches and compares."""
