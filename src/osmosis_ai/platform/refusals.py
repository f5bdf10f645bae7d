"""Refused requests, raised where the reason is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_ai.errors import OsmosisError


class ApiError(OsmosisError):
    """A refused request: status, code (``reason``) and message of the reply, and more of its keys."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        field: str | None = None,
        issues: Sequence[str | Mapping[str, Any]] = (),
        *,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.field = status, reason, field
        self.issues, self.headers, self.extra = list(issues), dict(headers or {}), extra
