"""The demo as a team works: a platform in its own process, and everything through its API."""

from __future__ import annotations

from dataclasses import replace

from osmosis_ai.services.demo.commands import Display, Tell
from osmosis_ai.services.demo.outcome import DemoOutcome
from osmosis_ai.services.demo.scratch import CONFIG, DATASET, Scratch
from osmosis_ai.services.demo.session import Session, running_platform


def run_platform_demo(scratch: Scratch, *, display: Display, keep: bool, tell: Tell) -> DemoOutcome:
    """Evaluate the sample agent through a platform of its own and read what that left behind.

    Args:
        scratch: from :func:`~osmosis_ai.services.demo.scratch.prepare_scratch`.
        display: the mode of the evaluation's output.
        keep: whether the platform goes on running afterwards.
        tell: takes the commands as a user would type them, and what they said.

    Raises:
        OsmosisError: a command failed.
        KeyboardInterrupt: the user interrupted it.
    """
    with running_platform(scratch, keep=keep, tell=tell) as platform:
        session = Session(scratch, platform, display, tell)
        session.connect()
        session.upload(DATASET)
        outcome = session.evaluate(CONFIG)
        platform.keep = keep
        return replace(outcome, platform_url=platform.url if keep else None)
