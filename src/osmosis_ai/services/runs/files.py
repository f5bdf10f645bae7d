"""The files of a run: which there are, which a platform may name, and where they go on this machine.

A path that fits no known file of the types asked for, or that a symbolic link would lead elsewhere, is none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import ErrorCode, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.services.runs.lifecycle import WAITING

if TYPE_CHECKING:
    from osmosis_ai.api.wire.eval_runs import ManifestFile
    from osmosis_ai.api.wire.runs import Run
    from osmosis_ai.workspace.layout import WorkspaceDirectory


@dataclass(frozen=True)
class FileLayout:
    """The files that runs of one kind have.

    Attributes:
        key: what results call a run of the kind.
        noun: what people call it.
        follow: the command that follows such a run.
        patterns: what the files of each type are called.
        reserved: names that a platform keeps for itself.
        by_name: the types that `all` leaves out, as not every platform has them.
        not_begun: the code of the error about a run that has no files yet.
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
        """The types of files that `all` stands for."""
        return tuple(name for name in self.patterns if name not in self.by_name)

    def home(self, workspace: WorkspaceDirectory) -> Path:
        """Return where such runs have their directories."""
        return workspace.evals_dir if self.key == "eval_run" else workspace.benchmarks_dir

    def require_begun(self, run: Run) -> None:
        """Check that a run has anything to download.

        Raises:
            OsmosisError: it has not begun.
        """
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
    """Return the types of ``metrics,trajectories`` or ``all`` (``all,journal`` is more), in the order given.

    Raises:
        OsmosisError: when one is unknown, or there is none.
    """
    asked = list(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    unknown = [word for word in asked if word not in ("all", *layout.patterns)]
    if unknown:
        named = ", ".join(f"`{word}`" for word in unknown)
        raise OsmosisError(f"--type does not know {named}; it takes {', '.join(layout.patterns)} or `all`.")
    if "all" not in asked:
        return tuple(asked)
    if set(asked) - {"all", *layout.by_name}:
        raise OsmosisError("--type takes either `all` or a list of types, not both.")
    return (*layout.all, *(word for word in asked if word != "all"))


def check_rows(rows: str | None) -> str | None:
    """Return ``rows`` without spaces.

    Raises:
        OsmosisError: when it is no list of rows such as ``3,7,10-20``.
    """
    if rows is None:
        return None
    tight = re.sub(r"\s+", "", rows)
    if not _ROWS.fullmatch(tight):
        raise OsmosisError(f"--rows takes rows such as 3,7,10-20, and not {rows!r}.")
    for part in tight.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise OsmosisError(f"--rows: {part} ends before it begins.")
    return tight


def run_directory(
    run: Run, workspace: WorkspaceDirectory, output: Path | None = None, layout: FileLayout = EVAL_FILES
) -> Path:
    """Return where a run's files go: ``output``, or a directory of its own below ``.osmosis``.

    Names are folded to what every file system takes; the run's id is added where that would let two runs
    meet, or where an evaluation of this machine has the place.
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
    """Return why a path of the platform's list must not be written."""
    kind = next((name for name in types if layout.patterns[name].fullmatch(path)), None)
    parts = path.split("/")
    if (
        kind is None
        or "\\" in path
        or not path.isprintable()
        or any(part in ("", ".", "..") for part in parts)
        or any(part.endswith((".partial", ".partial.json")) for part in parts[-1:])
    ):
        return "is no path of the files that were asked for"
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
    """Return ``name`` as one path segment that no file system takes for anything else."""
    folded = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    folded = re.sub(r"^[.]+|[. ]+$", "_", folded)
    if len(folded) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        folded = f"{folded[:_LONGEST_NAME]}-{digest}"
    return folded or "_"
