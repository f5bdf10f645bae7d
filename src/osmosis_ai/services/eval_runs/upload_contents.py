"""What of a run on this machine is uploaded: read, hashed, and refused unless all of it fits together.

The journal is the truth. A run is uploaded when every item has its result there, the index says the same, and each
file that the index names is a regular file of that very attempt; never its manifest, its journal or its logs. A file that
holds the value of one of the run's secrets, as far as the environment has it, stays here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import open_regular

if TYPE_CHECKING:
    from osmosis_ai.api.wire.eval_imports import EvalImportStart
    from osmosis_ai.evaluation.index import IndexEntry
    from osmosis_ai.evaluation.ledger import Ledger
    from osmosis_ai.evaluation.manifest import Manifest
    from osmosis_ai.evaluation.run_directory import RunDirectory

_BLOCK_BYTES = 1 << 20
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class UploadFile:
    """A file to be uploaded, as it was when it was hashed.

    Attributes:
        path: its name on the wire, relative to the run's directory.
        identity: inode, size and time of change.
    """

    path: str
    file: Path
    size: int
    sha256: str
    identity: tuple[int, int, int]

    def require_unchanged(self) -> None:
        """Check that the file is still what was hashed.

        Raises:
            OsmosisError: it is not.
        """
        try:
            found = self.file.lstat()
        except OSError:
            found = None
        if found is None or _identity(found) != self.identity:
            raise OsmosisError(
                f"{self.file} changed while the run was being uploaded.", hint="upload it again"
            )


@dataclass(frozen=True)
class UploadableRun:
    """A complete run.

    Attributes:
        described: what ``metrics.json`` says of the run itself.
        files: by path.
    """

    directory: Path
    manifest: Manifest
    manifest_digest: str
    described: Mapping[str, Any]
    pass_threshold: float
    files: tuple[UploadFile, ...]

    @property
    def size_bytes(self) -> int:
        """How much there is to upload."""
        return sum(file.size for file in self.files)

    def announcement(self) -> EvalImportStart:
        """Return what is said of the run before anything is sent."""
        from osmosis_ai.api.wire import eval_imports as wire
        from osmosis_ai.evaluation.manifest import SCHEMA_VERSION

        inputs, provenance = self.manifest.inputs, self.manifest.provenance
        rollout, dataset = inputs["rollout"], inputs["dataset"]
        pinned = {
            "branch": provenance.get("config_branch"),
            "commit_sha": provenance.get("config_commit_sha"),
        }
        return wire.EvalImportStart.model_validate(
            {
                "schema_version": SCHEMA_VERSION,
                "local_run_id": self.manifest.local_run_id,
                "manifest_digest": self.manifest_digest,
                "run": {
                    "name": self.manifest.run_name,
                    "started_at": self.described["started_at"],
                    "completed_at": self.described["completed_at"],
                    "experiment_config": {
                        "rollout": {
                            "name": rollout["name"],
                            "source_digest": rollout["source_digest"],
                            **{key: value for key, value in pinned.items() if value is not None},
                        },
                        "entrypoint": rollout["entrypoint"],
                        "model_path": inputs["model_path"],
                        "dataset": {
                            "name": self.described["dataset_name"],
                            "sha256": dataset["sha256"],
                            "selected_source_rows": dataset["selected_source_rows"],
                        },
                    },
                    "evaluation_config": {"n": inputs["n"], "pass_threshold": self.pass_threshold},
                },
                "schema_versions": dict(inputs["versions"]),
                "provenance": {key: provenance[key] for key in _PROVENANCE if key in provenance},
                "files": [
                    {"path": file.path, "size": file.size, "sha256": file.sha256} for file in self.files
                ],
            }
        )


_PROVENANCE = ("sdk_version", "git_head", "git_branch", "git_dirty", "config_branch", "config_commit_sha")


def read_uploadable(directory: Path) -> UploadableRun:
    """Read a run that is to be uploaded; call it while its lock is held.

    Raises:
        OsmosisError: it is not complete, is damaged, or has a file that cannot be uploaded.
    """
    from osmosis_ai.evaluation.manifest import Manifest
    from osmosis_ai.evaluation.run_directory import RunDirectory

    found = RunDirectory(directory)
    for path in (directory, found.trials, found.manifest):
        if path.is_symlink():
            raise _refused(f"`{path}` is a symbolic link", "upload the directory that it leads to")
    manifest = Manifest.load(found.manifest)
    if manifest.run_name != directory.name:
        raise _refused(
            f"the directory `{directory}` holds the run `{manifest.run_name}`",
            "a run that was copied or put aside gets its own name back before it is uploaded",
        )
    described, threshold = _described(found, manifest)
    entries = _entries(found, manifest)
    secrets = _secret_values(manifest)
    files = [_hashed(directory, path, secrets) for path in (found.index, found.progress)]
    for entry in entries:
        files += _files_of(found, entry, secrets)
    digest = hashlib.sha256(found.manifest.read_bytes()).hexdigest()
    return UploadableRun(
        directory, manifest, digest, described, threshold, tuple(sorted(files, key=lambda file: file.path))
    )


def _described(found: RunDirectory, manifest: Manifest) -> tuple[Mapping[str, Any], float]:
    """Return what the run's metrics say of it, and from which reward on a sample passes."""
    metrics = found.read_metrics() or {}
    described, summary = metrics.get("eval_run"), metrics.get("summary")
    if not isinstance(described, dict) or not isinstance(summary, dict):
        raise _refused(f"`{found.metrics}` cannot be read", _AGAIN)
    status = described.get("status")
    if status != "finished":
        raise _refused(f"the run `{manifest.run_name}` is {status}, not finished", "run it again to go on")
    same = (described.get("id"), described.get("name"))
    known = [described.get(key) for key in ("dataset_name", "started_at", "completed_at")]
    if same != (manifest.local_run_id, manifest.run_name) or not all(isinstance(it, str) for it in known):
        raise _refused(f"`{found.metrics}` is not that of the run `{manifest.run_name}`", _AGAIN)
    threshold = summary.get("pass_threshold")
    return described, float(threshold) if isinstance(threshold, (int, float)) else 1.0


def _entries(found: RunDirectory, manifest: Manifest) -> list[IndexEntry]:
    """Return the run's results as its index tells them, which must be what its journal does."""
    from osmosis_ai.evaluation.index import read_index
    from osmosis_ai.evaluation.journal import JournalReader

    rows, n = manifest.sampled_rows, int(manifest.inputs["n"])
    ledger = _ledger(found, rows, n)
    if ledger.open_count:
        left = f"{ledger.open_count} of {rows * n} samples are pending"
        raise _refused(f"the run `{manifest.run_name}` is not finished: {left}", "run it again to go on")
    with _opened(found.index) as lines, JournalReader(found.events) as journal:
        entries = read_index(lines, rows=rows, n=n)
        for entry in entries:
            record = journal.record(ledger.offset(entry.row_index, entry.run_index))
            told = (entry.rollout_id, entry.status, entry.reward, entry.tokens)
            if record is None or told != (record.rollout_id, record.status, record.reward, record.tokens):
                where = f"row {entry.row_index}, attempt {entry.run_index + 1}"
                raise _refused(f"`{found.index}` says of {where} what the journal does not", _AGAIN)
    return entries


def _ledger(found: RunDirectory, rows: int, n: int) -> Ledger:
    from osmosis_ai.evaluation.journal import replay
    from osmosis_ai.evaluation.journal_chain import Chain
    from osmosis_ai.evaluation.ledger import Ledger
    from osmosis_ai.evaluation.run_state import require_part_of_run

    ledger = Ledger(rows, n)
    if not found.events.is_file():
        raise _refused(f"`{found.events}` is missing", "a run that was downloaded is on its platform already")
    # The public SDK writes no digests.
    for offset, _, record in replay(found.events, chain=Chain(without_digests=True)):
        require_part_of_run(ledger, record, found.events)
        ledger.settle(record.row_index, record.run_index, record.status, offset)
    return ledger


def _secret_values(manifest: Manifest) -> dict[str, bytes]:
    """Return the values of the run's secrets that the environment has and that can be told from other text."""
    values = {name: os.environ.get(name, "").strip() for name in manifest.inputs.get("secret_names", ())}
    return {name: value.encode() for name, value in values.items() if len(value) >= _SHORTEST_SECRET}


def _files_of(found: RunDirectory, entry: IndexEntry, secrets: Mapping[str, bytes]) -> Iterator[UploadFile]:
    """Yield the trajectory and the artifacts of an attempt."""
    from osmosis_ai.evaluation.run_files import ARTIFACTS, RESERVED_ARTIFACT
    from osmosis_ai.evaluation.trajectory_export import trajectory_problem

    trial = found.trial(entry.rollout_id)
    if trial.is_symlink():
        raise _refused(f"`{trial}` is a symbolic link", _COPY)
    if entry.trajectory_filename is not None:
        trajectory = trial / entry.trajectory_filename
        file = _hashed(found.path, trajectory, secrets)
        with _opened(trajectory) as stream:
            problem = trajectory_problem(stream.read(), entry.rollout_id, entry.row_index, entry.run_index)
        if problem is not None:
            raise _refused(f"`{trajectory}` is {problem}", _AGAIN)
        yield file
    root = trial / ARTIFACTS
    if root.is_symlink():
        raise _refused(f"`{root}` is a symbolic link", _COPY)
    for path in _below(root):
        if path != root / RESERVED_ARTIFACT:
            yield _hashed(found.path, path, secrets)


def _below(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory, none where it is missing."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        else:
            yield path


def _hashed(root: Path, path: Path, secrets: Mapping[str, bytes]) -> UploadFile:
    from osmosis_ai.evaluation.run_files import name_problem

    relative = path.relative_to(root).as_posix()
    problem = name_problem(relative)
    if problem is not None:
        raise _refused(f"`{path}`: {problem}", "rename it, or remove it")
    with _opened(path) as stream:
        digest, end = hashlib.sha256(), b""
        overlap = max(map(len, secrets.values()), default=1) - 1
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            # A value may lie across two blocks.
            seen = end + block
            for name, value in secrets.items():
                if value in seen:
                    raise _refused(
                        f"`{path}` holds the value of the secret {name}", "take it out of the file"
                    )
            end = seen[-overlap:] if overlap else b""
        found = os.fstat(stream.fileno())
    return UploadFile(relative, path, found.st_size, digest.hexdigest(), _identity(found))


def _opened(path: Path) -> BinaryIO:
    """Open a file that is one: no link, no pipe.

    Raises:
        OsmosisError: it is none, or cannot be read.
    """
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise _refused(f"`{path}` is missing", _AGAIN) from None
    except OSError as error:
        if path.is_symlink():
            raise _refused(f"`{path}` is a symbolic link", _COPY) from None
        raise _refused(f"`{path}` cannot be read: {error.strerror}", _COPY) from None


_AGAIN = "the same `osmosis eval run` writes it anew from the journal"
_COPY = "put the file there, or remove it"


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _refused(what: str, hint: str | None = None) -> OsmosisError:
    return OsmosisError(f"this run cannot be uploaded: {what}.", hint=hint)
