"""Runs below a directory of this machine."""
