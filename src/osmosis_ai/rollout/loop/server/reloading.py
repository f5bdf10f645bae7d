"""The application in the process that is started again whenever a file changes: the agent is imported anew."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..settings import RolloutSettings


@dataclass(frozen=True)
class ReloadedApp:
    """Makes the application; pickled on its way to the process that serves it.

    Attributes:
        module: ``module:attribute`` of the agent.
        registers: whether the platform is told, with the login that is found there.
    """

    module: str
    host: str
    port: int
    api_key: str | None = field(repr=False)
    registers: bool
    public_host: str | None
    debug_dir: Path | None
    settings: RolloutSettings | None

    def __call__(self) -> FastAPI:
        """Load the agent and return the application; ends the process with one line when there is none."""
        from osmosis_ai.api.credentials import require_credentials

        from ..loading import load_agent_loop
        from .app import create_app

        _end_with_the_parent()
        try:
            agent = load_agent_loop(self.module)
            credentials = require_credentials() if self.registers else None
        except OsmosisError as error:
            _say(f"Error: {error.message}")
            _say("hint: it is loaded again when a file changes")
            raise SystemExit(1) from None
        return create_app(
            agent,
            settings=self.settings,
            credentials=credentials,
            server_host=self.host,
            server_port=self.port,
            api_key=self.api_key,
            debug_dir=self.debug_dir,
            public_host=self.public_host,
            say=_say,
        )


def _end_with_the_parent() -> None:
    """End when the process that watches the files is gone, however it went."""
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
