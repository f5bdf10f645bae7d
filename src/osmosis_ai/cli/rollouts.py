"""`osmosis rollout` and `osmosis template`: agents that are evaluated and trained, and remote agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.completion import complete_served_agent
from osmosis_ai.cli.connection import list_result, platform_anywhere, platform_context
from osmosis_ai.cli.options import AllOption, LimitOption, YesOption
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult

if TYPE_CHECKING:
    from osmosis_ai.api.models.rollouts import RegisteredRolloutServer

DiffOption = Annotated[bool, typer.Option("--diff", help="Show the differences if files exist.")]
Registered = Annotated[str, typer.Argument(help="Name of the agent.", autocompletion=complete_served_agent)]

app = typer.Typer()
served = typer.Typer(help="Register, check and remove remote agents.")
app.add_typer(served, name="server")
templates = typer.Typer()


@app.command("init")
def init(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name: lower-case letters, digits and hyphens.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Write a complete example with data.")] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace an existing rollout and its configs.")
    ] = False,
    diff: DiffOption = False,
) -> OperationResult:
    """Create a rollout with evaluation and training configs.

    Examples:
        osmosis rollout init capitals
        osmosis rollout init my-calculator --example
    """
    from osmosis_ai.services.rollouts import initialize_rollout

    if name is None and not example:
        context.fail("Missing argument 'NAME'.")
    with _conflicts_with_diff(diff):
        resource = initialize_rollout(name, example=example, force=force)
    eval_config = resource["configs"]["eval"]
    return OperationResult(
        operation="rollout.init",
        message=f"Initialized rollout '{resource['name']}'.",
        resource=resource,
        next_steps=[
            *_written_lines(resource),
            *formats.next_block(
                [
                    ("evaluate it on this machine", f"osmosis eval run {eval_config}"),
                    ("change the agent and its grader", f"{resource['rollout_dir']}/main.py"),
                    ("change the dataset and the model", eval_config),
                ]
            ),
        ],
        next_steps_structured=[{"action": "eval_run", "config": eval_config}],
    )


def _written_lines(resource: Mapping[str, Any]) -> list[str]:
    """Return a line for each written file, and one for new Git ignores."""
    added = resource["gitignore"]["added"]
    lines = [f"  {path}" for path in resource["files"]]
    return [*lines, f"  .gitignore now ignores {' and '.join(added)}"] if added else lines


@contextmanager
def _conflicts_with_diff(wanted: bool) -> Iterator[None]:
    """Add the differences to the error about files that already exist, if ``wanted``."""
    from osmosis_ai.errors import ConflictError

    try:
        yield
    except ConflictError as conflict:
        from osmosis_ai.workspace.rollout_templates import join_differences

        shown = join_differences(conflict.details.get("differences", {})) if wanted else ""
        if not wanted:
            raise
        hint = "replace the files with '--force'" if shown else "there are no differences to a new one"
        raise ConflictError(f"{conflict}\n{shown}", details=conflict.details, hint=hint) from None


@app.command("list")
def list_(
    limit: LimitOption = 50,
    everything: AllOption = False,
    branch: Annotated[
        str | None, typer.Option(help="Branch of the repository (default: its default branch).")
    ] = None,
) -> ListResult:
    """List the rollouts of the connected repository.

    Examples:
        osmosis rollout list --branch main
    """
    from osmosis_ai.services.rollouts import list_rollouts

    with platform_context() as context, current().status("Fetching rollouts"):
        listing = list_rollouts(context.client, branch=branch, limit=limit, everything=everything)
    if listing.sync_error:
        current().warn(f"The rollouts may be out of date: {listing.sync_error}", "GIT_SYNC_FAILED")
    return list_result(
        listing,
        columns=(
            Column("Name", "name", keep=True),
            Column("Active", "is_active"),
            Column("Commit", value=lambda item: (item["last_synced_commit_sha"] or "")[:8] or None),
            Column("Created", "created_at"),
        ),
        extra={
            **context.resource(),
            **({"branch": branch} if branch is not None else {}),
            **({"sync_error": listing.sync_error} if listing.sync_error else {}),
        },
    )


@served.command("list")
def list_servers(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List remote agents and their last health check.

    Examples:
        osmosis rollout server list
    """
    from osmosis_ai.services.rollouts import list_servers

    with platform_anywhere() as (client, resource), current().status("Fetching served agents"):
        listing = list_servers(client, limit=limit, everything=everything)
    return list_result(
        listing,
        columns=(
            Column("Name", "name", keep=True),
            Column("Address", value=_address),
            Column("Status", "status"),
            Column("Checked", "probed_at"),
            Column("Error", "error"),
        ),
        extra=resource,
    )


@served.command("register")
def register(
    name: Annotated[str, typer.Argument(help="Name of the agent.")],
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Address of the agent for the platform.")
    ],
) -> OperationResult:
    """Register a remote agent.

    Its key is read from OSMOSIS_ROLLOUT_SERVER_KEY.

    Examples:
        osmosis rollout server register calculator 10.0.0.7:9000
    """
    from osmosis_ai.services.rollouts import agent_key, health_of, register_server

    with platform_anywhere() as (client, resource), current().status("Checking the agent"):
        found = register_server(client, name, address, api_key=agent_key())
    if found.status != "healthy":
        current().warn(
            f"The agent is registered but not healthy: {_problem(found)}", "ROLLOUT_SERVER_UNHEALTHY"
        )
    return OperationResult(
        operation="rollout.server.register",
        message=f'Registered "{name}" at {address}.',
        resource={"name": name, **health_of(found), **resource},
        next_steps=[f'Write into a config: entrypoint = "server://{name}"'],
    )


@served.command("probe")
def probe(name: Registered) -> OperationResult:
    """Check the health of a remote agent from the platform.

    Exits with 1 if the agent is unhealthy.

    Examples:
        osmosis rollout server probe calculator
    """
    from osmosis_ai.services.rollouts import health_of, probe_server

    with platform_anywhere() as (client, resource), current().status("Checking the agent"):
        found = probe_server(client, name)
    info, healthy = found.health_check_result.server_info, found.status == "healthy"
    active = f": {info.active_rollouts} active rollouts" if info is not None else ""
    return OperationResult(
        operation="rollout.server.probe",
        status="success" if healthy else "failed",
        message=f'"{name}" is healthy{active}.'
        if healthy
        else f'"{name}" is not healthy: {_problem(found)}.',
        resource={"name": name, **health_of(found), **resource},
    )


@served.command("remove")
def remove(name: Registered, yes: YesOption = False) -> OperationResult:
    """Remove a remote agent and its key from the platform.

    The agent's server keeps running. New runs cannot use it.

    Examples:
        osmosis rollout server remove calculator
    """
    from osmosis_ai.services.rollouts import remove_server

    with platform_anywhere() as (client, resource):
        current().confirm(f'Remove the served agent "{name}"?', yes=yes)
        with current().status(f"Removing {name}"):
            remove_server(client, name)
    return OperationResult(
        operation="rollout.server.remove", message=f'Removed "{name}".', resource={"name": name, **resource}
    )


def _address(item: Mapping[str, Any]) -> str:
    host = item["host"]
    return f"{f'[{host}]' if ':' in host else host}:{item['port']}"


def _problem(found: RegisteredRolloutServer) -> str:
    return found.health_check_result.error or "unknown reason"


@templates.command("list")
def list_rollout_templates() -> ListResult:
    """List the available templates.

    The templates come with Osmosis or from OSMOSIS_WORKSPACE_TEMPLATE_PATH.

    Examples:
        osmosis template list
    """
    from osmosis_ai.services.rollouts import list_templates

    items = [{"name": template.name, "summary": template.summary} for template in list_templates()]
    return ListResult(
        items,
        # Scripts take every plain line for a name.
        (Column("Name", "name", keep=True), Column("Description", "summary", in_plain=False)),
        hints=["Write one into this repository: osmosis template apply NAME"],
    )


def _complete_template(incomplete: str) -> list[str]:
    """Return the names of templates that begin with what was typed."""
    from osmosis_ai.errors import OsmosisError
    from osmosis_ai.workspace.rollout_templates import template_names

    try:
        return [name for name in template_names() if name.startswith(incomplete)]
    except (OsmosisError, OSError):  # a shell's prompt is no place for an error
        return []


@templates.command("apply")
def apply(
    name: Annotated[str, typer.Argument(help="Name of a template.", autocompletion=_complete_template)],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing files.")] = False,
    diff: DiffOption = False,
) -> OperationResult:
    """Write a template into the current repository.

    A template is a rollout with its configs and data.

    Examples:
        osmosis template apply multiply
    """
    from osmosis_ai.services.rollouts import apply_template

    with _conflicts_with_diff(diff):
        template, resource = apply_template(name, force=force)
    evaluations = [path for path in template.config_paths if path.startswith("configs/eval/")]
    return OperationResult(
        operation="template.apply",
        status="success" if resource["files"] else "noop",
        message=f"Applied template '{name}'."
        if resource["files"]
        else f"Template '{name}' is already applied.",
        resource=resource,
        next_steps=[
            *_written_lines(resource),
            *formats.next_block(
                ("evaluate on this machine", f"osmosis eval run {path}") for path in evaluations
            ),
        ],
        next_steps_structured=[{"action": "eval_run", "config": path} for path in evaluations],
    )
