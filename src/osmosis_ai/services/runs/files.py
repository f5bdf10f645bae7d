"""The files of a run: their types, valid names and local paths.

A path is rejected if it does not match a known file of the requested types or if a symbolic link leads
elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.api.models.eval_runs import ManifestFile
from osmosis_ai.api.models.runs import Run
from osmosis_ai.errors import ErrorCode, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.services.runs.lifecycle import WAITING
from osmosis_ai.workspace.layout import WorkspaceDirectory


@dataclass(frozen=True)
class FileLayout:
    """The files of runs of one kind.

    Attributes:
        key: key of the run in JSON output.
        noun: display name of the kind.
        follow: command that follows such a run.
        patterns: file name patterns by type.
        reserved: names that the platform reserves.
        by_name: types excluded from `all`, because not every platform has them.
        not_begun: error code for a run that has no files yet.
    """

    key: str
    noun: str
    follow: str
    patterns: Mapping[str, re.Pattern[str]]
    not_begun: ErrorCode
    reserved: re.Pattern[str] | None = None
    by_name: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(name for name in self.patterns if name not in self.by_name)

    def home(self, workspace: WorkspaceDirectory) -> Path:
        return workspace.evals_dir if self.key == "eval_run" else workspace.benchmarks_dir

    def require_begun(self, run: Run) -> None:
        if run.status in WAITING:
            name = run.name or run.id
            raise OsmosisError(
                f"{self.noun} run `{name}` has not started yet; there is nothing to download.",
                code=self.not_begun,
                details={"id": run.id, "status": run.status},
                hint=f"follow it with: {self.follow} {name}",
            )


JOURNAL_TYPE, JOURNAL = "journal", "events.jsonl"
EVAL_FILES = FileLayout(
    key="eval_run",
    noun="Evaluation",
    follow="osmosis eval watch",
    patterns={
        "metrics": re.compile(r"metrics\.json"),
        "trajectories": re.compile(r"summary\.jsonl|trajectories/row_\d+_run_\d+\.json", re.ASCII),
        "artifacts": re.compile(r"artifacts/row_\d+_run_\d+/.+", re.ASCII | re.DOTALL),
        "logs": re.compile(r"logs\.txt"),
        JOURNAL_TYPE: re.compile(re.escape(JOURNAL)),
    },
    not_begun="VALIDATION",
    reserved=re.compile(r"artifacts/row_\d+_run_\d+/manifest\.json", re.ASCII),
    by_name=(JOURNAL_TYPE,),
)
BENCHMARK_FILES = FileLayout(
    key="benchmark_run",
    noun="Benchmark",
    follow="osmosis benchmark runs info",
    patterns={
        "summary": re.compile(r"summary\.csv"),
        "results": re.compile(r"results\.csv"),
        "artifacts": re.compile(r"artifacts/[^/]+/.+", re.DOTALL),
        "logs": re.compile(r"logs\.txt"),
    },
    not_begun="CONFLICT",
)
_ROWS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)
_WINDOWS_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST_NAME = 96


def parse_types(text: str, layout: FileLayout = EVAL_FILES) -> tuple[str, ...]:
    """Parse ``metrics,trajectories`` or ``all`` (also ``all,journal``), keeping the order."""
    asked = list(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    unknown = [word for word in asked if word not in ("all", *layout.patterns)]
    if unknown:
        named = ", ".join(f"`{word}`" for word in unknown)
        raise OsmosisError(f"--type: unknown {named}; it takes {', '.join(layout.patterns)} or `all`.")
    if "all" not in asked:
        return tuple(asked)
    if set(asked) - {"all", *layout.by_name}:
        raise OsmosisError("--type takes either `all` or a list of types, not both.")
    return (*layout.all, *(word for word in asked if word != "all"))


def check_rows(rows: str | None) -> str | None:
    """Return ``rows`` without spaces."""
    if rows is None:
        return None
    tight = re.sub(r"\s+", "", rows)
    if not _ROWS.fullmatch(tight):
        raise OsmosisError(f"--rows takes rows such as 3,7,10-20, got {rows!r}.")
    for part in tight.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise OsmosisError(f"--rows: {part} ends before it begins.")
    return tight


def run_directory(
    run: Run, workspace: WorkspaceDirectory, output: Path | None = None, layout: FileLayout = EVAL_FILES
) -> Path:
    """Return the directory for a run's files: ``output``, or a subdirectory of ``.osmosis``.

    Names are normalized for all file systems. The run's id is appended if two runs could share a directory,
    or if a local evaluation uses it.
    """
    if output is not None:
        return expanded(output).absolute()
    run_id, home = safe_name(run.id), layout.home(workspace)
    if not run.name:
        return home / run_id
    folded = safe_name(run.name)
    place = home / folded
    unsure = folded != run.name or folded != folded.lower() or _WINDOWS_NAMES.fullmatch(folded)
    if unsure or (place / "manifest.json").exists():
        return home / f"{folded}--{run_id}"
    return place


def path_problem(
    path: str, types: Sequence[str], directory: Path, layout: FileLayout = EVAL_FILES
) -> str | None:
    """Return why a listed path must not be written; None if it may be."""
    kind = next((name for name in types if layout.patterns[name].fullmatch(path)), None)
    parts = path.split("/")
    if (
        kind is None
        or "\\" in path
        or not path.isprintable()
        or any(part in ("", ".", "..") for part in parts)
        or any(part.endswith((".partial", ".partial.json")) for part in parts[-1:])
    ):
        return "is not a path of the requested file types"
    if layout.reserved is not None and layout.reserved.fullmatch(path):
        return "has a reserved name"
    place = directory
    for part in parts:
        place = place / part
        if place.is_symlink():
            return "would be written through a symbolic link"
    return None


def breakdown(
    types: Sequence[str], files: Sequence[ManifestFile], layout: FileLayout = EVAL_FILES
) -> dict[str, dict[str, int]]:
    """Return the number and size of the files of each type."""
    counted = {}
    for name in types:
        mine = [file for file in files if layout.patterns[name].fullmatch(file.path)]
        counted[name] = {"files": len(mine), "bytes": sum(file.size for file in mine)}
    return counted


def safe_name(name: str) -> str:
    """Return ``name`` as one path segment that is safe on all file systems."""
    folded = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    folded = re.sub(r"^[.]+|[. ]+$", "_", folded)
    if len(folded) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        folded = f"{folded[:_LONGEST_NAME]}-{digest}"
    return folded or "_"
