"""The demo without a platform: `osmosis eval run`."""

from __future__ import annotations

import os
from collections.abc import Callable

from osmosis_ai.services.demo.commands import Display, run_shown
from osmosis_ai.services.demo.outcome import DemoOutcome, read_outcome
from osmosis_ai.services.demo.scratch import CONFIG, Scratch

RUN_NAME = "demo"


def run_local_demo(scratch: Scratch, *, display: Display, tell: Callable[[str], None]) -> DemoOutcome:
    """Evaluate the sample agent on this machine and read what that left behind.

    Args:
        scratch: from :func:`~osmosis_ai.services.demo.scratch.prepare_scratch`.
        display: the mode of the evaluation's output.
        tell: takes the commands as a user would type them.

    Raises:
        OsmosisError: the evaluation ended without results.
        KeyboardInterrupt: the user interrupted it.
    """
    tell(f"$ cd {scratch.workspace}\n$ osmosis eval run {CONFIG}")
    words = ("eval", "run", CONFIG, "--yes", "--name", RUN_NAME)
    status, run = run_shown(scratch, words, display=display, env=scratch.environment(os.environ), tell=tell)
    return read_outcome(scratch, status, scratch.workspace / ".osmosis" / "evals" / RUN_NAME, run)
