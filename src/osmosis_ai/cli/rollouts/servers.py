"""`osmosis rollout server`: agents that are served elsewhere, and that the platform drives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import list_result, platform_anywhere
from osmosis_ai.cli.name_completion import complete_served_agent
from osmosis_ai.cli.options import AllOption, LimitOption, YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, ListResult, OperationResult, Status, Timestamp

if TYPE_CHECKING:
    from osmosis_ai.api.wire.rollout_servers import RegisteredRolloutServer

Name = Annotated[str, typer.Argument(help="The agent's name.")]
Registered = Annotated[
    str, typer.Argument(help="The agent's name.", autocompletion=complete_served_agent, show_default=False)
]


def list_(limit: LimitOption = 50, everything: AllOption = False) -> ListResult:
    """List the agents that are served elsewhere, and how they did when they were last asked.

    Examples:
        osmosis rollout server list
    """
    from osmosis_ai.services.rollouts import list_servers, server_item

    with platform_anywhere() as (client, resource), current().status("Fetching served agents"):
        listing = list_servers(client, limit=limit, everything=everything)
    return list_result(
        listing,
        server_item,
        columns=(
            Column("Name", "name", keep=True),
            Column("Address", value=_address),
            Column("Status", value=lambda item: Status(str(item["status"]))),
            Column("Asked", value=lambda item: Timestamp(item["probed_at"])),
            Column("Error", "error"),
        ),
        extra=resource,
    )


def register(
    name: Name,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the platform finds it.")],
) -> OperationResult:
    """Register an agent that is served already. Its key is read from OSMOSIS_ROLLOUT_SERVER_KEY.

    Examples:
        osmosis rollout server register calculator 10.0.0.7:9000
    """
    from osmosis_ai.services.rollouts import agent_key, health_of, register_server

    with platform_anywhere() as (client, resource), current().status("Asking the agent"):
        found = register_server(client, name, address, api_key=agent_key())
    if found.status != "healthy":
        current().warn(f"registered, but {_problem(found)}", "ROLLOUT_SERVER_UNHEALTHY")
    return OperationResult(
        operation="rollout.server.register",
        message=f'Registered "{name}" at {address}.',
        resource={"name": name, **health_of(found), **resource},
        next_steps=[f'Write into a config: entrypoint = "server://{name}"'],
    )


def probe(name: Registered) -> OperationResult:
    """Have the platform ask a served agent how it does; ends with 1 when it does not do well.

    Examples:
        osmosis rollout server probe calculator
    """
    from osmosis_ai.services.rollouts import health_of, probe_server

    with platform_anywhere() as (client, resource), current().status("Asking the agent"):
        found = probe_server(client, name)
    info, healthy = found.health_check_result.server_info, found.status == "healthy"
    active = f": {info.active_rollouts} rollouts under way" if info is not None else ""
    return OperationResult(
        operation="rollout.server.probe",
        status="success" if healthy else "failed",
        message=f'"{name}" is healthy{active}.'
        if healthy
        else f'"{name}" is not healthy: {_problem(found)}.',
        resource={"name": name, **health_of(found), **resource},
    )


def remove(name: Registered, yes: YesOption = False) -> OperationResult:
    """Forget a served agent and its key. It goes on being served; runs cannot name it any more.

    Examples:
        osmosis rollout server remove calculator
    """
    from osmosis_ai.services.rollouts import remove_server

    with platform_anywhere() as (client, resource):
        current().confirm(f'Remove the served agent "{name}"?', yes=yes)
        with current().status(f"Removing {name}"):
            remove_server(client, name)
    return OperationResult(
        operation="rollout.server.remove",
        message=f'Removed "{name}".',
        resource={"name": name, **resource},
    )


def _address(item: Mapping[str, Any]) -> str:
    host = item["host"]
    return f"{f'[{host}]' if ':' in host else host}:{item['port']}"


def _problem(found: RegisteredRolloutServer) -> str:
    return found.health_check_result.error or "the platform does not say why"
