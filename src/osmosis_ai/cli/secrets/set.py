"""`osmosis secret set`: store a value; it is typed unseen or taken from a variable, never written on the line."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.output.context import OutputContext, current
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import InteractiveRequiredError

# What stands after the name may be the value, and Typer's own error would repeat it.
CONTEXT_SETTINGS = {"allow_extra_args": True}


def set_(
    line: typer.Context,
    name: Annotated[
        str, typer.Argument(help="The environment variable that runs will find, as OPENAI_API_KEY.")
    ],
    scope: Annotated[
        str,
        typer.Option(
            metavar="[personal|workspace]", help="Yours alone, or for all members (admins and owners)."
        ),
    ] = "personal",
    env: Annotated[
        str | None,
        typer.Option(
            metavar="VARNAME",
            help="Take the value from this environment variable instead of asking.",
            show_default=False,
        ),
    ] = None,
) -> OperationResult:
    """Store a secret, or replace its value. The value is asked for without being shown.

    There is no way to write a value on the command line, where the process list and the shell's
    history would keep it.

    Examples:
        osmosis secret set OPENAI_API_KEY --env OPENAI_API_KEY
    """
    from osmosis_ai.redaction import exposure_warnings
    from osmosis_ai.services import secrets

    output = current()
    if line.args:
        line.fail("A value on the command line is refused: the shell's history keeps it. Leave it out.")
    secrets.check_name(name)
    chosen = secrets.parse_scope(scope)
    value = secrets.value_from_environment(env) if env is not None else None
    if value is None and not output.interactive:
        raise InteractiveRequiredError(
            f"There is nobody to ask for the value of {name}.",
            details={"flags": ["--env"]},
            hint=f"osmosis secret set {name} --env VARNAME",
        )
    with platform_context() as context:
        if value is None:
            value = _asked(output, name)
        if value is None:
            return OperationResult(operation="secret.set", status="cancelled", message="Cancelled.")
        for warning in exposure_warnings({name: value}):
            output.warn(warning)
        with output.status(f"Saving {name}"):
            saved = secrets.set_secret(context.client, name, value, chosen)
    page = saved.platform_url
    return OperationResult(
        operation="secret.set",
        message=f'Secret "{name}" saved in {chosen} scope.',
        resource={**secrets.secret_item(saved), **context.resource()},
        next_steps=[f"View secrets: {page}"] if page else [],
        next_steps_structured=[{"action": "view_secrets", "url": page}] if page else [],
    )


def _asked(output: OutputContext, name: str) -> str | None:
    from osmosis_ai.cli.typed_line import ask_hidden
    from osmosis_ai.services import secrets

    value = ask_hidden(output, f"Value of {name} (not shown)")
    return None if value is None else secrets.check_value(value, source=f"The value of {name}")
