"""`osmosis secret`: secret values in the environment of runs."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import list_result, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption, YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult
from osmosis_ai.errors import InteractiveRequiredError

app = typer.Typer()


@app.command("list")
def list_(
    scope: Annotated[
        str, typer.Option(metavar="[all|workspace|personal]", help="Scope of the secrets to list.")
    ] = "all",
    limit: LimitOption = 50,
    everything: AllOption = False,
) -> ListResult:
    """List the names of secrets.

    In your runs, a personal secret takes precedence over a workspace secret.

    Examples:
        osmosis secret list --scope personal
    """
    from osmosis_ai.services import secrets

    wanted = None if scope == "all" else secrets.parse_scope(scope)
    with platform_context() as context, current().status("Fetching secrets"):
        listing = secrets.list_secrets(context.client, wanted, limit=limit, everything=everything)
    page = listing.platform_url
    return list_result(
        listing,
        title="Secrets",
        columns=[
            Column("Name", "name", keep=True),
            Column("Scope", value=lambda item: str(item["scope"] or formats.MISSING).capitalize()),
            Column("Updated", "updated_at"),
            Column("Updated By", value=lambda item: item["updater_name"] or item["creator_name"]),
        ],
        extra={**context.resource(), **({"platform_url": page} if page else {})},
        hints=[f"View secrets: {page}"] if page else [],
    )


# An extra argument may be the value, and Typer's own error would repeat it.
@app.command("set", context_settings={"allow_extra_args": True})
def set_(
    line: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Name of the environment variable in runs, such as OPENAI_API_KEY.")
    ],
    scope: Annotated[
        str,
        typer.Option(metavar="[personal|workspace]", help="Scope: your runs, or the runs of all members."),
    ] = "personal",
    env: Annotated[
        str | None, typer.Option(metavar="VARNAME", help="Environment variable of this shell with the value.")
    ] = None,
) -> OperationResult:
    """Store a secret or replace its value.

    The value is asked for without echo. A value on the command line is refused because the shell's history and the
    process list would contain it.

    Examples:
        osmosis secret set OPENAI_API_KEY --env OPENAI_API_KEY
    """
    from osmosis_ai.redaction import exposure_warnings
    from osmosis_ai.services import secrets

    output = current()
    if line.args:
        line.fail("A value on the command line is refused: the shell's history would contain it.")
    secrets.check_new_name(name)
    chosen = secrets.parse_scope(scope)
    value = secrets.value_from_environment(env) if env is not None else None
    if value is None and not output.interactive:
        raise InteractiveRequiredError(
            f"Value of {name} is missing.",
            details={"flags": ["--env"]},
            hint=f"osmosis secret set {name} --env VARNAME",
        )
    with platform_context() as context:
        if value is None:
            typed = output.ask_hidden(f"Value of {name} (not shown)")
            if typed is None:
                return OperationResult(operation="secret.set", status="cancelled", message="Cancelled.")
            value = secrets.check_value(typed, source=f"The value of {name}")
        for warning in exposure_warnings({name: value}):
            output.warn(warning)
        with output.status(f"Saving {name}"):
            saved = secrets.set_secret(context.client, name, value, chosen)
    page = saved.platform_url
    return OperationResult(
        operation="secret.set",
        message=f'Secret "{name}" saved in {chosen} scope.',
        resource={**saved.printed(), **context.resource()},
        next_steps=[f"View secrets: {page}"] if page else [],
        next_steps_structured=[{"action": "view_secrets", "url": page}] if page else [],
    )


@app.command("delete")
def delete(
    name: Annotated[str, typer.Argument(help="Name of the secret.")],
    scope: Annotated[
        str, typer.Option(metavar="[personal|workspace]", help="Scope of the secret.")
    ] = "personal",
    yes: YesOption = False,
) -> OperationResult:
    """Delete a secret.

    Runs in progress keep the values that they received.

    Examples:
        osmosis secret delete OPENAI_API_KEY
    """
    from osmosis_ai.services import secrets

    output = current()
    secrets.check_name(name)
    chosen = secrets.parse_scope(scope)
    with platform_context() as context:
        with output.status(f"Looking up {name}"):
            secrets.require_secret(context.client, name, chosen)
        output.confirm(f'Delete {chosen} secret "{name}"? This cannot be undone.', yes=yes)
        with output.status(f"Deleting {name}"):
            secrets.delete_secret(context.client, name, chosen)
    return OperationResult(
        operation="secret.delete",
        message=f'Secret "{name}" deleted from {chosen} scope.',
        resource={"name": name, "scope": chosen, **context.resource()},
    )


@app.command("audit")
def audit(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List which runs received which secrets, newest first.

    Examples:
        osmosis secret audit --limit 10
    """
    from osmosis_ai.services import secrets

    with platform_context() as context, current().status("Fetching the access log"):
        listing = secrets.list_handouts(context.client, limit=limit, everything=everything)
    page = listing.platform_url
    return list_result(
        listing,
        title="Secret access log",
        columns=[
            Column("Accessed", "handed_at"),
            Column("Secrets", "names", keep=True),
            Column("Run", "run_name", keep=True),
            Column("Attempt", "attempt"),
            Column("Machine", "machine"),
            Column("Pool", "pool"),
        ],
        extra={**context.resource(), **({"platform_url": page} if page else {})},
        hints=[f"View the access log: {page}"] if page else [],
    )
