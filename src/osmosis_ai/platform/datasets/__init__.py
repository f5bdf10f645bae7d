"""Datasets of a workspace. ``check`` checks one file, usually in a separate process; so this package imports nothing."""
