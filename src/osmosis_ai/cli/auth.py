"""`osmosis auth`: who is asking. The same commands stand at the top: `osmosis login` is `osmosis auth login`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.application import use_platform
from osmosis_ai.cli.connection import open_browser
from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import DetailResult, OperationResult, Section, Text, Timestamp
from osmosis_ai.errors import InteractiveRequiredError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.models.auth import DeviceAuthorization
    from osmosis_ai.services.auth import Login

_SOURCES = {"environment": "OSMOSIS_TOKEN", "keyring": "saved login", "file": "saved login"}
_UNSET = "Run 'unset OSMOSIS_TOKEN' to logout."

app = typer.Typer()
login_app = typer.Typer()


# An extra argument may be a token, and Typer's own error would repeat it.
@login_app.command("login", context_settings={"allow_extra_args": True})
@app.command("login", context_settings={"allow_extra_args": True})
def login(
    line: typer.Context,
    platform: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Platform to log in to; commands in this directory then use it."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", help="Existing token to log in with; `-` reads it from standard input."
        ),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address of the page without opening a browser.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Log in again even if a login is saved.")
    ] = False,
) -> OperationResult:
    """Log in with a browser or a token.

    You confirm a code in the browser. The token is saved in the system's keyring, or in a file that only you can read
    if no keyring works. The previous token is revoked.

    With --platform, later commands in this Git checkout (outside Git: in this directory) use that platform.

    Examples:
        osmosis login
        osmosis --platform http://127.0.0.1:8733 login
    """
    from osmosis_ai.services import auth

    output = current()
    if line.args:
        line.fail("`osmosis login` takes no arguments. A token is given with --token.")
    if platform is not None:
        use_platform(output, platform)
    login = _log_in(output, token=token, no_browser=no_browser, force=force)
    chosen = platform is not None or line.find_root().params.get("platform") is not None
    return _logged_in(login, auth.use_in_this_directory(login.credentials.platform_url) if chosen else None)


def _log_in(output: OutputContext, *, token: str | None, no_browser: bool, force: bool) -> Login:
    from osmosis_ai.services import auth

    if token is not None:
        secret = _token_from_stdin(output) if token == "-" else token
        if not secret.strip():
            raise OsmosisError("Token is empty.", hint="osmosis login --token - < FILE")
        with output.status("Checking the token"):
            return auth.login_with_token(secret, warn=output.warn)
    auth.require_device_login()
    if not force and (known := auth.saved_login(warn=output.warn)) is not None:
        return known
    if output.mode != "rich" or not (output.interactive or formats.is_terminal(output.stderr)):
        raise InteractiveRequiredError(
            "A login in a browser needs a terminal, without --json and --plain.",
            details={"flags": ["--token"]},
            hint="osmosis login --token - < FILE, or set OSMOSIS_TOKEN",
        )
    return log_in_with_device(output, open_page=output.interactive and not no_browser)


def log_in_with_device(output: OutputContext, *, open_page: bool) -> Login:
    """Log in by a code that the user confirms in a browser, and save the login."""
    from osmosis_ai.services import auth

    def announce(code: DeviceAuthorization) -> None:
        page = code.verification_uri_complete or code.verification_uri
        minutes = auth.minutes_to_confirm(code)
        output.note(f"Your code: {code.user_code}\nConfirm it within {minutes} minutes at {page}")
        is_web = page.startswith(("https://", "http://"))
        opened = open_page and is_web and open_browser(page)
        output.note("Opened in your browser. Waiting …" if opened else "Waiting for confirmation …")

    return auth.login_with_device(announce, warn=output.warn)


def _token_from_stdin(output: OutputContext) -> str:
    if output.interactive:
        token = output.ask_hidden("Token")
        if token is None:
            raise KeyboardInterrupt
    else:
        try:
            token = output.stdin.read() if output.stdin is not None else ""
        except UnicodeDecodeError:
            raise OsmosisError("Token on standard input is not text.") from None
    if not token.strip():
        raise OsmosisError("Standard input has no token.", hint="osmosis login --token - < FILE")
    return token.strip()


def _logged_in(login: Login, directory: Path | None) -> OperationResult:
    from osmosis_ai.services.context import find_checkout_if_any

    resource = {**login.resource(), "directory": None if directory is None else str(directory)}
    url = login.credentials.platform_url
    uses = [] if directory is None else [f"Commands in {directory} now use {url}."]
    if login.source == "saved":
        return OperationResult(
            operation="auth.login",
            status="noop",
            message=f"Already logged in as {login.user.email} on {url}.",
            resource=resource,
            next_steps=[*uses, "Log in again: osmosis login --force"],
        )
    facts = {
        "Email": login.user.email,
        "Name": login.user.name or formats.MISSING,
        "Platform": url,
        "Expires": formats.date(login.credentials.expires_at, seconds=True),
    }
    if os.environ.get("OSMOSIS_TOKEN"):
        uses.append("OSMOSIS_TOKEN overrides this login: unset OSMOSIS_TOKEN")
    if find_checkout_if_any() is None:
        uses.append("Clone a connected repository: git clone URL")
    return OperationResult(
        operation="auth.login",
        message=f"Logged in as {login.user.email}.",
        resource=resource,
        blocks=[
            Text("\n".join(f"{label + ':':<10}{value}" for label, value in facts.items()), title="Osmosis")
        ],
        next_steps=[*uses, "Check the workspace directory: osmosis doctor"],
        next_steps_structured=[{"action": "platform.clone_repository"}, {"action": "doctor"}],
    )


@app.command("logout")
def logout(
    everywhere: Annotated[
        bool, typer.Option("--all", help="Log out of all platforms, not only the active one.")
    ] = False,
    yes: YesOption = False,
) -> OperationResult:
    """Revoke and remove the saved login of the platform.

    Directories set to this platform no longer use it.

    Examples:
        osmosis logout
    """
    from osmosis_ai.services import auth

    output = current()
    plan = auth.plan_logout(everywhere=everywhere)
    still_active = [{"action": "unset_env", "variable": "OSMOSIS_TOKEN"}] if plan.env_token_set else []
    if plan.is_empty:
        return OperationResult(
            operation="auth.logout",
            status="noop",
            message=f"OSMOSIS_TOKEN is set. {_UNSET}" if plan.env_token_set else "Not logged in.",
            resource=plan.resource(),
            next_steps_structured=still_active,
        )
    output.confirm(
        "Logout from Osmosis AI?",
        yes=yes,
        summary={
            "Platforms": ", ".join(plan.platforms or [plan.platform_url]),
            **({"Directories": ", ".join(plan.directories)} if plan.directories else {}),
        },
    )
    with output.status("Logging out"):
        revoked = auth.logout(plan, warn=output.warn)
    return OperationResult(
        operation="auth.logout",
        message="Logged out successfully."
        + (f" OSMOSIS_TOKEN is still active. {_UNSET}" if plan.env_token_set else ""),
        resource=plan.resource(revoked=revoked),
        next_steps_structured=still_active,
    )


@app.command("whoami")
def whoami() -> DetailResult:
    """Show your account and the workspace of the repository.

    Examples:
        osmosis whoami --json
    """
    from osmosis_ai.services import auth

    output = current()
    with output.status("Fetching account"):
        account = auth.whoami(warn=output.warn)
    place, workspaces = account.directory, [(item.name, item.role) for item in account.workspaces or ()]
    return DetailResult(
        data=account.data(),
        title="Account",
        rows=[
            ("Email", account.user.email),
            ("Name", account.user.name),
            ("Workspace", account.workspace.name if account.workspace else None),
            ("Role", account.workspace.role if account.workspace else None),
            ("Platform", account.credentials.platform_url + (f" (set for {place})" if place else "")),
            ("Auth Source", _SOURCES[account.credentials.source]),
            ("Saved Login", f"yes ({account.saved_in})" if account.saved_in else "no"),
            ("Expires", Timestamp(account.expires_at, seconds=True)),
        ],
        blocks=[Section("Workspaces", workspaces)] if workspaces else [],
    )
