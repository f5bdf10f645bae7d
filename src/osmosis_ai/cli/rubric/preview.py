"""`osmosis preview`: what a file of rubrics or records holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osmosis_ai.cli.output.results import OperationResult, Text


def preview(
    path: Annotated[
        Path, typer.Option("--path", "-p", help="A .yaml file of rubrics, or a .jsonl file of records.")
    ],
) -> OperationResult:
    """Show every rubric of a YAML file, or every record of a JSON Lines file.

    Examples:
        osmosis preview -p rubric_configs.yaml
    """
    from osmosis_ai.services.rubric.preview import preview_file

    found = preview_file(path)
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
