"""`osmosis eval gate`: does a run meet its rules?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import one_line
from osmosis_ai.cli.output.results import Column, OperationResult, OperationStatus, Styled, Table, Text, Tone
from osmosis_ai.errors import NotFoundError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.evaluation.gating import RuleResult, Verdict
    from osmosis_ai.services.eval_runs.gate import GatedRun, GateReport

_STATUSES: dict[Verdict, OperationStatus] = {"pass": "success", "fail": "failed", "unclear": "unclear"}
_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "unclear": "warn"}
_MESSAGES: dict[Verdict, str] = {
    "pass": "meets every rule.",
    "fail": "does not meet every rule.",
    "unclear": "is not enough evidence to tell.",
}


def gate(
    run: Annotated[
        str,
        typer.Argument(
            help="Name of a run of this machine, or its directory; a run of the platform, by name or id; or a result "
            "file of `osmosis eval rubric`.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ],
    minima: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="METRIC=X", help="The metric must be at least X; may be repeated."),
    ] = None,
    maxima: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="METRIC=X", help="The metric must be at most X; may be repeated."),
    ] = None,
    allow_imported: Annotated[
        bool,
        typer.Option("--allow-imported", help="Also take a run of the platform that was executed elsewhere."),
    ] = False,
) -> OperationResult:
    """Hold a run against rules, by what it proves: exits 0 when it passes, 1 when it fails, 3 when it cannot tell.

    A --min rule passes when the one-sided 95 % lower bound of the metric is at or above X, and fails when the upper
    bound is below it. Metrics: reward, pass_rate, pass@K, and of all attempts the shares unscored, failed and
    infrastructure; of a judge's result file score, alpha and unscored. What is not finished never passes.

    Examples:
        osmosis eval gate amber-otter-42 --min pass_rate=0.8 --max unscored=0.05
    """
    from osmosis_ai.evaluation.gating import parse_rules, require_rules
    from osmosis_ai.services.eval_runs.gate import gate_run

    with _usage():
        rules = parse_rules(minima or [], maxima or [])
        require_rules(rules)
    found = _find(run, allow_imported=allow_imported)
    with _usage():
        found.require(rules)
    report = gate_run(found, rules)
    for warning in report.warnings:
        current().warn(warning)
    return OperationResult(
        operation="eval.gate",
        status=_STATUSES[report.verdict],
        message=f"{report.verdict}: {report.run.name} {_MESSAGES[report.verdict]}",
        resource=report.resource(),
        blocks=[_table(report), *(Text(_line(each), in_plain=True) for each in report.judgements)],
    )


@contextmanager
def _usage() -> Iterator[None]:
    """Let a rule that is none be a wrong command line: it must not look like a run that fails."""
    try:
        yield
    except OsmosisError as error:
        raise typer.BadParameter(
            f"{error.message.rstrip('.')}; {error.hint}" if error.hint else error.message
        ) from None


def _find(run: str, *, allow_imported: bool) -> GatedRun:
    from osmosis_ai.services.eval_runs.gate import local_run, platform_run, rubric_results
    from osmosis_ai.services.eval_runs.resolver import find_local_run, name_elsewhere
    from osmosis_ai.services.eval_runs.watch import run_nowhere

    file = Path(run).expanduser()
    if file.is_file():
        return rubric_results(file)
    try:
        directory = find_local_run(run)
    except NotFoundError as missing:
        name = name_elsewhere(run, missing)
        try:
            with platform_context() as context, current().status("Fetching evaluation run"):
                return platform_run(context.client, name, allow_imported=allow_imported)
        except OsmosisError as error:
            raise run_nowhere(name, missing, error) from None
    return local_run(directory)


def _table(report: GateReport) -> Table:
    return Table(
        (
            "Rule",
            Column("Value", right=True),
            Column("At least", right=True),
            Column("At most", right=True),
            Column("Rows", right=True),
            "Verdict",
        ),
        [
            (
                str(each.rule),
                _number(each.evidence.value),
                _number(each.evidence.at_least),
                _number(each.evidence.at_most),
                each.evidence.rows,
                Styled(each.verdict, _TONES[each.verdict]),
            )
            for each in report.judgements
        ],
        title=report.run.name,
        note="bounds are one-sided, each at 95 % confidence",
    )


def _line(judgement: RuleResult) -> str:
    # A reason may repeat an agent's error, and CI reads lines as commands.
    return one_line(f"{judgement.verdict}: {judgement.rule}: {judgement.reason}")


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
