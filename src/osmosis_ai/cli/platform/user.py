"""`osmosis platform user`: the people of a platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, Status

if TYPE_CHECKING:
    from osmosis_ai.platform.offboarding import OffboardingReport

Whose = Annotated[str, typer.Argument(help="The user's address.")]

PasswordFromStdin = Annotated[
    bool,
    typer.Option("--password-stdin", help="Read the password from standard input instead of making one."),
]


def add(
    email: Annotated[str, typer.Argument(help="The address they sign in with.")],
    name: Annotated[str | None, typer.Option(help="What people call them.")] = None,
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", help="Make them a member of this workspace.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Let them administer the platform.")] = False,
    password_stdin: PasswordFromStdin = False,
) -> OperationResult:
    """Add a user. Without --password-stdin a password is made and printed, this once.

    Examples:
        osmosis platform user add ada@example.org --name Ada --workspace team-agents
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    password, made = _password(password_stdin)
    with local_platform() as platform:
        home = platform.workspaces.find(workspace) if workspace is not None else None
        user = platform.accounts.create_user(email, name=name, password=password, is_admin=admin)
        if home is not None:
            platform.workspaces.add_member(home.id, user.id)
        page = f"{platform.url}/device"
    member = (
        []
        if home is not None
        else [f"Give them a workspace: osmosis platform member add WORKSPACE {user.email}"]
    )
    added = f"Added {user.email}."
    return OperationResult(
        operation="platform.user.add",
        message=added,
        shown=f"{added} Password: {password}" if made else None,
        resource={
            "id": user.id,
            "email": user.email,
            "name": user.name,
            "is_admin": user.is_admin,
            "workspace": home.name if home is not None else None,
            **({"password": password} if made else {}),
        },
        next_steps=[
            *member,
            f"The user logs in with `osmosis --platform {platform.url} login` and approves the login at {page}",
        ],
    )


def list_() -> ListResult:
    """List the users.

    Examples:
        osmosis platform user list
    """
    from osmosis_ai.cli.output import formats
    from osmosis_ai.cli.platform.local_platform import iso, local_platform

    with local_platform() as platform:
        items = [
            {
                "id": user.id,
                "email": user.email,
                "name": user.name,
                "is_admin": user.is_admin,
                "status": "active" if user.disabled_at is None else "disabled",
                "workspaces": [home.name for home, _, _ in platform.workspaces.of_user(user.id)],
                "created_at": iso(user.created_at),
            }
            for user in platform.accounts.users()
        ]
    return ListResult(
        title="Users",
        items=items,
        columns=[
            Column("E-mail", "email", keep=True),
            Column("Name", value=lambda item: item["name"] or formats.MISSING),
            Column("Admin", "is_admin"),
            Column("Status", value=lambda item: Status(str(item["status"]))),
            Column("Workspaces", value=lambda item: ", ".join(item["workspaces"]) or formats.MISSING),
        ],
    )


def password(
    email: Annotated[str, typer.Argument(help="Whose password.")],
    password_stdin: PasswordFromStdin = False,
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Revoke their tokens and API keys, too.")
    ] = False,
) -> OperationResult:
    """Give a user a new password, which ends their sessions. Without --password-stdin one is made and printed,
    this once. Tokens and API keys go on working unless you say --revoke-tokens.

    Examples:
        osmosis platform user password ada@example.org
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    text, made = _password(password_stdin)
    with local_platform() as platform:
        ended = platform.accounts.set_password(email, text, revoke_tokens=revoke_tokens)
    kinds = "sessions, tokens and keys" if revoke_tokens else "sessions"
    changed = f"Changed the password of {email}; {ended} {kinds} ended."
    return OperationResult(
        operation="platform.user.password",
        message=changed,
        shown=f"{changed} Password: {text}" if made else None,
        resource={"email": email, "ended": ended, **({"password": text} if made else {})},
    )


def disable(
    email: Whose,
    stop_runs: Annotated[
        bool, typer.Option("--stop-runs", help="Stop their open runs; otherwise those go on.")
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Let nobody in as this user until `enable`: sessions end, tokens, API keys and the password stop working.

    Examples:
        osmosis platform user disable ada@example.org --stop-runs
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        user = platform.accounts.find_user(email)
        current().confirm(f"Disable {user.email}? Nobody gets in as them until they are enabled.", yes=yes)
        done = platform.offboarding.disable(email, stop_runs=stop_runs)
    said = f"Disabled {user.email}." if done.changed else f"{user.email} was disabled already."
    steps = [f"Let them in again: osmosis platform user enable {user.email}"]
    if done.still_open:
        steps.insert(0, f"Their open runs go on (--stop-runs stops them): {', '.join(done.still_open)}")
    return _offboarded("disable", said, done, steps)


def enable(email: Whose) -> OperationResult:
    """Let a disabled user in again, with the password, tokens and API keys they had.

    Examples:
        osmosis platform user enable ada@example.org
    """
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        done = platform.offboarding.enable(email)
    name = done.user.email
    return _offboarded("enable", f"Enabled {name}." if done.changed else f"{name} is not disabled.", done, [])


def remove(email: Whose, yes: YesOption = False) -> OperationResult:
    """Delete a user with their tokens, memberships and personal secrets, and stop their open runs.

    Their datasets, runs and adapters, and the secrets of workspaces, stay.

    Examples:
        osmosis platform user remove ada@example.org
    """
    from osmosis_ai.cli.output.context import current
    from osmosis_ai.cli.platform.local_platform import local_platform

    with local_platform() as platform:
        user = platform.accounts.find_user(email)
        current().confirm(f"Remove {user.email} for good? Their open runs stop.", yes=yes)
        done = platform.offboarding.remove(email)
    steps = [
        f"{name} has no owner now: osmosis platform member add {name} EMAIL --role owner"
        for name in done.ownerless
    ]
    return _offboarded("remove", f"Removed {user.email}.", done, steps)


def _offboarded(verb: str, message: str, done: OffboardingReport, steps: list[str]) -> OperationResult:
    counted = [
        f"{done.sessions} sessions and tokens ended" if done.sessions else "",
        f"{done.personal_secrets} personal secrets deleted" if done.personal_secrets else "",
        f"stopped: {', '.join(done.stopped)}" if done.stopped else "",
    ]
    told = "; ".join(filter(None, counted))
    return OperationResult(
        operation=f"platform.user.{verb}",
        status="success" if done.changed else "noop",
        message=message + (f" ({told})" if told else ""),
        resource={
            "id": done.user.id,
            "email": done.user.email,
            "ended": done.sessions,
            "stopped_runs": list(done.stopped),
            "open_runs": list(done.still_open),
            "deleted_personal_secrets": done.personal_secrets,
            "workspaces_without_owner": list(done.ownerless),
        },
        next_steps=steps,
    )


def _password(from_stdin: bool) -> tuple[str, bool]:
    """Return a password, and whether it was made here."""
    import secrets

    from osmosis_ai.cli.output.context import current

    if from_stdin:
        return current().stdin.readline().rstrip("\r\n"), False
    return secrets.token_urlsafe(12), True
