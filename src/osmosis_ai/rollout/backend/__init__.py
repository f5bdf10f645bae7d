"""Backends execute rollouts; the server does not know how."""

from .base import ExecutionBackend, ResultCallback
from .local import LocalBackend

__all__ = ["ExecutionBackend", "LocalBackend", "ResultCallback"]
