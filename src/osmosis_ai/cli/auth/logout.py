"""`osmosis logout`: forget the login of this machine, and end its token."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult

_UNSET = "Run 'unset OSMOSIS_TOKEN' to logout."
_UNSET_ACTION: dict[str, Any] = {"action": "unset_env", "variable": "OSMOSIS_TOKEN"}


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
    still_active = [_UNSET_ACTION] if plan.env_token_set else []
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
