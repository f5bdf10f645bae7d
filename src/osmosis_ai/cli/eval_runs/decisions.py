"""`osmosis eval compare`, `gate` and `plan`: compare runs, check them and plan their size."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from osmosis_ai.cli import options
from osmosis_ai.cli.connection import platform_context, platform_when_needed
from osmosis_ai.cli.name_completion import complete_run_anywhere
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import count, duration, money, one_line, percent
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
    from osmosis_ai.decisions.compare import RunComparison, RunTotals
    from osmosis_ai.decisions.gate import RuleResult, Verdict
    from osmosis_ai.decisions.plan import Design, EvalPlan
    from osmosis_ai.services.eval_runs.gate import GatedRun, GateReport
    from osmosis_ai.services.eval_runs.plan import PlannedEval


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
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice", metavar="COLUMN", help="Also compare by the values of a dataset column; repeatable."
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(metavar="SHARE", help="Confidence level of the intervals.")
    ] = 0.95,
    reward_range: options.RewardRangeOption = None,
    unpaired: Annotated[bool, typer.Option("--unpaired", help="Compare runs on different rows.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Also compare unfinished runs.")] = False,
    allow_different_grader: Annotated[
        bool, typer.Option("--allow-different-grader", help="Also compare runs with different graders.")
    ] = False,
    allow_same: Annotated[
        bool, typer.Option("--allow-same", help="Also compare runs of the same seed, model and code.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the resampling; equal seeds give equal output.")
    ] = 0,
    rows: Annotated[
        int, typer.Option(min=0, max=_MOST_ROWS, help="Number of rows to list, most changed first.")
    ] = 10,
    markdown: options.MarkdownOption = None,
    report: options.ReportOption = None,
    no_text: options.NoTextOption = False,
    force: options.OverwriteReportOption = False,
) -> OperationResult:
    """Compare runs with a baseline, row by row.

    The exit code is 0 for every verdict.

    Rows are matched by content, not by position. `osmosis eval gate` turns a comparison into an exit code.

    Examples:
        osmosis eval compare amber-otter-42 keen-owl-7
        osmosis eval compare amber-otter-42 keen-owl-7 --report compared.html
    """
    from osmosis_ai.cli.output.comparison_tables import comparison_blocks, comparison_document
    from osmosis_ai.decisions.comparability import Allowances
    from osmosis_ai.decisions.compare import CompareOptions
    from osmosis_ai.services.eval_runs.samples import compare as compare_named

    settings = CompareOptions(
        metric=None if metric is None else _checked_metric(metric),
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
    files.write(comparison_document(found))
    return OperationResult(
        operation="eval.compare",
        # A name may hold a line break, and CI reads lines as commands.
        message=one_line(found.sentence),
        resource={**found.data(), **tell_written(file)},
        blocks=comparison_blocks(found),
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


def _checked_metric(metric: str) -> str:
    from osmosis_ai.decisions.changes import described

    try:
        described(metric)
    except OsmosisError as error:
        raise typer.BadParameter(
            f"{error.message.rstrip('.')}; {error.hint}", param_hint="'--metric'"
        ) from None
    return metric


_STATUSES: dict[Verdict, OperationStatus] = {"pass": "success", "fail": "failed", "unclear": "unclear"}
_TONES: dict[Verdict, Tone] = {"pass": "good", "fail": "bad", "unclear": "warn"}
_MESSAGES: dict[Verdict, str] = {
    "pass": "meets every rule.",
    "fail": "does not meet every rule.",
    "unclear": "has too little evidence.",
}


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
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="COLUMN",
            help="Also apply every rule to each value of a dataset column; repeatable.",
        ),
    ] = None,
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
            "--unclear", help="Exit with 0 (pass) or 1 (fail) instead of 3 if the evidence is insufficient."
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
    unpaired: Annotated[bool, typer.Option("--unpaired", help="Compare runs on different rows.")] = False,
    allow_different_grader: Annotated[
        bool, typer.Option("--allow-different-grader", help="Also compare runs with different graders.")
    ] = False,
    allow_same: Annotated[
        bool, typer.Option("--allow-same", help="Compare runs of the same seed, model and code.")
    ] = False,
    allow_imported: Annotated[
        bool,
        typer.Option(
            "--allow-imported", help="Also accept a platform run that was uploaded from another machine."
        ),
    ] = False,
    markdown: options.MarkdownOption = None,
    junit: options.JunitOption = None,
) -> OperationResult:
    """Check a run against thresholds.

    Exits with 0 for pass, 1 for fail and 3 for unclear.

    A --min rule passes if the one-sided 95% lower bound of the metric is at or above X, and fails if the upper bound
    is below X. With 95% confidence, a --margin rule passes if the run is less than X worse than the baseline, and
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
    from osmosis_ai.decisions.comparability import Allowances
    from osmosis_ai.decisions.gate import parse_rules
    from osmosis_ai.services.eval_runs.gate import GateQuestion, GateUsageError
    from osmosis_ai.services.eval_runs.gate import gate as apply_gate

    try:
        parsed = parse_rules(minima or [], maxima or [], margins or [])
    except OsmosisError as error:
        raise _usage_error(error) from None
    level = None if confidence is None else options.checked_confidence(confidence)
    files = DecisionFiles(markdown, junit).check()
    question = GateQuestion(
        rules=tuple(parsed),
        against=against,
        rules_file=rules,
        slices=tuple(dict.fromkeys(slices or [])),
        confidence=level,
        reward_range=None if reward_range is None else options.parse_reward_range(reward_range),
        allowed=Allowances(unpaired, True, allow_different_grader, allow_same),
        allow_imported=allow_imported,
    )
    try:
        with platform_when_needed() as client:
            report = apply_gate(run, question, client=client)
    except GateUsageError as error:
        raise _usage_error(error) from None
    for warning in report.warnings:
        current().warn(one_line(warning))
    ended = _exit_verdict(report, unclear)
    result = OperationResult(
        operation="eval.gate",
        status=_STATUSES[ended],
        message=one_line(_message(report, ended)),
        resource={**report.resource(), "ended_as": ended},
        blocks=[*_tables(report), *(Text(_line(each), in_plain=True) for each in report.judgements)],
    )
    _write(files, report, result)
    return result


def _usage_error(error: OsmosisError) -> typer.BadParameter:
    return typer.BadParameter(f"{error.message.rstrip('.')}; {error.hint}" if error.hint else error.message)


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


def _message(report: GateReport, ended: Verdict) -> str:
    message = f"{report.verdict}: {_name(report.run)} {_MESSAGES[report.verdict]}"
    if ended != report.verdict:
        return f"{message} Result: {ended} (--unclear)."
    settles = [each.settles for each in report.judgements if each.verdict == "unclear" and each.settles]
    if report.verdict == "unclear" and len(settles) == 1:
        return f"{message} To decide: {settles[0]}."
    return message


def _write(files: DecisionFiles, report: GateReport, result: OperationResult) -> None:
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
        details=[Table(("Rule", "Why"), met, title="Passed rules")] if met else [],
    )
    files.write(document, [JunitCase(str(each.rule), each.verdict, _why(each)) for each in report.judgements])


def _tables(report: GateReport) -> list[Table]:
    """Return the results: limits with the run's own numbers, margins with differences from the baseline."""
    limits = [each for each in report.judgements if each.rule.bound != "margin"]
    margins = [each for each in report.judgements if each.rule.bound == "margin"]
    level = f"one-sided bounds at {100 * report.confidence:g}% confidence"
    if report.run.source == "rubric":
        level = "bounds of a score are the ends of its 95% CI, which is stricter than a one-sided bound"
    if report.decided_by is not None:
        level = f"{level}; rules from {report.decided_by}"
    found, run = [], _name(report.run)
    if limits:
        found.append(_table(limits, run, "Value", level))
    if margins:
        against = _name(report.baseline) if report.baseline is not None else "the baseline"
        found.append(_table(margins, f"{run} against {against}", "Difference", level))
    return found


def _table(judgements: list[RuleResult], title: str, value: str, note: str) -> Table:
    numbers = [Column(heading, right=True) for heading in (value, "At least", "At most", "Rows")]
    rows = [
        (str(each.rule), *_numbers(each), each.evidence.rows, Styled(each.verdict, _TONES[each.verdict]))
        for each in judgements
    ]
    return Table(("Rule", *numbers, "Verdict"), rows, title=title, note=note)


def _line(judgement: RuleResult) -> str:
    # A reason may repeat an agent's error, and CI reads lines as commands.
    return one_line(f"{judgement.verdict}: {judgement.rule}: {_why(judgement)}")


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
    if rule.described.scale == "share":
        return tuple(None if number is None else format_share(number) for number in numbers)
    written = money if rule.metric == "cost_per_row" else "{:.3f}".format
    return tuple(None if number is None else written(number) for number in numbers)


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
    markdown: options.MarkdownOption = None,
) -> OperationResult:
    """Plan how many rows and attempts detect a difference.

    The variance comes from an earlier run (--pilot) or is assumed. Nothing is run.

    Examples:
        osmosis eval plan configs/eval/multiply.toml --pilot amber-otter-42 --detect 0.03
        osmosis eval plan configs/eval/multiply.toml --pass-rate 0.6 --icc 0.3 --rows-at-most 200
    """
    from osmosis_ai.services.eval_runs.plan import PlanRequest, PlanUsageError, plan_eval

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
    try:
        with platform_when_needed() as client:
            planned = plan_eval(request, client=client, count_rows=_platform_rows)
    except PlanUsageError as error:
        raise typer.BadParameter(error.message) from None
    parts = (_config_part, _goal_part, _budget_part, _advice)
    verdict, *further = (sentence for part in parts for sentence in part(planned))
    shown = _plan_table(planned)
    document = DecisionDocument(
        title="osmosis eval plan",
        marker=f"eval.plan:{planned.config}",
        verdict=verdict,
        notes=[*further, *planned.notes],
        blocks=[shown],
    )
    files.write(document)
    return OperationResult(
        operation="eval.plan",
        message=verdict,
        resource={**planned.data(), "sentences": [verdict, *further]},
        blocks=[
            *(Text(sentence, in_plain=True) for sentence in further),
            shown,
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


_ALIKE = 0.02
"""Designs are equivalent if their detectable differences differ by less than this share."""


def _plan_table(planned: PlannedEval) -> Table:
    plan, goal, at_once = planned.plan, planned.plan.goal, planned.plan.price.at_once
    judged_by = goal.judged_by
    pace = "one attempt after another" if at_once == 1 else f"{at_once} attempts at once"
    columns: list[Column | str] = [
        Column("Rows", right=True),
        Column("n", right=True),
        Column("Attempts", right=True),
        Column("Detects (points)" if planned.metric == "pass_rate" else "Detects", right=True),
    ]
    if plan.outlook.possible:
        columns.append(Column("Range", right=True))
    if judged_by is not None:
        columns.append(Column(f"Power at {_amount(planned, judged_by)}", right=True))
    columns += [Column("Cost", right=True), Column("Time", right=True), ""]
    return Table(
        columns,
        [_row(planned, design) for design in plan.designs],
        title="Designs",
        note=f"detects: the smallest difference found with {100 * goal.power:.0f}% power at "
        f"{100 * goal.confidence:g}% confidence; cost and time of one run, {pace}",
        in_plain=True,
    )


def _row(planned: PlannedEval, design: Design) -> tuple[Cell, ...]:
    plan = planned.plan
    enough = plan.goal.detect is not None and design.sees is not None and design.sees <= plan.goal.detect
    sees = _cell(planned, design.sees)
    sizes = (count(design.rows), design.n, count(design.attempts))
    cells: list[Cell] = [*sizes, Styled(sees, "good") if enough else sees]
    if plan.outlook.possible:
        least, most = _cell(planned, design.least), _cell(planned, design.greatest)
        cells.append(None if design.least is None else least if least == most else f"{least} – {most}")
    if plan.goal.judged_by is not None:
        cells.append(percent(design.power, digits=0))
    cost = "unknown" if design.cost_usd is None else money(design.cost_usd)
    time = "unknown" if design.duration_s is None else duration(design.duration_s)
    return (*cells, cost, time, ", ".join(_marks(plan, design)))


def _marks(plan: EvalPlan, design: Design) -> Iterator[str]:
    if design == plan.own:
        yield "config"
    if design == plan.cheapest:
        yield "cheapest"
    if design == plan.best:
        yield f"best for {money(plan.goal.most_cost_usd)}"


def _config_part(planned: PlannedEval) -> Iterator[str]:
    plan, own = planned.plan, planned.plan.own
    if own is None:
        yield f"{planned.config} sets no limit and the size of its dataset is unknown. The table shows designs."
        return
    runs = f"{planned.config} runs {_size(own)}"
    if own.rows < 2:
        yield f"{runs}: attempts on one row cannot show a difference between runs."
        return
    if own.sees is None:
        yield f"{runs}: this design detects no difference with {_power(plan)} power."
        return
    sentence = f"{runs}: this design detects {_amount(planned, own.sees)} or more"
    if plan.goal.judged_by is not None and own.power is not None:
        judged_by = plan.goal.judged_by
        is_rate = planned.metric == "pass_rate"
        change = f"a {_points(judged_by)}-point change" if is_rate else f"a change of {judged_by:.3g}"
        sentence += f"; {change} is detected with {100 * own.power:.0f}% power"
    yield f"{sentence}."


def _goal_part(planned: PlannedEval) -> Iterator[str]:
    plan, detect = planned.plan, planned.plan.goal.detect
    if detect is None:
        return
    what, cheapest = _amount(planned, detect), plan.cheapest
    if cheapest is None:
        most = plan.goal.most_rows
        where = f"{_rows(most)}" if most is not None else "any number of rows"
        sentence = f"No number of attempts on {where} detects {what}"
        if plan.rows_wanted is not None:
            wanted_n = planned.n if plan.outlook.likely.within is not None else 1
            sentence += f"; {_rows(plan.rows_wanted)} with n = {wanted_n} would"
        yield f"{sentence}."
        return
    yield f"The cheapest design that detects {what} with {_power(plan)} power is {_size(cheapest)}{_price(cheapest)}."
    cost, most_cost = cheapest.cost_usd, plan.goal.most_cost_usd
    if cost is not None and most_cost is not None and cost > most_cost:
        yield f"That exceeds the budget of {money(most_cost)}."


def _budget_part(planned: PlannedEval) -> Iterator[str]:
    plan, most = planned.plan, planned.plan.goal.most_cost_usd
    if most is None:
        return
    if plan.price.cost_usd == 0 and not plan.goal.row_cost_usd:
        yield "Attempts are free here: only rows and time are limited."
    elif plan.best is None:
        yield f"A budget of {money(most)} is too small for two rows."
    else:
        best = plan.best
        detected = "no difference" if best.sees is None else f"{_amount(planned, best.sees)} or more"
        yield f"The best design for {money(most)} is {_size(best)}: it detects {detected}{_price(best)}."


def _advice(planned: PlannedEval) -> Iterator[str]:
    plan = planned.plan
    own, rows, attempts = plan.own, plan.more_rows, plan.more_attempts
    known = [
        f"twice the {name} would detect {_amount(planned, design.sees)}"
        for name, design in (("rows", rows), ("attempts", attempts))
        if design is not None and design.sees is not None
    ]
    if own is not None and own.rows >= 2 and known:
        sentence = ", ".join(known)
        if rows is None:
            sentence = f"the dataset has too few rows to double them, and {sentence}"
        elif attempts is not None and rows.sees and attempts.sees:
            gain = "help as much as"
            if attempts.sees < rows.sees * (1 - _ALIKE):
                gain = "help more than"
            if attempts.sees <= rows.sees * (1 + _ALIKE):
                sentence += f": more attempts {gain} more rows"
            else:
                sentence += ": more rows help more than more attempts"
        yield f"{sentence[0].upper()}{sentence[1:]}."
    if plan.best_n is None:
        return
    if plan.goal.row_cost_usd:
        yield (
            f"n = {plan.best_n} is the most cost-effective if a row costs {money(plan.goal.row_cost_usd)} and an attempt "
            f"{money(plan.price.cost_usd)}."
        )
    elif rows is not None:
        yield "One more row is more cost-effective than one more attempt, while rows are available."


def _price(design: Design) -> str:
    known = [
        money(design.cost_usd) if design.cost_usd is not None else None,
        duration(design.duration_s) if design.duration_s is not None else None,
    ]
    shown = [each for each in known if each is not None]
    return f" ({', '.join(shown)})" if shown else ""


def _size(design: Design) -> str:
    return f"{_rows(design.rows)} x {design.n}"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _cell(planned: PlannedEval, difference: float | None) -> str:
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
    number = _points(difference)
    return f"{number} point{'' if number == '1' else 's'}"


def _points(difference: float) -> str:
    digits = 1 if difference >= 0.001 else 3
    return f"{100 * difference:.{digits}f}".removesuffix(".0")


def _power(plan: EvalPlan) -> str:
    return f"{100 * plan.goal.power:.2g}%"
