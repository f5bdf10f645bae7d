"""Bare mirrors of connected repositories, read without a work tree.

``mirror`` is the entry point. Only ``git`` starts processes and only ``clone_url`` handles passwords. ``tree``
reads a commit, and ``export`` writes one to a directory.
"""
