"""`osmosis eval retry`: the failed and unscored samples of a run, made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import RunArgument, YesOption
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult, Row, Table
from osmosis_ai.cli.runs.submit import SecretsFileOption, run_again_fields

if TYPE_CHECKING:
    from osmosis_ai.services.eval_runs.retry import ProposedRetry


def retry(
    run: RunArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the retry to its end and show the results.")
    ] = False,
    secrets_file: SecretsFileOption = None,
    yes: YesOption = False,
) -> OperationResult:
    """Make the failed and unscored samples of a run again, as a new run on the same commit, rows and seeds.

    `eval info` of either shows what both have come to together. Secrets that were given with the run alone are to be
    given again.

    Examples:
        osmosis eval retry amber-otter-42 --watch
    """
    from osmosis_ai.cli.eval_runs.view import VIEW
    from osmosis_ai.services.eval_runs.retry import plan_retry, submit_retry
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    output = current()
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        with output.status("Asking the platform"):
            planned = plan_retry(context.client, run, values)
        rows = _rows(planned)
        output.show(Table(("", ""), rows, title="Retry"))
        output.confirm(
            f'Retry {planned.samples} samples of evaluation run "{planned.name}"?',
            yes=yes,
            default=True,
            summary={label: str(value) for label, value in rows},
        )
        with output.status("Submitting the retry"):
            made = submit_retry(context.client, planned)
        result = OperationResult(
            operation="eval.retry",
            message=f"Evaluation run submitted: {made.name}, a retry of {planned.name}",
            resource={
                **run_again_fields(made),
                "retry_of": {"id": planned.check.eval_run.id, "name": planned.name},
                "samples": planned.check.samples,
                "planned": planned.check.planned,
                **context.resource(),
            },
            next_steps=[
                f"Follow: osmosis eval watch {made.name}",
                f"With its retry: osmosis eval info {planned.name}",
            ],
            next_steps_structured=[
                {"action": "eval_info", "name": made.name},
                {"action": "eval_watch", "name": made.name},
            ],
        )
        return VIEW.submitted(context.client, made, result, watch=watch)


def _rows(planned: ProposedRetry) -> list[Row]:
    check = planned.check
    scopes = check.resolved_secret_scopes
    return [
        ("Run", planned.name),
        ("Samples", f"{planned.samples}: {planned.reasons}"),
        ("Commit", (check.commit_sha or "")[:12]),
        *(
            [("Secrets", ", ".join(f"{name} ({scope})" for name, scope in sorted(scopes.items())))]
            if scopes
            else []
        ),
    ]
