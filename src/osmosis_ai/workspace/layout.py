"""The layout of a workspace directory: a Git work tree with four directories at fixed paths, without a marker file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import OsmosisError, WorkspaceRequiredError
from osmosis_ai.files import expanded, write_atomic
from osmosis_ai.workspace.git import worktree_root

REQUIRED_DIRECTORIES = ("rollouts", "configs/training", "configs/eval", "data")
DATASET_EXTENSIONS = ("jsonl", "csv", "json", "parquet")


@dataclass(frozen=True)
class WorkspaceDirectory:
    """The directories of a workspace."""

    root: Path

    @property
    def rollouts_dir(self) -> Path:
        return self.root / "rollouts"

    @property
    def eval_configs_dir(self) -> Path:
        return self.root / "configs" / "eval"

    @property
    def training_configs_dir(self) -> Path:
        return self.root / "configs" / "training"

    @property
    def benchmark_configs_dir(self) -> Path:
        """TOML files for benchmark runs; optional."""
        return self.root / "configs" / "benchmark"

    @property
    def data_dir(self) -> Path:
        return self.root / "data"

    @property
    def state_dir(self) -> Path:
        """Local state of commands; never part of the repository."""
        return self.root / ".osmosis"

    @property
    def evals_dir(self) -> Path:
        return self.state_dir / "evals"

    @property
    def benchmarks_dir(self) -> Path:
        return self.state_dir / "benchmarks"

    def create_state_dir(self) -> Path:
        """Create :attr:`state_dir` with its own `.gitignore`, and return it."""
        ignore = self.state_dir / ".gitignore"
        if not ignore.exists():
            write_atomic(ignore, "*\n", mode=0o644, durable=False)
        return self.state_dir


def find_workspace(start: Path | None = None, *, require_scaffold: bool = True) -> WorkspaceDirectory:
    """Return the workspace that contains ``start`` (a directory or file; default: the current directory)."""
    place = expanded(start or Path.cwd()).absolute()
    directory = place if place.is_dir() else place.parent
    root = worktree_root(directory)
    if root is None:
        raise WorkspaceRequiredError(
            f"Run this command from an Osmosis workspace directory: {directory} is not inside a Git work tree.",
            hint="to make one here: git init, then osmosis doctor --fix",
        )
    workspace = WorkspaceDirectory(root)
    if require_scaffold and (missing := missing_directories(workspace)):
        raise OsmosisError(
            f"{root} is not laid out as an Osmosis workspace. Missing:\n"
            + "\n".join(f"  - {path}/" for path in missing)
            + "\nRun `osmosis doctor --fix` in this Git repository to create them.",
            details={"workspace_directory": str(root), "missing": missing},
        )
    return workspace


def missing_directories(workspace: WorkspaceDirectory) -> list[str]:
    """Return the missing required directories, relative to the root."""
    return [path for path in REQUIRED_DIRECTORIES if not (workspace.root / path).is_dir()]


def find_dataset_file(workspace: WorkspaceDirectory, name: str) -> Path | None:
    """Return the file in `data/` with the dataset ``name``, or None."""
    if Path(name).name != name:
        raise OsmosisError(f"`{name}` is not the name of a dataset: it has a directory in it.")
    candidates = [workspace.data_dir / f"{name}.{extension}" for extension in DATASET_EXTENSIONS]
    found = [path for path in candidates if path.is_file()]
    if len(found) > 1:
        names = " and ".join(f"data/{path.name}" for path in found)
        raise OsmosisError(
            f"The dataset `{name}` could be {names}.", hint="rename one of them, or pass --dataset-file"
        )
    literal = workspace.data_dir / name
    if not found and literal.suffix[1:] in DATASET_EXTENSIONS and literal.is_file():
        raise OsmosisError(
            f'A dataset is named without its extension: write dataset = "{literal.stem}" for data/{name}.'
        )
    return found[0] if found else None


def similar_dataset(workspace: WorkspaceDirectory, name: str) -> str | None:
    """Return the dataset in `data/` that ``name`` is most likely a misspelling of, or None."""
    from osmosis_ai.config.issues import closest

    files = workspace.data_dir.iterdir() if workspace.data_dir.is_dir() else ()
    return closest(name, [file.stem for file in files if file.suffix[1:] in DATASET_EXTENSIONS])
