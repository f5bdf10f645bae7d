"""`osmosis eval resubmit` and `osmosis train resubmit`: one script for both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.options import NOUNS
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Block, OperationResult, Styled, Table, Text
from osmosis_ai.cli.runs.submit import run_again_fields, warn_without_panel

if TYPE_CHECKING:
    from osmosis_ai.api.wire.runs import SubmittedRun
    from osmosis_ai.cli.runs.view import RunView
    from osmosis_ai.services.runs.resubmit import PreparedResubmit


def resubmit_run(
    view: RunView[Any, Any], name: str, *, watch: bool, secrets_file: str | None, yes: bool
) -> OperationResult:
    """Show what has changed since a run was submitted, ask, and submit its config again."""
    from osmosis_ai.services.runs.resubmit import prepare_resubmit, resubmit
    from osmosis_ai.workspace.secrets_file import read_secrets_file

    output, kind, noun = current(), view.kind, NOUNS[view.kind]
    with platform_context() as context:
        values = read_secrets_file(secrets_file) if secrets_file else {}
        with output.status("Looking for what has changed"):
            prepared = prepare_resubmit(context, kind, name, values)
        output.show(*_blocks(prepared))
        if yes:
            warn_without_panel(output, prepared.warnings)
        output.confirm(
            f'Submit {noun} run "{prepared.name}" again?',
            yes=yes,
            default=True,
            summary={change.label: change.words for change in prepared.changes},
            warnings=prepared.warnings,
        )
        with output.status(f"Submitting {noun} run"):
            made = resubmit(context, prepared)
        result = OperationResult(
            operation=f"{kind}.resubmit",
            message=f"{noun.title()} run submitted: {made.name}, of the config of {prepared.name}",
            resource={**_resource(made, prepared), **context.resource()},
            next_steps=[f"Follow: osmosis {kind} watch {made.name}"],
            next_steps_structured=[{"action": f"{kind}_info", "name": made.name}, {"action": f"{kind}_list"}],
        )
        return view.submitted(context.client, made, result, watch=watch)


def _resource(made: SubmittedRun, prepared: PreparedResubmit) -> dict[str, Any]:
    return {
        **run_again_fields(made),
        "resubmit_of": {"id": prepared.run.id, "name": prepared.name},
        "changes": prepared.changes_data(),
    }


def _blocks(prepared: PreparedResubmit) -> list[Block]:
    rows = [
        (
            change.label,
            change.before or "not recorded",
            Styled(change.now or "known to the platform only", "warn") if change.changed else change.now,
        )
        for change in prepared.changes
    ]
    blocks: list[Block] = [Table(("", "Then", "Now"), rows, title=f"{prepared.name}, again")]
    if prepared.warnings:
        blocks.append(Text("\n".join(f"⚠ {warning}" for warning in prepared.warnings), tone="warn"))
    return blocks
