"""`osmosis train submit`: a training run on the platform."""

from __future__ import annotations

from osmosis_ai.cli.options import TrainingConfigArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.runs.submit import CheckOption, SecretsFileOption, WatchOption, submit_run


def submit(
    config: TrainingConfigArgument,
    watch: WatchOption = False,
    check: CheckOption = False,
    secrets_file: SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Submit a training run to the platform.

    The code is what the platform fetches from the repository; the config is read from this machine. Secrets
    travel as names, unless a --secrets-file supplies values.

    Examples:
        osmosis train submit configs/training/multiply.toml --watch
    """
    from osmosis_ai.cli.training_runs.view import VIEW

    return submit_run(VIEW, config, check=check, watch=watch, secrets_file=secrets_file, yes=yes)
