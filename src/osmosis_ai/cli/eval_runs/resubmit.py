"""`osmosis eval resubmit`: a new run of the config of another one."""

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
    """Submit the config of an evaluation run again, after showing what has changed since.

    Commit, dataset, secrets and the platform's version are compared. Secrets that were given with the run alone are
    to be given again.

    Examples:
        osmosis eval resubmit amber-otter-42
        osmosis eval resubmit amber-otter-42 --secrets-file secrets.env --watch --yes
    """
    from osmosis_ai.cli.eval_runs.view import VIEW
    from osmosis_ai.cli.runs.resubmit import resubmit_run

    return resubmit_run(VIEW, run, watch=watch, secrets_file=secrets_file, yes=yes)
