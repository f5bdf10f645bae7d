"""`osmosis serve`: what has to be there before an agent loop is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import MissingExtraError

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.server.serve import AgentServer


def prepare(
    module: str,
    *,
    host: str,
    port: int,
    validate: bool,
    log_level: str,
    reload: bool,
    skip_register: bool,
    api_key: str | None,
    local_debug: bool,
    debug_dir: Path | None,
    public_host: str | None,
) -> AgentServer:
    """Return the server of an agent loop, its port taken.

    Args:
        module: ``module:attribute`` of the agent loop; the rest as of
            :func:`osmosis_ai.rollout.loop.server.serve.serve_agent_loop`.

    Raises:
        OsmosisError: when the agent cannot be loaded or is not valid, nobody is logged in, or the port is taken.
    """
    from osmosis_ai.rollout.loop.server.serve import prepare_server

    try:
        return prepare_server(
            module,
            host=host,
            port=port,
            validate=validate,
            log_level=log_level,
            reload=reload,
            skip_register=skip_register,
            api_key=api_key,
            local_debug=local_debug,
            debug_dir=debug_dir,
            public_host=public_host,
        )
    except ImportError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError):
            raise
        raise MissingExtraError("server", str(cause.name)) from error
