"""`osmosis serve`: what has to be there before an agent loop is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis_ai.errors import MissingExtraError

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.server.serve import AgentServer, ServeOptions


def prepare(module: str, options: ServeOptions) -> AgentServer:
    """Return the server of an agent loop, its port taken.

    Args:
        module: ``module:attribute`` of the agent loop.
        options: how it is served.

    Raises:
        OsmosisError: when the agent cannot be loaded or is not valid, nobody is logged in, or the port is taken.
    """
    from osmosis_ai.rollout.loop.server.serve import prepare_server

    try:
        return prepare_server(module, options)
    except ImportError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError):
            raise
        raise MissingExtraError("server", str(cause.name)) from error
