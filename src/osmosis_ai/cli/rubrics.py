"""`osmosis eval rubric`: judges score a file of answers; `osmosis eval-rubric` and `osmosis preview` are those of 0.2."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.application import environment_with_file
from osmosis_ai.cli.options import NoTextOption, parse_budget
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.reports import RUBRIC_HOLDS, require_report, tell_what_goes_in
from osmosis_ai.cli.output.results import Block, Column, OperationResult, Row, Styled, Table, Text
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.ui.numbers import amount

if TYPE_CHECKING:
    from osmosis_ai.rubric.agreement import AgreementReport, FigureTable
    from osmosis_ai.rubric.documents import CallStatus, ReadRecord, SessionComparison
    from osmosis_ai.rubric.session import JudgingSession
    from osmosis_ai.services.rubric import RubricOutcome, RubricRequest

SHOWN_RECORDS = 20
SHOWN_DISPUTES = 5
SHOWN_LINES = 35
_REPORT_EVERY = 100_000
_LONGEST = 280
COMPLETED = "Rubric evaluation completed."
WITH_ERRORS = "Rubric evaluation completed with errors."
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="YAML file of rubrics (default: rubric_configs.yaml next to the data or in the current directory).",
    ),
]
BaselineOption = Annotated[
    Path | None, typer.Option("--baseline", "-b", help="Earlier result file to compare with.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue an unfinished session and keep its scores.")
]
PageOption = Annotated[Path | None, typer.Option(help="Path of an HTML report to write.")]
ConcurrencyOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of concurrent calls per provider (default: 256).")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Also show records and all figures of the judges.")
]


def rubric(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Option("--data", "-d", help="JSON Lines file with 'messages' or 'solution_str' in each line."),
    ],
    rubric: Annotated[
        str, typer.Option("--rubric", "-r", help="Rubric: a text, @FILE, or an id in a YAML file.")
    ],
    config: ConfigOption = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="LiteLLM name of the judge; repeat it for a panel (default: the judge of the rubric)."
        ),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", help="Number of calls per record and judge.")] = 1,
    score_min: Annotated[
        float | None, typer.Option(help="Lowest score (default: from the rubric, otherwise 0).")
    ] = None,
    score_max: Annotated[
        float | None, typer.Option(help="Highest score (default: from the rubric, otherwise 1).")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Time limit of a request in seconds (default: 30 to 60).")
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible endpoint of the judge.", metavar="URL")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Deprecated: API key, which other users can see. Use the provider's variable instead."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Result file, or a directory for it (default: the cache)."),
    ] = None,
    report: PageOption = None,
    no_text: NoTextOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --report: overwrite the report, as --resume does.")
    ] = False,
    baseline: BaselineOption = None,
    resume: ResumeOption = False,
    concurrency: ConcurrencyOption = None,
    seed: Annotated[
        int, typer.Option(min=0, max=200_000, help="Random seed of repeated calls and intervals.")
    ] = 0,
    swap: Annotated[
        bool,
        typer.Option("--swap", help="Reverse the quoted texts in every other call to measure position bias."),
    ] = False,
    max_cost: Annotated[
        float | None, typer.Option(help="Budget in US dollars: start no more calls once it is spent.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Token budget: start no more calls once it is spent.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(help="Time budget: start no more calls after 90, 90s, 10m, 2h.")
    ] = None,
    verbose: VerboseOption = False,
) -> OperationResult:
    """Score answers with LLM judges and measure their agreement.

    Works without a workspace and without a login. Ctrl-C keeps the scores, and --resume continues.

    Examples:
        osmosis eval rubric -d answers.jsonl -r "Is the answer correct?" --model openai/gpt-5-mini
        osmosis eval rubric -d answers.jsonl -r tone --config rubric_configs.yaml --model openai/gpt-5-mini -n 3
    """
    from osmosis_ai.services.rubric import RubricRequest

    if timeout is not None and not 0 < timeout < math.inf:
        raise typer.BadParameter("must be a positive number of seconds.", param_hint="'--timeout'")
    if report is None:
        require_report({"--no-text": no_text, "--force": force})
    if api_key is not None:
        current().warn(
            "'--api-key' is deprecated because other users of this machine can read it. "
            "Set the provider's variable instead, such as OPENAI_API_KEY.",
            code="DEPRECATION",
        )
    request = RubricRequest(
        data=expanded(data),
        rubric=rubric,
        config=expanded(config) if config is not None else None,
        models=tuple(model or ()),
        number=number,
        output=output,
        api_key=api_key,
        api_base=api_base,
        timeout_s=timeout,
        score_min=score_min,
        score_max=score_max,
        report=report,
        report_text=not no_text,
        overwrite_report=force or resume,
        baseline=expanded(baseline) if baseline is not None else None,
        resume=resume,
        seed=seed,
        swap=swap,
        concurrency=concurrency,
        budget=parse_budget(max_cost, max_tokens, max_time),
    )
    return _judge(context, request, verbose=verbose)


def eval_rubric(
    context: typer.Context,
    rubric: Annotated[
        str, typer.Option("--rubric", "-r", metavar="ID", help="Id of a rubric in the YAML file.")
    ],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="JSON Lines file; records of other rubrics are skipped.")
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="Number of calls per record.")] = 1,
    config: ConfigOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Result file, or a directory for it if the name has no suffix (default: the cache).",
        ),
    ] = None,
    baseline: BaselineOption = None,
    report: PageOption = None,
    resume: ResumeOption = False,
    concurrency: ConcurrencyOption = None,
    verbose: VerboseOption = False,
) -> OperationResult:
    """Score the records of a rubric with its judge.

    The rubric's YAML entry names the judge. Ctrl-C keeps the scores, and --resume continues. The exit code is 1 if a record has no score.

    Examples:
        osmosis eval-rubric -r support_followup -d sample_data.jsonl -c rubric_configs.yaml
    """
    from osmosis_ai.services.rubric import RubricRequest

    request = RubricRequest(
        data=expanded(data),
        rubric=rubric,
        config=expanded(config) if config is not None else None,
        number=number,
        output=output,
        report=report,
        baseline=expanded(baseline) if baseline is not None else None,
        resume=resume,
        concurrency=concurrency,
        classic=True,
    )
    return _judge(context, request, verbose=verbose)


def preview(
    path: Annotated[
        Path, typer.Option("--path", "-p", help="A .yaml file of rubrics, or a .jsonl file of records.")
    ],
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all entries, not only a screen.")] = False,
) -> OperationResult:
    """Show the rubrics or records in a file.

    The file is a YAML file of rubrics or a JSON Lines file of records. Warns if 'osmosis eval rubric' would reject the file.

    Examples:
        osmosis preview -p rubric_configs.yaml
    """
    from osmosis_ai.services.rubric import preview_file

    found = preview_file(path)
    if found.problem is not None:
        current().warn(f"'osmosis eval rubric' rejects this file: {found.problem}")
    texts = [f"\n{entry.title}\n{entry.text}" for entry in found.entries]
    if current().mode == "rich" and not verbose:
        ends = accumulate(text.count("\n") + 1 for text in texts)
        shown = max(1, sum(end <= SHOWN_LINES for end in ends))
        if (more := len(texts) - shown) > 0:
            texts[shown:] = [f"\n{formats.count(more)} more; use --verbose to show all."]
    return OperationResult(
        operation="preview",
        message=found.summary,
        resource={
            "path": str(found.path),
            "kind": found.kind,
            "count": len(found.entries),
            "items": [{"title": entry.title, "value": entry.value} for entry in found.entries],
        },
        blocks=[Text(text, in_plain=True) for text in texts],
    )


def _judge(context: typer.Context, request: RubricRequest, *, verbose: bool) -> OperationResult:
    """Run a session and return its result; a result with errors is shown and then raised."""
    outcome = _run(request, context.command_path.split()[1:])
    session, stop = outcome.session, outcome.session.stop
    errors = session.count("failed") + session.count("unscored")
    halted = stop is not None and stop.kind != "fault"
    resume = None if session.complete else _resume_command(context, outcome)
    message = _stopped(session) if halted else WITH_ERRORS if errors else COMPLETED
    data = outcome.resource()
    written = "evaluation results" if request.classic else "results"
    next_steps = [f"Wrote {written} to {shown_path(session.output)}"]
    if outcome.prepared.report is not None:
        next_steps.append(f"Report: {shown_path(outcome.prepared.report)}")
    if resume is not None:
        next_steps.append(f"Resume: {resume}")
    result = OperationResult(
        operation="eval-rubric" if request.classic else "eval.rubric",
        status="success" if session.complete else "partial",
        message=message,
        shown=message if halted else _mean_score(outcome),
        resource=data,
        blocks=[*_blocks(outcome, verbose=verbose)],
        next_steps=next_steps,
        next_steps_structured=[{"action": "resume", "command": resume}] if resume else [],
    )
    if session.complete or halted:
        return result
    missing = _what_is_missing(outcome)
    if current().mode == "json":
        hint = f"repeat only these calls: {resume}"
        raise OsmosisError(f"{WITH_ERRORS} {missing}", code="PLATFORM_ERROR", details=data, hint=hint)
    # The shown result says that there are errors, and how to resume.
    current().emit(result)
    raise OsmosisError(missing, code="PLATFORM_ERROR", details=data)


def _run(request: RubricRequest, words: list[str]) -> RubricOutcome:
    from osmosis_ai import event_loop
    from osmosis_ai.services.rubric import JudgeRequiredError, prepare_rubric, run_rubric

    output = current()

    def report_reading(records: int) -> None:
        if records % _REPORT_EVERY == 0:
            output.note(f"checked {records:,} records …")

    try:
        prepared = prepare_rubric(request, env=environment_with_file(), reading=report_reading)
    except JudgeRequiredError as error:
        raise typer.BadParameter(
            "no judge is named, such as 'openai/gpt-5-mini'.", param_hint="'--model'"
        ) from error
    for note in prepared.notes:
        output.warn(note)
    if prepared.report is not None:
        numbers, text = RUBRIC_HOLDS
        tell_what_goes_in(numbers, text if request.report_text else "")
    # A script that reads lines gets one for every record, as one that reads JSON does.
    everything = output.mode == "plain" or (output.mode == "json" and request.output is None)
    quit_at_once = "Interrupted. The scores are kept. Run the same command with --resume to continue."
    from osmosis_ai.cli.rubric_progress import LiveSession

    with LiveSession(output, words, quit_at_once=quit_at_once) as live:
        outcome = event_loop.run(run_rubric(prepared, live, keep=None if everything else SHOWN_RECORDS))
    if (archived := outcome.session.archived) is not None:
        output.note(f"the earlier unfinished session was archived as {archived}")
    if outcome.archived is not None:
        output.note(f"the earlier result was archived as {outcome.archived}")
    return outcome


def _resume_command(context: typer.Context, outcome: RubricOutcome) -> str:
    """Return the command that resumes the session; it never contains a key."""
    stop, words = outcome.session.stop, context.command_path.split()
    is_spent = stop is not None and stop.kind == "budget"
    for option in context.command.params:
        name, value = str(option.name), context.params.get(str(option.name))
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT" or name in ("api_key", "resume", "force"):
            continue
        if name == "api_base":
            value = str(value).partition("?")[0]  # a query string may hold a key
        if is_spent and name in ("max_cost", "max_tokens", "max_time"):
            value = "HIGHER"
        long = next(each for each in option.opts if each.startswith("--"))
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [long] if each is True else [long, str(each)]
    return shlex.join([*words, "--resume"])


# -- the screen -----------------------------------------------------------------------------


def _blocks(outcome: RubricOutcome, *, verbose: bool) -> Iterator[Block]:
    from osmosis_ai.rubric.agreement import summary_table

    if current().mode == "plain":
        yield _score_lines(outcome)
    elif verbose:
        yield _record_texts(outcome)
    yield Table(("", ""), [*_counts(outcome)], title="Summary", in_plain=True)
    if verbose:
        yield from _all_figures(outcome.agreement)
    elif (found := summary_table(outcome.agreement)).rows:
        yield _figure_table(found)
    if outcome.comparison is not None:
        yield Text("\n".join(_baseline_lines(outcome.comparison, verbose=verbose)), in_plain=True)


def _mean_score(outcome: RubricOutcome) -> str:
    from osmosis_ai.rubric.documents import describe_outside_scale

    session, (low, high) = outcome.session, outcome.session.spec.bounds
    scored = session.count("scored")
    if not scored:
        return "No call has a score."
    average, scale = session.statistics["average"], f"on a scale of {low:g} to {high:g}"
    clamped = describe_outside_scale(session.outside_scale, scored)
    return f"Mean score {average:.4f} {scale}{f' ({clamped})' if clamped else ''}."


def _stopped(session: JudgingSession) -> str:
    stop = session.stop
    why = "interrupted" if stop is None or stop.kind == "interrupted" else f"stopped ({stop.reason})"
    left = (
        f"{formats.count(session.count('pending'))} of {formats.count(len(session.calls))} calls are pending"
    )
    return f"Rubric evaluation {why}. {left}."


def _counts(outcome: RubricOutcome) -> Iterator[Row]:
    from osmosis_ai.services.rubric import token_count

    session, counts = outcome.session, outcome.agreement.counts
    yield "Judges" if len(session.spec.judges) > 1 else "Judge", ", ".join(session.spec.model_names)
    yield "Records", f"{formats.count(counts.scored_records)} of {formats.count(counts.records)} scored"
    yield "Calls", f"{formats.count(counts.scored_calls)} of {formats.count(counts.calls)} scored"
    if counts.scored_calls > 1:
        yield "Standard deviation", f"{session.statistics['stdev']:.4f}"
    if counts.copied_records:
        yield "Duplicate records", formats.count(counts.copied_records)
    for status, count, reasons in _without_score(session):
        yield status.capitalize(), Styled(f"{count}: {reasons}", "bad" if status == "failed" else "warn")
    if pending := session.count("pending"):
        yield "Pending", Styled(formats.count(pending), "pending")
    if session.resumed:
        yield "From earlier sessions", formats.count(session.resumed)
    yield "Tokens", token_count(session)
    yield "Cost", formats.money(session.cost_usd) if session.cost_usd is not None else "unknown"
    yield "Duration", formats.duration(session.elapsed_s)


def _without_score(session: JudgingSession) -> Iterator[tuple[CallStatus, str, str]]:
    """Yield the status of calls without a score, how many, and why."""
    statuses: tuple[CallStatus, ...] = ("failed", "unscored")
    for status in statuses:
        if reasons := session.reasons(status):
            listed = ", ".join(f"{formats.count(count)} {reason}" for reason, count in reasons.items())
            yield status, formats.count(sum(reasons.values())), listed


def _what_is_missing(outcome: RubricOutcome) -> str:
    """Return how many calls have no score, by reason, and one of the errors."""
    session = outcome.session
    parts = [f"{count} {status} ({reasons})" for status, count, reasons in _without_score(session)]
    if pending := session.count("pending"):
        parts.append(f"{formats.count(pending)} pending")
    first = session.stop.reason if session.stop is not None else ""
    for call in (call for record in _read(outcome) for call in record.calls if not first):
        if call.error:
            first = f"The first: {_short(call.error)}"
    return f"{amount(len(session.calls), 'call')}: {', '.join(parts)}. {first}".rstrip()


def _read(outcome: RubricOutcome) -> list[ReadRecord]:
    from osmosis_ai.rubric.documents import read_records

    return read_records({"records": outcome.records})


def _score_lines(outcome: RubricOutcome) -> Table:
    """Return a line for each record: its label, its mean and its scores."""
    rows = []
    for record in _read(outcome):
        scores = [call.score for call in record.calls if call.score is not None]
        mean = f"{sum(scores) / len(scores):.4f}" if scores else None
        rows.append((record.label, mean, *(f"{score:.4f}" for score in scores)))
    return Table(("Record", "Average", "Scores"), rows, in_plain=True)


def _record_texts(outcome: RubricOutcome) -> Text:
    lines, several = [], len(outcome.session.spec.judges) > 1
    for record in _read(outcome):
        lines.append(f"[{record.label}]")
        for call in record.calls:
            score = "no score" if call.score is None else f"{call.score:.4f}"
            who = call.who if several else f"Run {call.run}"
            lines.append(f"  {who}: {score} {_short(call.explanation or call.error)}".rstrip())
    if (more := len(outcome.session.index) - len(outcome.records)) > 0:
        lines.append(f"… {amount(more, 'more record')} in {shown_path(outcome.session.output)}")
    return Text("\n".join(lines))


def _figure_table(table: FigureTable) -> Table:
    columns = [Column(heading, right=place > 1) for place, heading in enumerate(table.headings)]
    return Table(columns, table.rows, title=table.title, note=table.note, in_plain=True)


def _all_figures(report: AgreementReport) -> Iterator[Block]:
    """Yield every figure with its interval and counts, and the records on which scores differ most."""
    from osmosis_ai.rubric.agreement import ScoreFormat, agreement_tables, not_measured

    tables = agreement_tables(report)
    yield from (_figure_table(table) for table in tables if table.rows)
    scale = ScoreFormat(report.score_min, report.score_max)
    disputes = [
        (between, f"{each.record:,}", each.label, *map(scale.points, each.scores))
        for between, found in groupby(report.disputed, lambda each: each.between)
        for each in islice(found, SHOWN_DISPUTES)
    ]
    if disputes:
        headings: Sequence[str] = ("Between", "#", "Record", "Score", "Score")
        columns = [Column(each, right=each in ("#", "Score")) for each in headings]
        yield Table(columns, disputes, title="Largest disagreements", in_plain=True)
    if missing := not_measured(tables):
        yield Text("\n".join(missing), tone="dim", in_plain=True)


def _baseline_lines(comparison: SessionComparison, *, verbose: bool) -> Iterator[str]:
    yield f"Compared with {comparison.baseline.source_path}: {comparison.verdict}"
    yield from (f"  warning: {warning}" for warning in comparison.warnings)
    if verbose:
        if comparison.paired_by:
            yield f"  Paired by {comparison.paired_by}: {amount(comparison.common, 'record')} in both"
        yield from (f"  {_short(change)}" for change in comparison.changes)


def _short(text: str | None) -> str:
    return formats.shortened(formats.one_line(text or ""), _LONGEST)
