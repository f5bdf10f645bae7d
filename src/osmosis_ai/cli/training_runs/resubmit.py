"""`osmosis train resubmit`: a new run of the config of another one."""

from __future__ import annotations

from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.cli.runs.submit import SecretsFileOption, WatchOption


def resubmit(
    run: RunArgument,
    watch: WatchOption = False,
    secrets_file: SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Submit the config of a training run again, after showing what has changed since.

    Commit, dataset, secrets and the platform's version are compared. Secrets that were given with the run alone are
    to be given again.

    Examples:
        osmosis train resubmit keen-owl-2
        osmosis train resubmit keen-owl-2 --secrets-file secrets.env --watch --yes
    """
    from osmosis_ai.cli.runs.resubmit import resubmit_run
    from osmosis_ai.cli.training_runs.view import VIEW

    return resubmit_run(VIEW, run, watch=watch, secrets_file=secrets_file, yes=yes)
