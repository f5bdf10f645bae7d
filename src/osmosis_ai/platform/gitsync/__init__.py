"""Bare mirrors of connected repositories (``mirror``), by hardened Git processes (``git``)."""
