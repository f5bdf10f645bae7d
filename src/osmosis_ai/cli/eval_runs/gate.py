"""`osmosis eval gate`: does a run meet its rules?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.connection import platform_when_needed
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.options import (
    JunitOption,
    MarkdownOption,
    RewardRangeOption,
    checked_confidence,
    parse_reward_range,
)
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import money, one_line
from osmosis_ai.cli.output.results import Column, OperationResult, OperationStatus, Styled, Table, Text, Tone
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.cli.output.decision_files import DecisionFiles
    from osmosis_ai.evaluation.gating import RuleResult, Verdict
    from osmosis_ai.services.eval_runs.gate import GateReport
    from osmosis_ai.services.eval_runs.gate_decision import GateQuestion

_STATUSES: dict[Verdict, OperationStatus] = {"pass": "success", "fail": "failed", "unclear": "unclear"}
_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "unclear": "warn"}
_MESSAGES: dict[Verdict, str] = {
    "pass": "meets every rule.",
    "fail": "does not meet every rule.",
    "unclear": "shows too little to tell.",
}


class Unclear(str, Enum):
    """What a gate that cannot tell ends as."""

    PASS = "pass"
    FAIL = "fail"


def gate(
    run: Annotated[
        str,
        typer.Argument(
            help="A run of this machine or of the platform: its name, a unique beginning of it, its directory, @last, "
            "git:REF; or a result file of `osmosis eval rubric`.",
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
    margins: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="METRIC=X",
            help="The metric may be at most X worse than the baseline's: 0.03 of a rate is 3 points, 0.1 of cost_per_row, "
            "tokens or latency 10 %; may be repeated.",
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            metavar="FILE",
            help="A .decide.toml with rules; without it the one beside the run's config.",
        ),
    ] = None,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="COLUMN",
            help="Every rule must hold in each value of a column of the dataset, too; may be repeated.",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence", metavar="C", help="Of every bound; 0.95 unless you or the rules say otherwise."
        ),
    ] = None,
    unclear: Annotated[
        Unclear | None,
        typer.Option(
            "--unclear",
            help="End as pass (0) or fail (1) where there is not enough evidence, instead of with 3.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="The baseline, named like the run.",
            show_default=False,
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
    reward_range: RewardRangeOption = None,
    unpaired: Annotated[bool, typer.Option("--unpaired", help="Compare runs on different rows.")] = False,
    allow_different_grader: Annotated[
        bool,
        typer.Option("--allow-different-grader", help="Compare runs that were graded by different rules."),
    ] = False,
    allow_same: Annotated[
        bool, typer.Option("--allow-same", help="Compare runs of the same seed, model and code.")
    ] = False,
    allow_imported: Annotated[
        bool,
        typer.Option("--allow-imported", help="Also take a run of the platform that was executed elsewhere."),
    ] = False,
    markdown: MarkdownOption = None,
    junit: JunitOption = None,
) -> OperationResult:
    """Check a run against thresholds.

    Exits with 0 for pass, 1 for fail and 3 for unclear.

    A --min rule passes if the one-sided 95 % lower bound of the metric is at or above X, and fails if the upper bound
    is below X. With 95 % confidence, a --margin rule passes if the run is less than X worse than the baseline, and
    fails if it is more than X worse. A verdict on rewards or pass rates must also hold with every unscored attempt at
    the worst score, and with all of them at the best. All rules must pass. Failures are adjusted for the number of
    rules.

    Metrics: reward, pass_rate, pass@K, pass^K, cost_per_row (USD), tokens and latency (seconds) per attempt;
    unscored, failed and infrastructure (shares of attempts). A judge's result file has score, alpha and unscored. The
    verdict on an unfinished run is unclear.

    Examples:
        osmosis eval gate amber-otter-42 --min pass_rate=0.8 --max unscored=0.05
        osmosis eval gate @last --against git:main --margin pass_rate=0.03 --max cost_per_row=0.02 --slice difficulty
    """
    from osmosis_ai.cli.output.decision_files import DecisionFiles
    from osmosis_ai.evaluation.comparison.comparability import Allowances
    from osmosis_ai.evaluation.gating import parse_rules
    from osmosis_ai.services.eval_runs.gate_decision import GateQuestion

    with _usage():
        asked = parse_rules(minima or [], maxima or [], margins or [])
    wanted = None if confidence is None else checked_confidence(confidence)
    files = DecisionFiles(markdown, junit).check()
    question = GateQuestion(
        rules=tuple(asked),
        against=against,
        rules_file=rules,
        slices=tuple(dict.fromkeys(slices or [])),
        confidence=wanted,
        reward_range=None if reward_range is None else parse_reward_range(reward_range),
        allowed=Allowances(unpaired, True, allow_different_grader, allow_same),
        allow_imported=allow_imported,
    )
    report = _decided(run, question)
    for warning in report.warnings:
        current().warn(one_line(warning))
    ended = _ended_as(report, unclear)
    result = OperationResult(
        operation="eval.gate",
        status=_STATUSES[ended],
        message=one_line(_message(report, ended)),
        resource={**report.resource(), "ended_as": ended},
        blocks=[*_tables(report), *(Text(_line(each), in_plain=True) for each in report.judgements)],
    )
    _write(files, report, result)
    return result


@contextmanager
def _usage() -> Iterator[None]:
    """Let a rule that is none be a wrong command line: it must not look like a run that fails."""
    try:
        yield
    except OsmosisError as error:
        raise _wrong(error) from None


def _wrong(error: OsmosisError) -> typer.BadParameter:
    return typer.BadParameter(f"{error.message.rstrip('.')}; {error.hint}" if error.hint else error.message)


def _decided(run: str, question: GateQuestion) -> GateReport:
    from osmosis_ai.services.eval_runs.gate_decision import GateUsageError, gate

    try:
        with platform_when_needed() as client:
            return gate(run, question, client=client)
    except GateUsageError as error:
        raise _wrong(error) from None


def _ended_as(report: GateReport, unclear: Unclear | None) -> Verdict:
    """Return what the gate ends as: `--unclear` is about what cannot be told, and lets nothing through that is not finished."""
    if report.verdict != "unclear" or unclear is None:
        return report.verdict
    if unclear is Unclear.PASS:
        return "unclear" if report.undecided is not None or report.without_number else "pass"
    return "fail"


def _message(report: GateReport, ended: Verdict) -> str:
    said = f"{report.verdict}: {report.run.name} {_MESSAGES[report.verdict]}"
    if ended != report.verdict:
        return f"{said} It ends as {ended}, as --unclear says."
    settles = [each.settles for each in report.judgements if each.verdict == "unclear" and each.settles]
    return (
        f"{said} To settle it: {settles[0]}." if report.verdict == "unclear" and len(settles) == 1 else said
    )


def _write(files: DecisionFiles, report: GateReport, result: OperationResult) -> None:
    from osmosis_ai.cli.output.junit import JunitCase
    from osmosis_ai.cli.output.markdown_report import DecisionDocument

    met = [(str(each.rule), _why(each)) for each in report.judgements if each.verdict == "pass"]
    document = DecisionDocument(
        title="osmosis eval gate",
        marker=f"eval.gate:{report.run.subject}",
        verdict=result.message or report.verdict,
        notes=report.warnings,
        blocks=[
            *(block for block in result.blocks if isinstance(block, Table)),
            *(Text(_line(each)) for each in report.judgements if each.verdict != "pass"),
        ],
        details=[Table(("Rule", "Why"), met, title="Why the other rules are met")] if met else [],
    )
    files.write(document, [JunitCase(str(each.rule), each.verdict, _why(each)) for each in report.judgements])


def _tables(report: GateReport) -> list[Table]:
    """Return what the rules came to: limits with the run's own numbers, margins with differences from the baseline."""
    limits = [each for each in report.judgements if each.rule.bound != "margin"]
    margins = [each for each in report.judgements if each.rule.bound == "margin"]
    level = f"bounds are one-sided, each at {100 * report.confidence:g} % confidence"
    if report.run.source == "rubric":
        level = (
            "bounds of a score are the ends of its 95 % interval, which asks for more than a one-sided one"
        )
    if report.decided_by is not None:
        level = f"{level}; with the rules of {report.decided_by}"
    found = []
    if limits:
        found.append(_table(limits, report.run.name, "Value", level))
    if margins:
        against = report.baseline.name if report.baseline is not None else "the baseline"
        title = f"{report.run.name} against {against}"
        found.append(_table(margins, title, "Difference", level))
    return found


def _table(judgements: list[RuleResult], title: str, value: str, note: str) -> Table:
    return Table(
        (
            "Rule",
            Column(value, right=True),
            Column("At least", right=True),
            Column("At most", right=True),
            Column("Rows", right=True),
            "Verdict",
        ),
        [
            (
                str(each.rule),
                *_numbers(each),
                each.evidence.rows,
                Styled(each.verdict, _TONES[each.verdict]),
            )
            for each in judgements
        ],
        title=title,
        note=note,
    )


def _line(judgement: RuleResult) -> str:
    # A reason may repeat an agent's error, and CI reads lines as commands.
    return one_line(f"{judgement.verdict}: {judgement.rule}: {_why(judgement)}")


def _why(judgement: RuleResult) -> str:
    if judgement.settles is None:
        return judgement.reason
    return f"{judgement.reason} To settle it: {judgement.settles}."


def _numbers(judgement: RuleResult) -> tuple[str | None, ...]:
    """Return a number and its bounds as the rule is written: of a margin the change, in points or percent."""
    from osmosis_ai.evaluation.comparison.gate_rules import margin_number, margin_words

    rule, found = judgement.rule, judgement.evidence
    if rule.bound == "margin":
        value = None if found.value is None else margin_words(rule, found.value)
        bounds = (
            None if end is None else margin_number(rule, end) for end in (found.at_least, found.at_most)
        )
        return (value, *bounds)
    numbers = (found.value, found.at_least, found.at_most)
    written = money if rule.metric == "cost_per_row" else "{:.3f}".format
    return tuple(None if number is None else written(number) for number in numbers)
