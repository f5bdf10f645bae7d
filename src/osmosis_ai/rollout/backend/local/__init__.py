"""Backends that run rollouts in the server process."""

from .backend import LocalBackend

__all__ = ["LocalBackend"]
