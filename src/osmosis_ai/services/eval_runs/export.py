"""`osmosis eval export`: write a run in another tool's format, after downloading it if necessary."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.evaluation.export import ExportedRun, read_run, write_inspect_log, write_jsonl, write_parquet
from osmosis_ai.files import replacing_or_streaming
from osmosis_ai.services.downloaded_runs import require_types

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

ExportFormat = Literal["inspect", "jsonl", "parquet"]
EXTENSIONS: dict[ExportFormat, str] = {"inspect": ".eval", "jsonl": ".jsonl", "parquet": ".parquet"}


@dataclass(frozen=True)
class Export:
    """A written export; ``progress`` describes how complete the run was."""

    run: str
    format: ExportFormat
    path: Path
    samples: int
    progress: str


def needed_types(client: PlatformClient) -> tuple[str, ...]:
    """Return the file types that an export needs; call it after the platform has reported its capabilities.

    The journal has fields that the platform's sample lists lack.
    """
    journal = ("journal",) if Capability.EVAL_JOURNALS in (client.offers or ()) else ()
    return ("metrics", "trajectories", *journal)


def export_run(
    directory: Path, export_format: ExportFormat, *, target: Path | None, overwrite: bool
) -> Export:
    """Write a run's samples atomically in another tool's format."""
    require_types(directory, "metrics", "trajectories")
    run = read_run(directory)
    writers: dict[ExportFormat, Callable[[ExportedRun, IO[bytes]], int]] = {
        "inspect": write_inspect_log,
        "jsonl": write_jsonl,
        "parquet": write_parquet,
    }
    write = writers[export_format]
    if target == Path("-"):
        count = write(run, sys.stdout.buffer)
        return Export(run.name, export_format, target, count, run.progress)
    name = f"{run.directory.name}{EXTENSIONS[export_format]}"
    if target is None:
        path = Path(name)
    else:
        path = target / name if target.is_dir() else target
    if export_format == "inspect" and path.suffix != EXTENSIONS["inspect"]:
        raise OsmosisError(
            f"inspect_ai cannot open a log named {path.name}.", hint=f"use the suffix {EXTENSIONS['inspect']}"
        )
    if path.exists() and not overwrite:
        raise ConflictError(
            f"'{path}' already exists.",
            hint="use '--overwrite' to replace it, or '--output' for another file",
        )
    try:
        with replacing_or_streaming(path, mode=0o644) as handle:
            count = write(run, handle)
    except OSError as error:
        raise OsmosisError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    return Export(run.name, export_format, path, count, run.progress)
