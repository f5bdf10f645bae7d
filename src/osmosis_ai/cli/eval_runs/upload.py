"""`osmosis eval upload`: upload a run of this machine to the platform."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.connection import platform_context
from osmosis_ai.cli.name_completion import complete_local_run
from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.formats import shown_path
from osmosis_ai.cli.output.results import OperationResult
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.evaluation.summary import RunSummary
    from osmosis_ai.services.eval_runs.upload import OpenProgress, UploadedRun


def upload(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR",
            help="Directory of a finished run of this machine, or its name.",
            show_default=False,
            autocompletion=complete_local_run,
        ),
    ],
) -> OperationResult:
    """Upload a finished run of this machine to the platform.

    The upload includes conversations and artifacts. The platform marks the run as imported. Run the same command
    again to resume an interrupted upload.

    Examples:
        osmosis eval upload .osmosis/evals/baseline
    """
    from osmosis_ai.services.eval_runs.resolver import find_local_run

    directory = find_local_run(run)
    with platform_context() as context:
        uploaded = upload_shown(context.client, directory)
        return OperationResult(
            operation="eval.upload",
            message=uploaded_message(uploaded),
            resource={**uploaded.resource(), **context.resource()},
            next_steps=next_steps(uploaded),
            next_steps_structured=next_steps_structured(uploaded),
        )


def upload_shown(client: PlatformClient, directory: Path) -> UploadedRun:
    """Upload a run and show how far it is."""
    from osmosis_ai.services.eval_runs.upload import upload_run

    with _shown() as progress:
        return upload_run(client, directory, progress=progress)


def require_uploads_shown() -> None:
    """Find out before anything is spent on a run whether it can be uploaded afterwards."""
    from osmosis_ai.services.eval_runs.upload import require_uploads

    with platform_context() as context, current().status("Asking the platform"):
        require_uploads(context.client)


def and_uploaded(operation: OperationResult, summary: RunSummary) -> OperationResult:
    """Upload a run, and return its result with what came of that: an upload that fails takes no result back."""
    if not summary.complete:
        return replace(operation, message=f"{operation.message} It was not uploaded: it is not complete.")
    resource = dict(operation.resource or {})
    try:
        with platform_context() as context:
            uploaded = upload_shown(context.client, summary.run_dir)
    except OsmosisError as error:
        failed = {"error": {"code": error.code, "message": error.message}}
        again = f"osmosis eval upload {shlex.quote(shown_path(summary.run_dir))}"
        return replace(
            operation,
            status="partial",
            message=f"{operation.message}. The results are complete, but they were not uploaded: {error.message}",
            resource={**resource, "upload": failed},
            next_steps=[*operation.next_steps, f"Upload them with: {again}"],
        )
    said = uploaded.resource()
    return replace(
        operation,
        message=f"{operation.message}. {uploaded_message(uploaded)}",
        resource={**resource, "upload": said, "platform_url": said["platform_url"]},
        next_steps=[*operation.next_steps, *next_steps(uploaded)],
    )


def uploaded_message(uploaded: UploadedRun) -> str:
    """Return what has been done in a sentence."""
    name = uploaded.run.manifest.run_name
    said = f"Uploaded local evaluation: {name}"
    return said if uploaded.name == name else f"{said} (there it is {uploaded.name}: its name was taken)"


def next_steps(uploaded: UploadedRun) -> list[str]:
    """Return where to look next."""
    sent = f"{formats.count(uploaded.sent)} of {formats.count(len(uploaded.run.files))} files were sent now"
    steps = [sent] if uploaded.sent < len(uploaded.run.files) else []
    steps.append(f"See it with: osmosis eval info {uploaded.name}")
    url = uploaded.session.platform_url
    return [*steps, f"View: {url}"] if url else steps


def next_steps_structured(uploaded: UploadedRun) -> list[Mapping[str, Any]]:
    """Return the same for scripts."""
    session = uploaded.session
    steps: list[Mapping[str, Any]] = [{"action": "eval_info", "name": uploaded.name}]
    return [*steps, {"action": "open_url", "url": session.platform_url}] if session.platform_url else steps


@contextmanager
def _shown() -> Iterator[OpenProgress]:
    with ExitStack() as stack:
        out = current()
        yield (
            lambda run: (
                stack.enter_context(out.progress("Uploading", total=run.size_bytes, unit="bytes")).update
            )
        )
