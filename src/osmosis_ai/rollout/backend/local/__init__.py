"""Rollouts in the server's own process."""

from .backend import LocalBackend

__all__ = ["LocalBackend"]
