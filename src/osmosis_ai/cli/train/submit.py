"""`osmosis train submit`: a training run on the platform."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli import run_submit
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.run_submit import CheckOption, SecretsFileOption, YesOption

_WORDS = run_submit.Words("train", "training", "osmosis train logs {name} --follow")


def submit(
    config: Annotated[Path, typer.Argument(help="A TOML file of configs/training/.", show_default=False)],
    check: CheckOption = False,
    secrets_file: SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Submit a training run to the platform.

    The code is what the platform fetches from the repository; the config is read from this machine. Secrets
    travel as names, unless a --secrets-file supplies values.
    """
    return run_submit.submit_run(_WORDS, config, check=check, secrets_file=secrets_file, yes=yes)
