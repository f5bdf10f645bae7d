"""`osmosis eval export`: a run for other tools, from its directory; a platform's run is downloaded first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import replacing

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.evaluation.export import ExportedRun

ExportFormat = Literal["inspect", "jsonl", "parquet"]
EXTENSIONS: dict[ExportFormat, str] = {"inspect": ".eval", "jsonl": ".jsonl", "parquet": ".parquet"}


@dataclass(frozen=True)
class Export:
    """A file that was written: how many samples it has, and how far the run was."""

    run: str
    path: Path
    format: ExportFormat
    samples: int
    progress: str


def needed_types(client: PlatformClient) -> tuple[str, ...]:
    """Return the types of files that an export is made of, once the platform has told what it offers.

    The journal knows what the samples of a platform have no column for.
    """
    from osmosis_ai.api.capabilities import Capability

    journal = ("journal",) if Capability.EVAL_JOURNALS in (client.offers or ()) else ()
    return ("metrics", "trajectories", *journal)


def find_run_directory(run: str) -> Path:
    """Return the directory of a run of this machine, by name or path, or of a downloaded one, by its path.

    Raises:
        NotFoundError: there is none.
    """
    from osmosis_ai.services.eval_runs.resolver import find_local_run

    return find_local_run(run, downloads=True)


def export_run(
    directory: Path, export_format: ExportFormat, *, target: Path | None = None, overwrite: bool = False
) -> Export:
    """Write a run's samples in another tool's format; the file is there whole, or not at all.

    Args:
        directory: of the run.
        export_format: ``inspect`` (inspect_ai's log), ``jsonl`` or ``parquet`` (a flat record a sample).
        target: the file, or a directory for it; by default the run's name in the current directory.
        overwrite: replace a file that is there.

    Raises:
        ConflictError: there is a file at the target.
        OsmosisError: there is no run in the directory, it is damaged, what is needed of a download did not come, or
            the file cannot be written, or not be read by that name.
    """
    from osmosis_ai.evaluation.export import read_run
    from osmosis_ai.services.downloaded_runs import require_types

    require_types(directory, "metrics", "trajectories")
    run = read_run(directory)
    path = _target(run, export_format, target)
    if export_format == "inspect" and path.suffix != EXTENSIONS["inspect"]:
        raise OsmosisError(
            f"inspect_ai opens no log called {path.name}.", hint=f"end its name in {EXTENSIONS['inspect']}"
        )
    if path.exists() and not overwrite:
        raise ConflictError(f"{path} exists; `--overwrite` replaces it, `--output` names another file.")
    try:
        with replacing(path, mode=0o644) as handle:
            count = _writer(export_format)(run, handle)
    except OSError as error:
        raise OsmosisError(f"{path} cannot be written: {error.strerror or error}.") from error
    return Export(run.name, path, export_format, count, run.progress)


def _target(run: ExportedRun, export_format: ExportFormat, target: Path | None) -> Path:
    name = f"{run.directory.name}{EXTENSIONS[export_format]}"
    if target is None:
        return Path(name)
    return target / name if target.is_dir() else target


def _writer(export_format: ExportFormat) -> Callable[[ExportedRun, IO[bytes]], int]:
    from osmosis_ai.evaluation import export

    if export_format == "inspect":
        return export.write_inspect_log
    return export.write_jsonl if export_format == "jsonl" else export.write_parquet
