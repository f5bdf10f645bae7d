"""`osmosis whoami`: who the platform says you are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import DetailResult, Row, Section, Timestamp

if TYPE_CHECKING:
    from osmosis_ai.services.auth import Account

_SOURCES = {"environment": "OSMOSIS_TOKEN", "keyring": "saved login", "file": "saved login"}


def whoami() -> DetailResult:
    """Show who you are, and the workspace of the repository.

    Examples:
        osmosis whoami --json
    """
    from osmosis_ai.services import auth

    output = current()
    with output.status("Asking the platform"):
        account = auth.whoami(warn=output.warn)
    return DetailResult(
        data=account.data(),
        title="Account",
        rows=_rows(account),
        sections=_workspaces(account),
    )


def _workspaces(account: Account) -> list[Section]:
    rows = [(item.name, item.role) for item in account.workspaces or ()]
    return [Section("Workspaces", rows)] if rows else []


def _rows(account: Account) -> list[Row]:
    place = account.directory
    return [
        ("Email", account.user.email),
        ("Name", account.user.name),
        ("Workspace", account.workspace.name if account.workspace else None),
        ("Role", account.workspace.role if account.workspace else None),
        ("Platform", account.credentials.platform_url + (f" (set for {place})" if place else "")),
        ("Auth Source", _SOURCES[account.credentials.source]),
        ("Saved Login", f"yes ({account.saved_in})" if account.saved_in else "no"),
        ("Expires", Timestamp(account.expires_at, seconds=True)),
    ]
