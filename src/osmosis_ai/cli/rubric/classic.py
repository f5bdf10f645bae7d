"""`osmosis eval-rubric` and `osmosis preview`: the judge's commands of 0.2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output.results import OperationResult, Text
from osmosis_ai.files import expanded


def eval_rubric(
    rubric: Annotated[
        str, typer.Option("--rubric", "-r", metavar="ID", help="Id of a rubric in the YAML file.")
    ],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="JSON Lines; records of other rubrics are skipped.")
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="Runs per record.")] = 1,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="YAML file of rubrics (default: rubric_configs.yaml by the data or here)."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="File, or without a suffix a directory, for results (default: the cache)."
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", "-b", help="Compare with an earlier result file.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write a page for people: report.html.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the unfinished session; scores are not asked for twice."),
    ] = False,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Calls at once, at most (default: 256).")
    ] = None,
) -> OperationResult:
    """Score the records of a rubric with the judge that its YAML entry names.

    Ctrl-C keeps what was scored; --resume continues. Exits with 1 when a record has no score.

    Examples:
        osmosis eval-rubric -r support_followup -d sample_data.jsonl -c rubric_configs.yaml
    """
    from osmosis_ai.cli.rubric.eval_rubric import conclude, judge, resource
    from osmosis_ai.errors import OsmosisError
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
    """Show every rubric of a YAML file, or every record of a JSON Lines file.

    Warns if `osmosis eval rubric` would reject the file.

    Examples:
        osmosis preview -p rubric_configs.yaml
    """
    from osmosis_ai.cli.output.context import current
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
