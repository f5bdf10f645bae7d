"""What commands about tokens share, whoever holds the token: programs of people (`token`) or machines (`worker-token`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, Status, Timestamp

if TYPE_CHECKING:
    from datetime import datetime

    from osmosis_ai.cli.platform.local_platform import LocalPlatform

TokenNameOption = Annotated[str | None, typer.Option("--name", help="What it is for; shown in the list.")]


class _Issued(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def revoked_at(self) -> datetime | None: ...


class TokenStore(Protocol):
    """Where tokens of one sort are kept."""

    def find_token(self, token_id: str) -> _Issued: ...

    def revoke_token(self, token_id: str) -> _Issued: ...


def token_list(
    title: str,
    items: Sequence[Mapping[str, Any]],
    whose: Sequence[Column],
    more: Sequence[Column],
    *,
    everything: bool,
    gone: str,
) -> ListResult:
    """Return a list of tokens."""
    from osmosis_ai.cli.output import formats

    shown = [item for item in items if everything or item["status"] == "active"]
    hidden = len(items) - len(shown)
    return ListResult(
        title=title,
        items=shown,
        columns=[
            Column("ID", "id", keep=True),
            *whose[:1],
            Column("Name", value=lambda item: item["name"] or formats.MISSING),
            *whose[1:],
            Column("Status", value=lambda item: Status(str(item["status"]))),
            *more,
            Column("Last used", value=lambda item: Timestamp(item["last_used_at"])),
        ],
        hints=[f"{hidden} {gone}: add --all to see them."] if hidden else [],
    )


def revoke_token(
    operation: str,
    token_id: str,
    kept: Callable[[LocalPlatform], TokenStore],
    *,
    loss: str,
    yes: bool,
) -> OperationResult:
    """Ask, and make a token useless for good; a second time changes nothing."""
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import iso, local_platform

    with local_platform() as platform:
        is_new = kept(platform).find_token(token_id).revoked_at is None
        if is_new:
            current().confirm(f"Revoke {token_id}? {loss}", yes=yes)
        token = kept(platform).revoke_token(token_id)
    return OperationResult(
        operation=operation,
        status="success" if is_new else "noop",
        message=f"Revoked {token_id}." if is_new else f"{token_id} was revoked already.",
        resource={"id": token.id, "revoked_at": iso(token.revoked_at)},
    )
