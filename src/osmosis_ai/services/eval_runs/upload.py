"""Upload a local evaluation through the platform's import protocol."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.connections import COMPLETING, SIGNING
from osmosis_ai.api.models import eval_imports as wire
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.journal import JournalReader, load_results
from osmosis_ai.evaluation.manifest import SCHEMA_VERSION, Manifest, run_lock
from osmosis_ai.evaluation.results import AttemptTable
from osmosis_ai.evaluation.run_directory import (
    ARTIFACTS,
    RESERVED_ARTIFACT,
    IndexEntry,
    RunDirectory,
    name_problem,
    read_index,
)
from osmosis_ai.files import open_regular
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.runs.download import Transfers
from osmosis_ai.services.runs.lifecycle import RUN_PATHS, item_path

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.transfer import BlobClient


_BLOCK_BYTES = 1 << 20
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class UploadFile:
    """A file under its wire name, with inode, size and modification time at the time of hashing."""

    path: str
    file: Path
    size: int
    sha256: str
    identity: tuple[int, int, int]

    def require_unchanged(self) -> None:
        try:
            found = self.file.lstat()
        except OSError:
            found = None
        if found is None or _identity(found) != self.identity:
            raise OsmosisError(
                f"'{self.file}' changed while the run was being uploaded.", hint="upload it again"
            )


@dataclass(frozen=True)
class UploadableRun:
    """A complete run with its files, and the run fields of its ``metrics.json``."""

    directory: Path
    manifest: Manifest
    manifest_digest: str
    described: Mapping[str, Any]
    pass_threshold: float
    files: tuple[UploadFile, ...]
    unexplained: int
    """Number of failed attempts without a conversation; their errors are not uploaded."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def announcement(self, *, replace: bool) -> wire.EvalImportStart:
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
                **({"reimport": True} if replace else {}),
            }
        )


_PROVENANCE = ("sdk_version", "git_head", "git_branch", "git_dirty", "config_branch", "config_commit_sha")


def read_uploadable(directory: Path) -> UploadableRun:
    """Read a run for upload; the caller must hold its lock."""
    found = RunDirectory(directory)
    for path in (directory, found.trials, found.manifest):
        if path.is_symlink():
            raise _refused(f"'{path}' is a symbolic link", "upload the directory it points to")
    manifest = Manifest.load(found.manifest)
    if manifest.run_name != directory.name:
        raise _refused(
            f"the directory '{directory}' holds the run '{manifest.run_name}'",
            "rename a copied or archived run to its own name before the upload",
        )
    described, threshold = _described(found, manifest)
    entries = _entries(found, manifest)
    # Search the files for the values of secrets in the environment that are distinctive enough.
    values = {name: os.environ.get(name, "").strip() for name in manifest.inputs.get("secret_names", ())}
    secrets = {name: value.encode() for name, value in values.items() if len(value) >= _SHORTEST_SECRET}
    files = [_hashed(directory, path, secrets) for path in (found.index, found.progress)]
    for entry in entries:
        files += _files_of(found, entry, secrets)
    digest = hashlib.sha256(found.manifest.read_bytes()).hexdigest()
    unexplained = sum(entry.status == "failed" and entry.trajectory_filename is None for entry in entries)
    listed = tuple(sorted(files, key=lambda file: file.path))
    return UploadableRun(directory, manifest, digest, described, threshold, listed, unexplained)


def _described(found: RunDirectory, manifest: Manifest) -> tuple[Mapping[str, Any], float]:
    """Return the run fields of its metrics, and the pass threshold."""
    metrics = found.read_metrics() or {}
    described, summary = metrics.get("eval_run"), metrics.get("summary")
    if not isinstance(described, dict) or not isinstance(summary, dict):
        raise _refused(f"'{found.metrics}' cannot be read", _AGAIN)
    status = described.get("status")
    if status != "finished":
        raise _refused(f"the run '{manifest.run_name}' is {status}, not finished", "run it again to continue")
    same = (described.get("id"), described.get("name"))
    known = [described.get(key) for key in ("dataset_name", "started_at", "completed_at")]
    if same != (manifest.local_run_id, manifest.run_name) or not all(isinstance(it, str) for it in known):
        raise _refused(f"'{found.metrics}' is not that of the run '{manifest.run_name}'", _AGAIN)
    threshold = summary.get("pass_threshold")
    return described, float(threshold) if isinstance(threshold, (int, float)) else 1.0


def _entries(found: RunDirectory, manifest: Manifest) -> list[IndexEntry]:
    """Return the index entries of the run after checking them against the journal."""
    rows, n = manifest.planned(found.manifest)
    table = AttemptTable(rows, n)
    if not found.events.is_file():
        raise _refused(f"'{found.events}' is missing", "a downloaded run is already on its platform")
    # The public SDK writes no checksums.
    load_results(found.events, table, without_crc=True)
    if table.open_count:
        left = f"{table.open_count} of {rows * n} attempts are pending"
        raise _refused(f"the run '{manifest.run_name}' is not finished: {left}", "run it again to continue")
    with _opened(found.index) as lines, JournalReader(found.events, without_crc=True) as journal:
        entries = read_index(lines, rows=rows, n=n)
        for entry in entries:
            record = journal.record(table.offset(entry.row_index, entry.run_index))
            told = (entry.rollout_id, entry.status, entry.reward, entry.tokens)
            if record is None or told != (record.rollout_id, record.status, record.reward, record.tokens):
                where = f"row {entry.row_index}, attempt {entry.run_index}"
                raise _refused(f"'{found.index}' does not match the journal for {where}", _AGAIN)
    return entries


def _files_of(found: RunDirectory, entry: IndexEntry, secrets: Mapping[str, bytes]) -> Iterator[UploadFile]:
    from osmosis_ai.rollout.trajectory import trajectory_problem

    trial = found.trial(entry.rollout_id)
    if trial.is_symlink():
        raise _refused(f"'{trial}' is a symbolic link", _COPY)
    if entry.trajectory_filename is not None:
        path = trial / entry.trajectory_filename
        copy = found.trajectories / f"{item_name(entry.row_index, entry.run_index)}.json"
        # The copy has no secrets, and facts that the rollout's server does not know.
        trajectory = path if path.exists() and not copy.exists() else copy
        file = _hashed(found.path, trajectory, secrets, wire_path=path)
        with _opened(trajectory) as stream:
            problem = trajectory_problem(stream.read(), entry.rollout_id, entry.row_index, entry.run_index)
        if problem is not None:
            raise _refused(f"'{trajectory}' is {problem}", _AGAIN)
        yield file
    root = trial / ARTIFACTS
    if root.is_symlink():
        raise _refused(f"'{root}' is a symbolic link", _COPY)
    for path in _below(root):
        if path != root / RESERVED_ARTIFACT:
            yield _hashed(found.path, path, secrets)


def _below(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory; none if it is missing."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
        else:
            yield path


def _hashed(
    root: Path, path: Path, secrets: Mapping[str, bytes], *, wire_path: Path | None = None
) -> UploadFile:
    relative = (wire_path or path).relative_to(root).as_posix()
    problem = name_problem(relative)
    if problem is not None:
        raise _refused(f"'{path}': {problem}", "rename it, or remove it")
    with _opened(path) as stream:
        digest, end = hashlib.sha256(), b""
        overlap = max(map(len, secrets.values()), default=1) - 1
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            # A value may span two blocks.
            seen = end + block
            for name, value in secrets.items():
                if value in seen:
                    raise _refused(
                        f"'{path}' holds the value of the secret {name}", "take it out of the file"
                    )
            end = seen[-overlap:] if overlap else b""
        found = os.fstat(stream.fileno())
    return UploadFile(relative, path, found.st_size, digest.hexdigest(), _identity(found))


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise _refused(f"'{path}' is missing", _AGAIN) from None
    except OSError as error:
        if path.is_symlink():
            raise _refused(f"'{path}' is a symbolic link", _COPY) from None
        raise _refused(f"'{path}' cannot be read: {error.strerror}", _COPY) from None


_AGAIN = "repeat the `osmosis eval run` command to rebuild it from the journal"
_COPY = "put the file there, or remove it"


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _refused(what: str, hint: str | None = None) -> OsmosisError:
    return OsmosisError(f"Run cannot be uploaded: {what}.", hint=hint)


PARALLEL = 4


@dataclass(frozen=True)
class UploadedRun:
    """An uploaded run, of which this upload sent so many files."""

    run: UploadableRun
    session: wire.EvalImportSession
    sent: int

    @property
    def name(self) -> str:
        return self.session.eval_run_name or self.run.manifest.run_name

    def resource(self) -> dict[str, Any]:
        return {
            "local_run_id": self.run.manifest.local_run_id,
            "local_run_path": str(self.run.directory),
            **self.session.model_dump(exclude={"files", "expires_at"}),
        }


def upload_run(
    client: PlatformClient,
    directory: Path,
    *,
    progress: Callable[[UploadableRun], Callable[[int], None]],
    replace: bool = False,
) -> UploadedRun:
    """Upload a complete run while holding its lock; ``replace`` its earlier upload if it has changed since."""
    from osmosis_ai.api.transfer import BlobClient

    require_offered(client, Capability.EVAL_IMPORTS)
    with ExitStack() as held:
        try:
            held.enter_context(run_lock(directory.parent, directory.name))
        except OSError as error:
            raise OsmosisError(
                f"Run '{directory}' cannot be locked: {error.strerror}.",
                hint="copy it to where you may write",
            ) from None
        run = read_uploadable(directory)
        blobs = held.enter_context(BlobClient())
        transfers = held.enter_context(Transfers(PARALLEL, "osmosis-upload", progress(run)))
        return _Upload(client, run, blobs, transfers).run(replace=replace)


_IMPORTS = f"{RUN_PATHS['eval']}/imports"
_PARTS_TIMEOUT_S, _FINALIZE_TIMEOUT_S = 120.0, 300.0


class _Upload:
    def __init__(
        self, client: PlatformClient, run: UploadableRun, blobs: BlobClient, transfers: Transfers
    ) -> None:
        self._client = client
        self._run = run
        self._files = {file.path: file for file in run.files}
        self._blobs = blobs
        self._note, self._pool = transfers.note, transfers.pool

    def run(self, *, replace: bool) -> UploadedRun:
        announced = self._run.announcement(replace=replace)
        session = self._client.post(
            _IMPORTS, announced, model=wire.EvalImportSession, timeout_s=_PARTS_TIMEOUT_S, retry=SIGNING
        )
        _require_same(session, announced)
        pending = [file.path for file in session.files if file.state == "pending"]
        try:
            if session.status == "uploading":
                for file in session.files:
                    if file.state == "uploaded":
                        self._note(file.path, file.size)
                self._send(session.session_id, pending)
            ended = self._client.post(
                item_path(_IMPORTS, session.session_id, "/finalize"),
                None,
                model=wire.EvalImportSession,
                timeout_s=_FINALIZE_TIMEOUT_S,
                retry=COMPLETING,
            )
        except OsmosisError as error:
            kept = "uploaded files are kept for a day: run the same command again to continue"
            error.hint = error.hint or kept
            raise
        _require_same(ended, announced)
        if ended.status != "finalized" or not (ended.eval_run_id and ended.eval_run_name):
            raise _nonsense("it does not name the new run")
        return UploadedRun(self._run, ended, len(pending))

    def _send(self, session_id: str, pending: Sequence[str]) -> None:
        path = item_path(_IMPORTS, session_id, "/uploads")
        for start in range(0, len(pending), wire.LARGEST_BATCH):
            batch = pending[start : start + wire.LARGEST_BATCH]
            asked = wire.ImportUploadsRequest(paths=list(batch))
            uploads = self._client.post(path, asked, model=wire.ImportUploads, retry=SIGNING).files
            if not {each.path for each in uploads} <= set(batch):
                raise _nonsense("it asks for files that were not offered")
            for done in [self._pool.submit(self._send_one, session_id, each) for each in uploads]:
                done.result()

    def _send_one(self, session_id: str, upload: wire.ImportUpload) -> None:
        from osmosis_ai.api.transfer import upload_file

        file: UploadFile = self._files[upload.path]
        file.require_unchanged()
        parts = upload_file(
            file.file, upload.upload, progress=lambda done: self._note(file.path, done), client=self._blobs
        )
        done = wire.ImportUploadComplete(path=file.path)
        if parts is not None:
            done.parts = [wire.ImportPart(part_number=part.PartNumber, etag=part.ETag) for part in parts]
        self._client.post(
            item_path(_IMPORTS, session_id, "/uploads/complete"),
            done,
            model=WireModel,
            timeout_s=_PARTS_TIMEOUT_S,
            retry=COMPLETING,
        )
        self._note(file.path, file.size)


def _require_same(session: wire.EvalImportSession, announced: wire.EvalImportStart) -> None:
    """Check that the platform lists exactly the announced files."""
    theirs = sorted((file.path, file.size, file.sha256) for file in session.files)
    if theirs != sorted((file.path, file.size, file.sha256) for file in announced.files):
        raise _nonsense("its list of files is different")


def _nonsense(what: str) -> OsmosisError:
    return OsmosisError(f"The platform's reply to the upload is invalid: {what}.", code="PLATFORM_ERROR")
