"""Runs of the platform of either kind: submitted, watched, their logs and files."""
