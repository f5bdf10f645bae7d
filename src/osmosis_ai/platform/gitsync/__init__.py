"""Bare mirrors of connected repositories, read without a work tree.

``mirror`` is the entry point. Only ``git`` starts processes and only ``remote`` handles passwords.
"""
