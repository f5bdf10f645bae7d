"""`osmosis eval compare`, `gate` and `plan`: compare runs, check them and plan their size."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.completion import complete_run_anywhere
from osmosis_ai.cli.connection import platform_context, platform_when_needed
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import MISSING, count, duration, money, one_line, percent
from osmosis_ai.cli.output.reports import (
    DecisionDocument,
    DecisionFiles,
    JunitCase,
    report_file,
    tell_written,
)
from osmosis_ai.cli.output.results import (
    Cell,
    Column,
    OperationResult,
    OperationStatus,
    Styled,
    Table,
    Text,
    Tone,
)
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.decisions.compare import ComparedCandidate, ComparedTable, RunComparison, RunTotals
    from osmosis_ai.decisions.gate import RuleResult, Verdict
    from osmosis_ai.decisions.plan import Design
    from osmosis_ai.services.eval_runs.gate import GatedRun, GateReport
    from osmosis_ai.services.eval_runs.plan import PlannedEval


SlicesOption = Annotated[
    list[str] | None,
    typer.Option("--slice", metavar="COLUMN", help="Also check each value of a dataset column; repeatable."),
]
UnpairedOption = Annotated[bool, typer.Option("--unpaired", help="Compare runs on different rows.")]
DifferentGraderOption = Annotated[
    bool, typer.Option("--allow-different-grader", help="Also compare runs with different graders.")
]
SameOption = Annotated[
    bool, typer.Option("--allow-same", help="Also compare runs of the same seed, model and code.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show every table, reason and note.")]

_MOST_ROWS = 10_000
_NUMBERS = "numbers, names and settings of the runs, and digests of rows"
_TEXT = "values of the --slice columns"


def compare(
    baseline: Annotated[
        str,
        typer.Argument(
            help="Baseline run: a name, a unique prefix, a directory, @last or git:REF; local:NAME and platform:NAME "
            "select the place.",
            autocompletion=complete_run_anywhere,
        ),
    ],
    candidates: Annotated[
        list[str],
        typer.Argument(
            help="Runs to compare with the baseline, in the same notation.",
            autocompletion=complete_run_anywhere,
        ),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Metric of the verdict: reward, pass_rate, pass@K, pass^K, unscored, failed, cost_per_row, tokens or "
            "latency (default: pass_rate; reward if rewards are graded).",
        ),
    ] = None,
    slices: SlicesOption = None,
    confidence: Annotated[
        float, typer.Option(metavar="SHARE", help="Confidence level of the intervals.")
    ] = 0.95,
    reward_range: options.RewardRangeOption = None,
    unpaired: UnpairedOption = False,
    partial: Annotated[bool, typer.Option("--partial", help="Also compare unfinished runs.")] = False,
    allow_different_grader: DifferentGraderOption = False,
    allow_same: SameOption = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the resampling; equal seeds give equal output.")
    ] = 0,
    rows: Annotated[
        int, typer.Option(min=0, max=_MOST_ROWS, help="Number of rows to list, most changed first.")
    ] = 10,
    verbose: VerboseOption = False,
    markdown: options.MarkdownOption = None,
    report: options.ReportOption = None,
    no_text: options.NoTextOption = False,
    force: options.OverwriteReportOption = False,
) -> OperationResult:
    """Compare runs with a baseline, row by row.

    Rows are matched by content, not by position. The exit code is 0 for every verdict: `osmosis eval gate` turns a
    comparison into an exit code.

    Examples:
        osmosis eval compare amber-otter-42 keen-owl-7
        osmosis eval compare amber-otter-42 keen-owl-7 --report compared.html
    """
    from osmosis_ai.decisions.changes import described
    from osmosis_ai.decisions.comparability import Allowances
    from osmosis_ai.decisions.compare import CompareOptions
    from osmosis_ai.services.eval_runs.samples import compare as compare_named

    if metric is not None:
        described(metric)  # before anything is read
    settings = CompareOptions(
        metric=metric,
        slices=tuple(dict.fromkeys(slices or [])),
        confidence=options.checked_confidence(confidence),
        reward_range=None if reward_range is None else options.parse_reward_range(reward_range),
        seed=seed,
        rows_shown=rows,
        allowances=Allowances(
            unpaired=unpaired, partial=partial, different_grader=allow_different_grader, same=allow_same
        ),
    )
    files = DecisionFiles(markdown=markdown).check()
    text = _TEXT if slices else ""
    file = report_file(report, overwrite=force, no_text=no_text, holds={None: (_NUMBERS, text)})
    with platform_when_needed() as client:
        found = compare_named(baseline, candidates, settings, client=client, report=file)
    files.write(_comparison_document(found))
    return OperationResult(
        operation="eval.compare",
        # A name may hold a line break, and CI reads lines as commands.
        message=one_line(found.sentence),
        resource={**found.data(), **tell_written(file)},
        blocks=list(_comparison_blocks(found, verbose=verbose)),
        next_steps=_next_steps(found),
    )


def _next_steps(found: RunComparison) -> list[str]:
    """Return the command that plans a larger run if a comparison is inconclusive."""
    config = found.candidates[-1].totals.inputs.config
    # Without a changed row there is no variance to plan with.
    open_ones = [
        each
        for each in found.candidates
        if each.verdict.detectable is not None and (each.rows is None or each.rows.higher or each.rows.lower)
    ]
    if config is None or not open_ones or found.metric not in ("pass_rate", "reward"):
        return []
    pilot, against = (
        run.location if run.place == "file" else run.name for run in (open_ones[0].totals, found.baseline)
    )
    words = ["osmosis", "eval", "plan", config, "--pilot", pilot, "--against", against, "--detect", "0.05"]
    metric = [] if found.metric == "pass_rate" else ["--metric", found.metric]
    return [one_line(f"Plan a larger run: {shlex.join([*words, *metric])}")]


_COMPARED_TONES: dict[str, Tone] = {
    "better": "good",
    "worse": "bad",
    "inconclusive": "warn",
    "too few rows": "dim",
}
# These columns keep their width; the names of metrics and slices wrap.
_UNWRAPPED = ("Difference", "p", "p (Holm)", "p (BH)", "Rows", "Run")


def _comparison_blocks(found: RunComparison, *, verbose: bool) -> Iterator[Table | Text]:
    """Yield what follows the verdict; inputs, totals and the rows of several candidates need ``verbose``."""
    from osmosis_ai.decisions import compare as tables

    yield from (Text(note, tone="dim", in_plain=True) for note in _comparison_notes(found))
    if verbose and (differing := tables.differing_inputs(found)) is not None:
        yield _compared_table(differing)
    yield from (_compared_table(tables.changed_metrics(found, each)) for each in found.candidates)
    for candidate in found.candidates:
        yield from _row_counts(found, candidate)
        if verbose or len(found.candidates) == 1:
            yield from _changed_rows(found, candidate)
    for candidate in found.candidates:
        if (slices := tables.changed_slices(found, candidate)) is not None:
            yield _compared_table(slices)
    if verbose:
        yield _compared_table(tables.taken(found))


def _comparison_document(found: RunComparison) -> DecisionDocument:
    """Return the comparison as a comment for a pull request, with the rows folded."""
    from osmosis_ai.decisions import compare as tables

    inputs = found.candidates[0].totals.inputs
    metrics = [tables.changed_metrics(found, each) for each in found.candidates]
    slices = [tables.changed_slices(found, each) for each in found.candidates]
    shown = [tables.differing_inputs(found), *metrics, *slices]
    return DecisionDocument(
        title="osmosis eval compare",
        marker=f"eval.compare:{inputs.config or f'{inputs.rollout}/{inputs.dataset_name}'}",
        verdict=found.sentence,
        notes=_comparison_notes(found),
        blocks=[
            *(_compared_table(each) for each in shown if each is not None),
            *(text for candidate in found.candidates for text in _row_counts(found, candidate)),
        ],
        details=[
            *(table for candidate in found.candidates for table in _changed_rows(found, candidate)),
            _compared_table(tables.taken(found)),
        ],
    )


def _comparison_notes(found: RunComparison) -> list[str]:
    """Return where the runs are and what differs between them in a sentence, then the notes about them."""
    places = {"local": "on this machine", "platform": "on the platform"}
    runs = []
    for run in found.runs:
        revision = f"revision {run.revision}, " if run.revision else ""
        runs.append(f"{run.name} ({revision}{places.get(run.place, run.location)})")
    differs = f" Different inputs: {', '.join(found.differs)}." if found.differs else ""
    notes = dict.fromkeys(note for candidate in found.candidates for note in candidate.comparability.notes)
    return [one_line(note) for note in (f"Compared: {', '.join(runs)}.{differs}", *notes)]


def _row_counts(found: RunComparison, candidate: ComparedCandidate) -> Iterator[Text]:
    from osmosis_ai.decisions.compare import row_counts

    if candidate.rows is not None:
        yield Text(f"{_of(found, candidate)}{row_counts(candidate.rows)}", in_plain=True)


def _changed_rows(found: RunComparison, candidate: ComparedCandidate) -> Iterator[Table]:
    from osmosis_ai.decisions.compare import changed_rows

    names = (found.baseline.name, candidate.name)
    table = changed_rows(names, candidate.rows, " are not shown (--rows N)")
    if table is not None:
        yield _compared_table(table, of=_of(found, candidate))


def _of(found: RunComparison, candidate: ComparedCandidate) -> str:
    return f"{candidate.name}: " if len(found.candidates) > 1 else ""


def _compared_table(found: ComparedTable, *, of: str = "") -> Table:
    from osmosis_ai.decisions.compare import DECIDES

    def styled(cell: str, heading: str) -> Cell:
        if heading == "Metric" and cell.endswith(DECIDES):
            return Styled(cell, "strong")
        return Styled(cell, _COMPARED_TONES[cell]) if heading == "Verdict" else cell

    columns = [
        Column(heading, right=place not in found.texts, keep=heading in _UNWRAPPED)
        for place, heading in enumerate(found.headings)
    ]
    rows = [list(map(styled, row, found.headings)) for row in found.rows]
    return Table(columns, rows, title=of + found.title, note=found.note, in_plain=True)


_STATUSES: dict[Verdict, OperationStatus] = {"pass": "success", "fail": "failed", "unclear": "unclear"}
_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "unclear": "warn"}
_MESSAGES: dict[Verdict, str] = {
    "pass": "meets every rule.",
    "fail": "does not meet every rule.",
    "unclear": "has too little evidence.",
}
# Printed words of verdicts; JSON and the option keep "unclear".
_SHOWN: dict[Verdict, str] = {"pass": "pass", "fail": "fail", "unclear": "inconclusive"}
_MOST_REASONS = 3


def gate(
    run: Annotated[
        str,
        typer.Argument(
            help="Local or platform run: a name, a unique prefix, a directory, @last or git:REF; or a result file of "
            "`osmosis eval rubric`.",
            autocompletion=complete_run_anywhere,
        ),
    ],
    minima: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="METRIC=X", help="The metric must be at least X; repeatable."),
    ] = None,
    maxima: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="METRIC=X", help="The metric must be at most X; repeatable."),
    ] = None,
    margins: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="METRIC=X",
            help="The metric may be at most X worse than the baseline's: 0.03 is 3 points of a rate, 0.1 is 10% of "
            "cost_per_row, tokens or latency; repeatable.",
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            metavar="FILE",
            help="A .decide.toml file with rules (default: the one next to the run's config).",
        ),
    ] = None,
    slices: SlicesOption = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="C",
            help="Confidence level of the bounds (default: that of the rules, or 0.95).",
        ),
    ] = None,
    unclear: Annotated[
        Literal["pass", "fail"] | None,
        typer.Option(
            "--unclear", help="Exit with 0 (pass) or 1 (fail) instead of 3 if the verdict is inconclusive."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Baseline run, in the same notation.",
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
    reward_range: options.RewardRangeOption = None,
    unpaired: UnpairedOption = False,
    allow_different_grader: DifferentGraderOption = False,
    allow_same: SameOption = False,
    allow_imported: Annotated[
        bool,
        typer.Option(
            "--allow-imported", help="Also accept a platform run that was uploaded from another machine."
        ),
    ] = False,
    verbose: VerboseOption = False,
    markdown: options.MarkdownOption = None,
    junit: options.JunitOption = None,
) -> OperationResult:
    """Check a run against thresholds.

    Exits with 0 for pass, 1 for fail and 3 if inconclusive.

    A --min rule passes if the one-sided 95% lower bound of the metric is at or above X, and fails if the upper bound
    is below X. With 95% confidence, a --margin rule passes if the run is less than X worse than the baseline, and
    fails if it is more than X worse. A verdict on rewards or pass rates must also hold with every unscored attempt at
    the worst score, and with all of them at the best. All rules must pass. Failures are adjusted for the number of
    rules.

    Metrics: reward, pass_rate, pass@K, pass^K, cost_per_row (USD), tokens and latency (seconds) per attempt;
    unscored, failed and infrastructure (shares of attempts). A judge's result file has score, alpha and unscored. The
    verdict on an unfinished run is inconclusive.

    Examples:
        osmosis eval gate amber-otter-42 --min pass_rate=0.8 --max unscored=0.05
        osmosis eval gate @last --against git:main --margin pass_rate=0.03 --max cost_per_row=0.02 --slice difficulty
    """
    from osmosis_ai.decisions.comparability import Allowances
    from osmosis_ai.decisions.gate import parse_rules
    from osmosis_ai.services.eval_runs.gate import GateQuestion
    from osmosis_ai.services.eval_runs.gate import gate as apply_gate

    parsed = parse_rules(minima or [], maxima or [], margins or [])
    files = DecisionFiles(markdown, junit).check()
    question = GateQuestion(
        rules=tuple(parsed),
        against=against,
        rules_file=rules,
        slices=tuple(dict.fromkeys(slices or [])),
        confidence=None if confidence is None else options.checked_confidence(confidence),
        reward_range=None if reward_range is None else options.parse_reward_range(reward_range),
        allowed=Allowances(unpaired, True, allow_different_grader, allow_same),
        allow_imported=allow_imported,
    )
    with platform_when_needed() as client:
        report = apply_gate(run, question, client=client)
    for warning in report.warnings:
        current().warn(one_line(warning))
    ended = _exit_verdict(report, unclear)
    message = one_line(_gate_message(report, ended))
    table = _gate_table(report)
    met = [(str(each.rule), _why(each)) for each in report.judgements if each.verdict == "pass"]
    files.write(
        DecisionDocument(
            title="osmosis eval gate",
            marker=f"eval.gate:{report.run.subject}",
            verdict=message,
            notes=report.warnings,
            blocks=[table, *(Text(_line(each)) for each in report.judgements if each.verdict != "pass")],
            details=[Table(("Rule", "Why"), met, title="Passed rules")] if met else [],
        ),
        [
            # What `--unclear` decides is no longer skipped.
            JunitCase(str(each.rule), ended if each.verdict == report.verdict else each.verdict, _why(each))
            for each in report.judgements
        ],
    )
    reasons = map(_line, report.judgements) if verbose else _unseen_reasons(report)
    return OperationResult(
        operation="eval.gate",
        status=_STATUSES[ended],
        message=message,
        resource={**report.resource(), "ended_as": ended},
        blocks=[table, *(Text(reason, in_plain=True) for reason in reasons)],
    )


def _exit_verdict(report: GateReport, unclear: Literal["pass", "fail"] | None) -> Verdict:
    """Return the exit verdict; `--unclear pass` does not pass an unfinished run or one without the number."""
    if report.verdict != "unclear" or unclear is None:
        return report.verdict
    if unclear == "fail":
        return "fail"
    lacks_number = any(each.evidence.value is None for each in report.judgements)
    return "unclear" if report.undecided is not None or lacks_number else "pass"


def _name(run: GatedRun | RunTotals) -> str:
    return f"{run.name} (revision {run.revision})" if run.revision else run.name


def _gate_message(report: GateReport, ended: Verdict) -> str:
    said = _MESSAGES[report.verdict]
    if report.verdict == "unclear" and report.run.unfinished is not None:
        said = "is not finished."
    message = f"{_SHOWN[report.verdict]}: {_name(report.run)} {said}"
    if ended != report.verdict:
        return f"{message} Result: {_SHOWN[ended]} (--unclear)."
    settles = [each.settles for each in report.judgements if each.verdict == "unclear" and each.settles]
    if report.verdict == "unclear" and len(settles) == 1:
        return f"{message} To decide: {settles[0]}."
    return message


def _gate_table(report: GateReport) -> Table:
    """Return a row for each rule, the slices of a rule below it; the numbers of a margin are differences."""
    bounds = f"one-sided bounds at {100 * report.confidence:g}% confidence"
    if report.run.source == "rubric":
        bounds = "the bounds of a score are the ends of its 95% interval"
    if report.decided_by is not None:
        bounds += f"; rules from {report.decided_by}"
    against = f" against {_name(report.baseline)}" if report.baseline is not None else ""
    headings = ("Value", "Lower bound", "Upper bound", "Rows")
    rows: list[Sequence[Cell]] = []
    for whole in (each for each in report.judgements if each.rule.slice is None):
        rows.append(_rule_row(str(whole.rule), whole))
        for each in report.judgements:
            same = (each.rule.metric, each.rule.bound) == (whole.rule.metric, whole.rule.bound)
            if same and each.rule.limit == whole.rule.limit and each.rule.slice is not None:
                column, value = each.rule.slice
                rows.append(_rule_row(f"  {column} = {MISSING if value is None else value}", each))
    numbers = [Column(heading, right=True, keep=True) for heading in headings]
    columns: list[Column | str] = ["Rule", *numbers, "Verdict"]
    return Table(columns, rows, title=f"{_name(report.run)}{against}", note=bounds, in_plain=True)


def _rule_row(name: str, judgement: RuleResult) -> Sequence[Cell]:
    verdict = Styled(_SHOWN[judgement.verdict], _TONES[judgement.verdict])
    return (name, *_numbers(judgement), judgement.evidence.rows, verdict)


def _unseen_reasons(report: GateReport) -> list[str]:
    """Return the reasons of inconclusive verdicts that the bounds do not show, each once."""
    if report.undecided is not None:
        return [one_line(f"inconclusive: {report.undecided}")]
    unseen: dict[str, str] = {}
    for each in report.judgements:
        evidence = each.evidence
        is_open = evidence.at_least is None or evidence.at_most is None or evidence.unscored
        if each.verdict == "unclear" and (is_open or evidence.undecided or each.is_adjusted):
            unseen.setdefault(_why(each), _line(each))
    lines = list(unseen.values())
    hidden = len(lines) - _MOST_REASONS
    return [*lines[:_MOST_REASONS], f"{hidden} more reasons: --verbose"] if hidden > 0 else lines


def _line(judgement: RuleResult) -> str:
    # A reason may repeat an agent's error, and CI reads lines as commands.
    return one_line(f"{_SHOWN[judgement.verdict]}: {judgement.rule}: {_why(judgement)}")


def _why(judgement: RuleResult) -> str:
    if judgement.settles is None:
        return judgement.reason
    return f"{judgement.reason} To decide: {judgement.settles}."


def _numbers(judgement: RuleResult) -> tuple[str | None, ...]:
    """Return a number and its bounds in the unit of the rule; for a margin, the change."""
    from osmosis_ai.decisions.gate import format_share, margin_number, margin_words

    rule, found = judgement.rule, judgement.evidence
    if rule.bound == "margin":
        value = None if found.value is None else margin_words(rule, found.value)
        bounds = (
            None if end is None else margin_number(rule, end) for end in (found.at_least, found.at_most)
        )
        return (value, *bounds)
    numbers = (found.value, found.at_least, found.at_most)
    written = money if rule.metric == "cost_per_row" else "{:.3f}".format
    shown = format_share if rule.described.scale == "share" else written
    return tuple(None if number is None else shown(number) for number in numbers)


def plan(
    config: options.EvalConfigArgument,
    pilot: Annotated[
        str | None,
        typer.Option(
            help="Run to estimate variance and cost from, ideally with 30 rows and n >= 2.",
            metavar="RUN",
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Second run on the same rows, for the variance of the difference.",
            metavar="RUN",
            autocompletion=complete_run_anywhere,
        ),
    ] = None,
    pass_rate: Annotated[
        float | None, typer.Option(help="Expected pass rate, without a pilot (default: 0.5).")
    ] = None,
    icc: Annotated[
        float | None, typer.Option(help="Share of the variance between rows, without a pilot (default: 0.3).")
    ] = None,
    detect: Annotated[
        float | None, typer.Option(help="Difference to detect: 0.03 is three points of a pass rate.")
    ] = None,
    power: Annotated[
        float, typer.Option(help="Statistical power: probability of detecting the difference.")
    ] = 0.8,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence level of the interval (0 to 1).")
    ] = None,
    metric: Annotated[Literal["pass_rate", "reward"], typer.Option(help="Metric to compare.")] = "pass_rate",
    max_cost: Annotated[float | None, typer.Option(help="Budget of one run in US dollars.")] = None,
    rows_at_most: Annotated[
        int | None, typer.Option(help="Maximum number of rows (default: the dataset's).")
    ] = None,
    row_cost: Annotated[
        float, typer.Option(help="Cost of one more row in US dollars, without its attempts.")
    ] = 0.0,
    verbose: VerboseOption = False,
    markdown: options.MarkdownOption = None,
) -> OperationResult:
    """Plan how many rows and attempts detect a difference.

    The variance comes from an earlier run (--pilot) or is assumed. Nothing is run.

    Examples:
        osmosis eval plan configs/eval/multiply.toml --pilot amber-otter-42 --detect 0.03
        osmosis eval plan configs/eval/multiply.toml --pass-rate 0.6 --icc 0.3 --rows-at-most 200
    """
    from osmosis_ai.services.eval_runs.plan import PlanRequest, plan_eval

    request = PlanRequest(
        config=config,
        metric=metric,
        pilot=pilot,
        against=against,
        detect=detect,
        power=power,
        confidence=confidence,
        max_cost=max_cost,
        rows_at_most=rows_at_most,
        row_cost=row_cost,
        pass_rate=pass_rate,
        icc=icc,
    )
    files = DecisionFiles(markdown=markdown).check()
    with platform_when_needed() as client:
        planned = plan_eval(request, client=client, count_rows=_platform_rows)
    # Without --detect, people read what a usual difference needs.
    judged = replace(planned.plan.goal, detect=planned.plan.goal.judged_by)
    shown = replace(planned, plan=replace(planned.plan, goal=judged))
    verdict, *further = _plan_sentences(shown)
    files.write(
        DecisionDocument(
            title="osmosis eval plan",
            marker=f"eval.plan:{planned.config}",
            verdict=verdict,
            notes=[*further, *planned.notes],
            blocks=[_plan_table(shown, shown.plan.designs)],
        )
    )
    return OperationResult(
        operation="eval.plan",
        message=verdict,
        resource={**planned.data(), "sentences": [verdict, *further]},
        blocks=[
            *(Text(sentence, in_plain=True) for sentence in further),
            _plan_table(shown, shown.plan.designs if verbose else _main_designs(shown)),
            *(Text(f"Note: {note}", tone="dim", in_plain=True) for note in planned.notes),
        ],
    )


def _platform_rows(dataset: str) -> int | None:
    """Return the number of rows of a dataset on the platform; None if it cannot be read."""
    from osmosis_ai.services.datasets import get_dataset

    try:
        with platform_context() as context, current().status("Fetching dataset"):
            return get_dataset(context.client, dataset).row_count
    except OsmosisError:
        return None


_ALTERNATIVES = 3


def _main_designs(planned: PlannedEval) -> list[Design]:
    """Return the design of the config, the cheapest sufficient one, that of the budget, and three alternatives."""
    plan = planned.plan
    main = [each for each in (plan.own, plan.cheapest, plan.best) if each is not None]
    size = main[0].attempts if main else 0
    near = sorted(plan.designs, key=lambda each: abs(each.attempts - 2 * size))
    others = [each for each in (plan.more_rows, plan.more_attempts, *near) if each and each not in main]
    return sorted(
        [*dict.fromkeys(main), *list(dict.fromkeys(others))[:_ALTERNATIVES]],
        key=lambda each: (each.rows, each.n),
    )


def _plan_table(planned: PlannedEval, designs: Sequence[Design]) -> Table:
    plan, goal, speed = planned.plan, planned.plan.goal, planned.plan.price.per_second
    unit = " (points)" if planned.metric == "pass_rate" else ""
    headings = ["Rows", "n", "Attempts", f"Detects{unit}"]
    headings += ["Range"] if plan.outlook.possible else []
    headings += [f"Power at {_amount(planned, goal.judged_by)}"] if goal.judged_by is not None else []
    headings += ["Cost", "Time"] if speed else ["Cost"]
    note = (
        f"detects: the smallest difference found with {_power(planned)} power at {100 * goal.confidence:g}% confidence; "
        "cost of one run"
    )
    if speed:
        note += f"; time at the speed of {planned.pilot}: {speed:.2g} attempts per second, including start-up"
    return Table(
        [*(Column(heading, right=True) for heading in headings), ""],
        [_plan_row(planned, design) for design in designs],
        title="Designs",
        note=note,
        in_plain=True,
    )


def _plan_row(planned: PlannedEval, design: Design) -> Sequence[Cell]:
    plan = planned.plan
    enough = plan.goal.detect is not None and design.sees is not None and design.sees <= plan.goal.detect
    sees = _plan_cell(planned, design.sees)
    cells: list[Cell] = [count(design.rows), design.n, count(design.attempts)]
    cells.append(Styled(sees, "good") if enough else sees)
    if plan.outlook.possible:
        least, most = _plan_cell(planned, design.least), _plan_cell(planned, design.greatest)
        cells.append(None if design.least is None else least if least == most else f"{least}–{most}")
    if plan.goal.judged_by is not None:
        cells.append(percent(design.power, digits=0))
    cells.append("unknown" if design.cost_usd is None else money(design.cost_usd))
    cells += [] if design.duration_s is None else [duration(design.duration_s)]
    marks = {"config": plan.own, "cheapest": plan.cheapest, "best": plan.best}
    return (*cells, ", ".join(mark for mark, marked in marks.items() if design == marked))


def _plan_sentences(planned: PlannedEval) -> Iterator[str]:
    """Yield what the config detects, then the cheapest sufficient design, the best one, and what more would bring."""
    plan, own, goal = planned.plan, planned.plan.own, planned.plan.goal
    if own is None:
        yield f"{planned.config} sets no limit and the size of its dataset is unknown."
    elif own.rows < 2:
        yield f"{planned.config} ({_size(own)}): one row cannot show a difference between runs."
    else:
        sees = "no difference" if own.sees is None else f"{_amount(planned, own.sees)} or more"
        sentence = f"{planned.config} ({_size(own)}) detects {sees} with {_power(planned)} power"
        if own.sees is not None and goal.judged_by is not None and own.power is not None:
            sentence += f", and {_amount(planned, goal.judged_by)} with {100 * own.power:.0f}%"
        yield f"{sentence}."
    if goal.detect is not None:
        yield _goal_sentence(planned, goal.detect)
    if goal.most_cost_usd is not None:
        yield _budget_sentence(planned, goal.most_cost_usd)
    if own is not None and own.rows >= 2:
        now = own.sees and _amount(planned, own.sees)
        more = []
        for name, design in (("rows", plan.more_rows), ("attempts", plan.more_attempts)):
            if design is not None and design.sees is not None:
                then = _amount(planned, design.sees)
                more.append(
                    f"twice the {name} would detect {'no smaller difference' if then == now else then}"
                )
        if more:
            sentence = ", ".join(more)
            yield f"{sentence[0].upper()}{sentence[1:]}."
    if plan.best_n is not None and goal.row_cost_usd:
        yield (
            f"n = {plan.best_n} is the most cost-effective if a row costs {money(goal.row_cost_usd)} and an attempt "
            f"{money(plan.price.cost_usd)}."
        )


def _goal_sentence(planned: PlannedEval, detect: float) -> str:
    plan, what, cheapest = planned.plan, _amount(planned, detect), planned.plan.cheapest
    if cheapest is None:
        most = plan.goal.most_rows
        where = f"{_rows(most)}" if most is not None else "any number of rows"
        sentence = f"No number of attempts on {where} detects {what}"
        if plan.rows_wanted is not None:
            wanted_n = planned.n if plan.outlook.likely.within is not None else 1
            sentence += f"; {_rows(plan.rows_wanted)} with n = {wanted_n} would"
        return f"{sentence}."
    budget, cost = plan.goal.most_cost_usd, cheapest.cost_usd
    over = f" Its cost exceeds {money(budget)}." if cost and budget is not None and cost > budget else ""
    return f"Cheapest design for {what}: {_size(cheapest)}{_price(cheapest)}.{over}"


def _budget_sentence(planned: PlannedEval, most_cost_usd: float) -> str:
    plan, best = planned.plan, planned.plan.best
    if plan.price.cost_usd == 0 and not plan.goal.row_cost_usd:
        return "Attempts are free here: only rows and time are limited."
    if best is None:
        return f"A budget of {money(most_cost_usd)} is too small for two rows."
    detected = "no difference" if best.sees is None else f"{_amount(planned, best.sees)} or more"
    return f"Best design for {money(most_cost_usd)}: {_size(best)}{_price(best)}, which detects {detected}."


def _price(design: Design) -> str:
    cost = [money(design.cost_usd)] if design.cost_usd is not None else []
    time = [duration(design.duration_s)] if design.duration_s is not None else []
    return f" ({', '.join([*cost, *time])})" if cost or time else ""


def _size(design: Design) -> str:
    return f"{_rows(design.rows)} x {design.n}"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _plan_cell(planned: PlannedEval, difference: float | None) -> str:
    """Return a difference with the decimals of its column."""
    if difference is None:
        return "none"
    if planned.metric == "pass_rate":
        return f"{100 * difference:.1f}"
    return f"{difference:.3f}" if difference >= 0.01 else f"{difference:.3g}"


def _amount(planned: PlannedEval, difference: float) -> str:
    """Return ``7.1 points`` for a rate, ``0.071`` for a reward."""
    if planned.metric != "pass_rate":
        return f"{difference:.3g}"
    number = f"{100 * difference:.{1 if difference >= 0.001 else 3}f}".removesuffix(".0")
    return f"{number} point{'' if number == '1' else 's'}"


def _power(planned: PlannedEval) -> str:
    return f"{100 * planned.plan.goal.power:.2g}%"
