"""Execution backends of the rollout server."""

from .base import ExecutionBackend, ResultCallback
from .local import LocalBackend

__all__ = ["ExecutionBackend", "LocalBackend", "ResultCallback"]
