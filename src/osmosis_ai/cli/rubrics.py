"""`osmosis eval rubric`: judges score a file of answers; `osmosis eval-rubric` and `osmosis preview` are those of 0.2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.application import environment_with_file
from osmosis_ai.cli.options import NoTextOption, parse_budget
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.reports import RUBRIC_HOLDS, require_report, tell_what_goes_in
from osmosis_ai.cli.output.results import OperationResult, Text
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import expanded

if TYPE_CHECKING:
    from osmosis_ai.services.rubric import RubricOutcome, RubricRequest

SHOWN_RECORDS = 20
_REPORT_EVERY = 100_000
COMPLETED = "Rubric evaluation completed."
WITH_ERRORS = "Rubric evaluation completed with errors."
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="YAML file of rubrics (default: rubric_configs.yaml by the data or here)."
    ),
]
BaselineOption = Annotated[
    Path | None, typer.Option("--baseline", "-b", help="Compare with an earlier result file.")
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the unfinished session; scores are not asked for twice."),
]
PageOption = Annotated[Path | None, typer.Option(help="Also write a page for people: report.html.")]


def rubric(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="JSON Lines: `messages` or `solution_str` in each line.")
    ],
    rubric: Annotated[
        str,
        typer.Option(
            "--rubric", "-r", help="What to judge by: text, @FILE, or the id of one in a YAML file."
        ),
    ],
    config: ConfigOption = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Judge, by its LiteLLM name; several make a panel. Default: the rubric's own."),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", help="Calls per record and judge.")] = 1,
    score_min: Annotated[
        float | None, typer.Option(help="Lowest score (default: the rubric's, else 0).")
    ] = None,
    score_max: Annotated[
        float | None, typer.Option(help="Highest score (default: the rubric's, else 1).")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds one try may take (default: 30 to 60).")
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint to ask instead.", metavar="URL")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Deprecated: other users see it. Set the provider's variable.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Result file, or a directory for it (default: the cache)."),
    ] = None,
    report: PageOption = None,
    no_text: NoTextOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --report: overwrite the page, as --resume does.")
    ] = False,
    baseline: BaselineOption = None,
    resume: ResumeOption = False,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Calls at once to a provider, at most (default: 256).")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=200_000, help="Seed of the judges and of the intervals.")
    ] = 0,
    swap: Annotated[
        bool,
        typer.Option(
            "--swap", help="Reverse the quoted texts in every other call, to measure position bias."
        ),
    ] = False,
    max_cost: Annotated[float | None, typer.Option(help="Stop asking after this many US dollars.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Stop asking after this many tokens.")] = None,
    max_time: Annotated[
        str | None, typer.Option(help="Stop asking after this long: 90, 90s, 10m, 2h.")
    ] = None,
) -> OperationResult:
    """Score answers with LLM judges and measure their agreement.

    Works without a workspace and without a login. Ctrl-C keeps what was scored; --resume continues.

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
            "`--api-key` is deprecated: every user of this machine can read it. Set the provider's variable "
            "instead, for instance OPENAI_API_KEY.",
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
    outcome = judge(request, ["eval", "rubric"])
    return conclude("eval.rubric", outcome, resource(outcome, with_records=request.output is None))


def judge(request: RubricRequest, words: list[str]) -> RubricOutcome:
    """Prepare and run a session, showing how it goes."""
    from osmosis_ai import event_loop
    from osmosis_ai.cli.rubric_tables import LiveSession
    from osmosis_ai.services.rubric import JudgeRequiredError, prepare_rubric, run_rubric

    shown = current()

    def report_reading(records: int) -> None:
        if records % _REPORT_EVERY == 0:
            shown.note(f"read and checked {records:,} records …")

    try:
        prepared = prepare_rubric(request, env=environment_with_file(), reading=report_reading)
    except JudgeRequiredError as error:
        raise typer.BadParameter(
            "who should judge? For instance `--model openai/gpt-5-mini`.", param_hint="'--model'"
        ) from error
    for note in prepared.notes:
        shown.warn(note)
    if prepared.report is not None:
        numbers, text = RUBRIC_HOLDS
        tell_what_goes_in(numbers, text if request.report_text else "")
    # A script that reads lines gets one for every record, as one that reads JSON does.
    everything = shown.mode == "plain" or (shown.mode == "json" and request.output is None)
    keep = None if everything and not request.classic else SHOWN_RECORDS

    with LiveSession(shown, words) as live:
        outcome = event_loop.run(run_rubric(prepared, live, keep=keep))
    if (archived := outcome.session.archived) is not None:
        shown.note(f"the earlier unfinished session was archived as {archived}")
    if outcome.archived is not None:
        shown.note(f"the earlier result was archived as {outcome.archived}")
    return outcome


def conclude(operation: str, outcome: RubricOutcome, resource: dict[str, Any]) -> OperationResult:
    """Return the result of a session; one with errors is shown and then raised."""
    from osmosis_ai.cli import rubric_tables as tables

    session, stop = outcome.session, outcome.session.stop
    errors = session.count("failed") + session.count("unscored")
    halted = stop is not None and stop.kind != "fault"
    resume = None if outcome.journal_path is None else tables.resume_command(outcome)
    result = OperationResult(
        operation=operation,
        status="success" if session.complete else "partial",
        message=tables.message(outcome) if halted else WITH_ERRORS if errors else COMPLETED,
        resource=resource,
        blocks=tables.scores(outcome)
        if current().mode == "plain" and not outcome.prepared.request.classic
        else tables.blocks(outcome),
        next_steps=tables.next_steps(outcome),
        next_steps_structured=[{"action": "resume", "command": resume}] if resume else [],
    )
    if session.complete or halted:
        return result
    missing = tables.what_is_missing(outcome)
    if current().mode == "json":
        hint = f"repeat only these calls: {tables.resume_command(outcome)}"
        raise OsmosisError(f"{WITH_ERRORS} {missing}", code="PLATFORM_ERROR", details=resource, hint=hint)
    # The shown result says that there are errors, and how to resume.
    current().emit(result)
    raise OsmosisError(missing, code="PLATFORM_ERROR", details=resource)


def resource(outcome: RubricOutcome, *, with_records: bool) -> dict[str, Any]:
    prepared, session = outcome.prepared, outcome.session
    same = outcome.numbers()
    optional = {
        "report_path": str(prepared.report) if prepared.report else None,
        "journal_path": str(outcome.journal_path) if outcome.journal_path else None,
        "baseline_comparison": outcome.comparison.data() if outcome.comparison is not None else None,
        "stopped": same["stopped"],
        "records": outcome.records if with_records else None,
    }
    return {
        "model": prepared.model_shown,
        "data_path": str(prepared.request.data),
        "number": session.spec.runs,
        "statistics": session.statistics,
        "record_count": len(session.index),
        "error_count": session.count("failed"),
        "unscored_count": session.count("unscored"),
        "output_path": str(session.output),
        "rubric_id": session.spec.rubric.rubric_id,
        "rubric_source": prepared.spec.rubric.source,
        "models": session.spec.model_names,
        **{key: same[key] for key in ("complete", "counts", "usage", "trust")},
        **{key: value for key, value in optional.items() if value is not None},
    }


def eval_rubric(
    rubric: Annotated[
        str, typer.Option("--rubric", "-r", metavar="ID", help="Id of a rubric in the YAML file.")
    ],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="JSON Lines; records of other rubrics are skipped.")
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="Runs per record.")] = 1,
    config: ConfigOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="File, or without a suffix a directory, for results (default: the cache)."
        ),
    ] = None,
    baseline: BaselineOption = None,
    report: PageOption = None,
    resume: ResumeOption = False,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Calls at once, at most (default: 256).")
    ] = None,
) -> OperationResult:
    """Score the records of a rubric with its judge.

    The rubric's YAML entry names the judge.

    Ctrl-C keeps what was scored; --resume continues. Exits with 1 when a record has no score.

    Examples:
        osmosis eval-rubric -r support_followup -d sample_data.jsonl -c rubric_configs.yaml
    """
    from osmosis_ai.services.rubric import RubricRequest, require_configured

    if not rubric.strip():
        raise OsmosisError("Rubric identifier cannot be empty.")
    if number < 1:
        raise OsmosisError("Number of runs must be a positive integer.")
    data = expanded(data)
    found = require_configured(data, expanded(config) if config is not None else None)
    outcome = judge(
        RubricRequest(
            data=data,
            rubric=rubric.strip(),
            config=found,
            number=number,
            output=output,
            report=report,
            baseline=expanded(baseline) if baseline is not None else None,
            resume=resume,
            concurrency=concurrency,
            classic=True,
        ),
        ["eval-rubric"],
    )
    return conclude("eval-rubric", outcome, resource(outcome, with_records=False))


def preview(
    path: Annotated[
        Path, typer.Option("--path", "-p", help="A .yaml file of rubrics, or a .jsonl file of records.")
    ],
) -> OperationResult:
    """Show the rubrics or records in a file.

    The file is a YAML file of rubrics or a JSON Lines file of records.

    Warns if `osmosis eval rubric` would reject the file.

    Examples:
        osmosis preview -p rubric_configs.yaml
    """
    from osmosis_ai.services.rubric_preview import preview_file

    found = preview_file(path)
    if found.problem is not None:
        current().warn(f"`osmosis eval rubric` rejects this file: {found.problem}")
    return OperationResult(
        operation="preview",
        message=found.summary,
        resource={
            "path": str(found.path),
            "kind": found.kind,
            "count": len(found.entries),
            "items": [{"title": entry.title, "value": entry.value} for entry in found.entries],
        },
        blocks=[Text(f"\n{entry.title}\n{entry.text}", in_plain=True) for entry in found.entries],
    )
