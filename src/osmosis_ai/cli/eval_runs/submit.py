"""`osmosis eval submit`: an evaluation on the platform."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.options import YesOption
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.runs.submit import CheckOption, SecretsFileOption, submit_run

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.runs import SubmittedRun
    from osmosis_ai.cli.runs.following import Ending


def submit(
    config: Annotated[Path, typer.Argument(help="A TOML file of configs/eval/.", show_default=False)],
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the run to its end and show the results.")
    ] = False,
    check: CheckOption = False,
    secrets_file: SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Submit an evaluation to the platform.

    The code is what the platform fetches from the repository; the config is read from this machine. Secrets
    travel as names, unless a --secrets-file supplies values.
    """
    return submit_run(
        "eval",
        config,
        check=check,
        watch=watch,
        secrets_file=secrets_file,
        yes=yes,
        follow=_follow,
    )


def _follow(client: PlatformClient, run: SubmittedRun) -> Ending:
    from osmosis_ai.cli.eval_runs import following

    ending = following.follow(client, run.id)
    if not ending.blocks:
        return ending
    return replace(ending, hints=[*ending.hints, f"Conversations: osmosis eval download {run.name}"])
