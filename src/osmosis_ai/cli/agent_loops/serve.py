"""`osmosis serve`: serve an agent loop over HTTP in the foreground."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Column, OperationResult, StreamResult

if TYPE_CHECKING:
    from osmosis_ai.rollout.server.serve import AgentServer

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


def serve(
    module: Annotated[str, typer.Option("--module", "-m", help="Agent loop, as module:attribute.")],
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 chooses a free one.")
    ] = 9000,
    host: Annotated[str, typer.Option("--host", "-H", help="Address to listen on.")] = "0.0.0.0",
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Skip the check of the agent.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a file below this directory changes.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Level of the log on stderr.")] = "info",
    skip_register: Annotated[
        bool, typer.Option("--skip-register", help="Do not register with the platform; needs no login.")
    ] = False,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            "--local-debug",
            help="Accept requests without a key and do not register with the platform.",
        ),
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(help="API key that callers must send (default: a generated one, which is printed)."),
    ] = None,
    public_host: Annotated[
        str | None,
        typer.Option(
            help="Address under which the platform reaches this machine (default: detected from the network)."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Directory for the agent's events, one file per rollout.")
    ] = None,
) -> StreamResult:
    """Serve an agent loop over HTTP until Ctrl-C.

    `POST /v1/rollout/init` starts a rollout, and a callback reports its result. Until it stops, the server is registered
    with your platform. Rollouts interrupted by the stop are reported as failed.

    Examples:
        osmosis serve -m server:agent_loop --port 9000
    """
    from osmosis_ai.rollout.server.serve import ServeOptions
    from osmosis_ai.services.agent_loops import prepare

    options = ServeOptions(
        host=host,
        port=port,
        validate_agent=not no_validate,
        log_level=log_level,
        reload=reload,
        skip_register=skip_register,
        api_key=api_key,
        local_debug=local,
        debug_dir=log,
        public_host=public_host,
    )
    server = prepare(module, options)
    return StreamResult(items=_serve(server), columns=[Column("", value=lambda item: str(item["message"]))])


def _serve(server: AgentServer) -> Iterator[dict[str, Any]]:
    """Yield the address of the server, then serve until it stops."""
    from osmosis_ai.cli.output.envelopes import result_envelope

    yield result_envelope(_served(server))
    output = current()
    for name, value in server.facts():
        output.note(f"{name}: {value}")
    server.run(say=output.note)


def _served(server: AgentServer) -> OperationResult:
    return OperationResult(
        operation="serve",
        message=f"Serving {server.agent.name} at {server.url}",
        resource={
            "agent_loop": server.agent.name,
            "url": server.url,
            "host": server.options.host,
            "port": server.options.port,
            "api_key": server.options.api_key if server.generated_key else None,
            "registers_with": server.credentials and server.credentials.platform_url,
            "debug_dir": server.options.debug_dir and str(server.options.debug_dir),
        },
    )
