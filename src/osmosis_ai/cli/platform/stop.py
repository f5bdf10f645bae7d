"""`osmosis platform stop`: end the platform of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult


def stop(
    timeout: Annotated[float, typer.Option(min=0.1, help="How long to wait for it, in seconds.")] = 60.0,
) -> OperationResult:
    """Stop the platform that runs on this machine; runs under way go on at its next start.

    Examples:
        osmosis platform stop
    """
    from osmosis_ai.platform.config import data_of_environment
    from osmosis_ai.platform.process_state import stop_platform

    home = data_of_environment().home
    with current().status("Stopping the platform"):
        process = stop_platform(home, timeout_s=timeout)
    return OperationResult(
        operation="platform.stop",
        status="noop" if process is None else "success",
        message=f"No platform runs in {home}." if process is None else f"Stopped the platform in {home}.",
        resource={"home": str(home), "pid": process.pid if process else None},
    )
