"""Why a run was not taken on; raised where it is known, turned into a reply at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osmosis_ai.config.issues import Issue
from osmosis_ai.errors import OsmosisError


class SubmitRejectedError(OsmosisError):
    """A submit that makes no run."""

    def __init__(self, status: int, reason: str, message: str, *, issues: Sequence[Issue] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.issues = tuple(issues)

    @property
    def field(self) -> str | None:
        """The key to look at first."""
        return self.issues[0].key if self.issues else None

    def wire_issues(self) -> list[dict[str, Any]]:
        """Return the issues as the reply holds them."""
        return [_wire_issue(issue) for issue in self.issues]


def rejected(issues: Sequence[Issue]) -> SubmitRejectedError:
    """Return the rejection of a request for all of its ``issues``."""
    # Clients list the issues below it.
    message = "this run cannot be submitted as it is configured:"
    return SubmitRejectedError(400, "INVALID_CONFIG", message, issues=issues)


def _wire_issue(issue: Issue) -> dict[str, str]:
    described = {"key": issue.key, "message": issue.message}
    if issue.suggestion is None:
        return described
    if not issue.message.startswith("Unrecognized"):
        # A correction of the value would be taken for one of the key.
        return {**described, "message": f"{issue.message} (did you mean '{issue.suggestion}'?)"}
    section = issue.key.rpartition(".")[0]
    return {**described, "key_correction": f"{section}.{issue.suggestion}" if section else issue.suggestion}
