"""`osmosis platform token`: what lets programs in."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, Timestamp
from osmosis_ai.cli.platform.issued_tokens import TokenNameOption, revoke_token, token_list
from osmosis_ai.errors import ConflictError

if TYPE_CHECKING:
    from datetime import datetime

    from osmosis_ai.platform.db.tables import DbToken, DbUser

UserOption = Annotated[
    str | None,
    typer.Option("--user", "-u", metavar="EMAIL", help="Whose; not needed while there is one user."),
]


class Kind(str, Enum):
    """What a token is good for."""

    cli = "cli"
    api_key = "api_key"


def create(
    user: UserOption = None,
    kind: Annotated[
        Kind, typer.Option(help="`cli` for commands and the API, `api_key` for calling served models.")
    ] = Kind.cli,
    name: TokenNameOption = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it works.")] = 90,
    no_expiry: Annotated[bool, typer.Option("--no-expiry", help="Let it work until it is revoked.")] = False,
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", help="Make it good for this workspace alone.")
    ] = None,
) -> OperationResult:
    """Make a token and print it. It is shown this once; the platform keeps a hash.

    Examples:
        osmosis platform token create --user ada@example.org --name ci --days 30
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import iso, local_platform

    with local_platform() as platform:
        owner = platform.user(user)
        if owner.disabled_at is not None:
            raise ConflictError(
                f"{owner.email} is disabled: a token of theirs would let nobody in.",
                hint=f"enable them first: osmosis platform user enable {owner.email}",
            )
        home = platform.workspaces.find(workspace) if workspace is not None else None
        if home is not None:
            platform.workspaces.require_member(home, owner)
        token, plain = platform.accounts.create_token(
            owner.id,
            kind.value,
            name=name,
            ttl=None if no_expiry else timedelta(days=days),
            workspace_id=home.id if home is not None else None,
        )
        url = platform.url
    current().note(
        f"Token {token.id} of {owner.email}, "
        + (f"good until {iso(token.expires_at)}" if token.expires_at else "good until it is revoked")
        + ". It is not shown again."
    )
    return OperationResult(
        operation="platform.token.create",
        message=f"Made token {token.id} of {owner.email}.",
        shown=plain,
        resource={
            "token": plain,
            "id": token.id,
            "kind": token.kind,
            "name": token.name,
            "user": owner.email,
            "workspace": home.name if home is not None else None,
            "expires_at": iso(token.expires_at),
            "platform_url": url,
        },
    )


def list_(
    user: UserOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show expired and revoked tokens too.")] = False,
) -> ListResult:
    """List tokens, newest first. The tokens themselves are not kept and cannot be shown.

    Examples:
        osmosis platform token list
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        owner_id = platform.accounts.find_user(user).id if user is not None else None
        now = platform.clock.now()
        names = {workspace.id: workspace.name for workspace in platform.workspaces.all()}
        items = [
            _item(token, owner, names, now) for token, owner in platform.accounts.tokens(user_id=owner_id)
        ]
    return token_list(
        "Tokens",
        items,
        [Column("Kind", "kind"), Column("User", "user")],
        [
            Column(
                "Expires", value=lambda item: Timestamp(item["expires_at"]) if item["expires_at"] else "never"
            )
        ],
        everything=everything,
        gone="expired or revoked",
    )


def revoke(
    token_id: Annotated[
        str, typer.Argument(help="The token's id, as `osmosis platform token list` shows it.")
    ],
    yes: YesOption = False,
) -> OperationResult:
    """Make a token useless at once and for good.

    Examples:
        osmosis platform token revoke 3f2a9c10
    """
    return revoke_token(
        "platform.token.revoke",
        token_id,
        lambda platform: platform.accounts,
        loss="Whoever uses it is locked out.",
        yes=yes,
    )


def _item(token: DbToken, owner: DbUser, names: dict[str, str], now: datetime) -> dict[str, Any]:
    from osmosis_ai.cli.platform.local_platform import iso

    expired = token.expires_at is not None and token.expires_at <= now
    return {
        "id": token.id,
        "kind": token.kind,
        "name": token.name,
        "user": owner.email,
        "workspace": names.get(token.workspace_id or ""),
        "status": "revoked" if token.revoked_at is not None else "expired" if expired else "active",
        "created_at": iso(token.created_at),
        "expires_at": iso(token.expires_at),
        "last_used_at": iso(token.last_used_at),
    }
