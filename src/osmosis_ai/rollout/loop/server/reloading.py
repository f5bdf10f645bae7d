"""Create the application in the process that restarts on file changes, importing the agent again."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from osmosis_ai.errors import OsmosisError

from ..settings import RolloutSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

SERVED_AGENT_ENV = "_OSMOSIS_SERVED_AGENT"


class ReloadedApp(BaseModel):
    """Options of the served application, passed to the serving process.

    Attributes:
        module: ``module:attribute`` of the agent.
        registers: Whether to register with the platform, with the login found there.
    """

    module: str
    host: str
    port: int
    api_key: str | None = Field(repr=False)
    registers: bool
    public_host: str | None
    debug_dir: Path | None
    settings: RolloutSettings | None


def make_app() -> FastAPI:
    """Load the agent described by the environment and return its application.

    Raises:
        SystemExit: It cannot be loaded. stderr has one line with the reason.
    """
    from osmosis_ai.api.credentials import require_credentials

    from ..loading import load_agent_loop
    from .app import create_app

    _end_with_the_parent()
    served = ReloadedApp.model_validate_json(os.environ.pop(SERVED_AGENT_ENV))
    try:
        agent = load_agent_loop(served.module)
        credentials = require_credentials() if served.registers else None
    except OsmosisError as error:
        _say(f"Error: {error.message}")
        _say("hint: it is loaded again when a file changes")
        raise SystemExit(1) from None
    return create_app(
        agent,
        settings=served.settings,
        credentials=credentials,
        server_host=served.host,
        server_port=served.port,
        api_key=served.api_key,
        debug_dir=served.debug_dir,
        public_host=served.public_host,
        say=_say,
    )


def _end_with_the_parent() -> None:
    """Exit when the process that watches the files has ended for any reason."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
