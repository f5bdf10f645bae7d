"""`osmosis workspace list`: where you are a member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Cell, Column, ListResult, Styled


def list_() -> ListResult:
    """List your workspaces, and mark that of the repository you are in. Works in any directory.

    Examples:
        osmosis workspace list
    """
    from osmosis_ai.services.workspaces import list_workspaces

    output = current()
    with output.status("Fetching workspaces"):
        memberships = list_workspaces(warn=output.warn)
    return ListResult(
        title="Workspaces",
        items=[member.item() for member in memberships],
        columns=[
            Column("Name", "name", keep=True),
            Column("Role", "role"),
            Column("Repository", "repository"),
            Column("Directory", "workspace_directory"),
            Column("", value=_mark),
        ],
    )


def _mark(item: Mapping[str, Any]) -> Cell:
    return Styled("current", "good") if item["current"] else ""
