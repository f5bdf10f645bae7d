"""Datasets on the platform: list, preview, upload, download, and cache for evaluations.

An upload that fails or is interrupted with Ctrl-C is aborted on the platform. If the connection is lost during an
upload in parts, or this process is killed, the same command resumes it with the parts that have arrived. It finds
them in its own record or, without one, asks a self-hosted platform for the open upload of the same user and bytes.

The cache, ``<cache>/datasets/<id>/``, holds ``metadata.json`` and ``<sha256>.<extension>``. The digest is checked
before every use, and the platform is asked each time whether the dataset has changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import filelock

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient, segment
from osmosis_ai.api.connections import COMPLETING, REPEATING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.base import LogEntry, LogPage, WireModel
from osmosis_ai.api.models.datasets import (
    UPLOAD_INTENT_HEADER,
    CompletedPart,
    Dataset,
    DatasetCompleteRequest,
    DatasetCreateRequest,
    DatasetDownload,
    DatasetList,
    UploadInstructions,
    UploadIntent,
)
from osmosis_ai.api.transfer import download, upload_file
from osmosis_ai.api.upload_records import UnfinishedUpload, find_unfinished_upload, note_intent, open_upload
from osmosis_ai.datasets import DatasetReport, file_digest
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import cache_dir, expanded, write_json
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.context import Warn
from osmosis_ai.services.listing import fetch_listing
from osmosis_ai.services.log_following import LogFollower

Progress = Callable[[int], None]
OpenProgress = Callable[[int | None], AbstractContextManager[Progress]]
OpenNamedProgress = Callable[[str, int | None], AbstractContextManager[Progress]]
"""Opens a display for a download, given the dataset's name and size in bytes."""
IN_PROGRESS = frozenset({"pending", "uploading", "processing"})
READY = "uploaded"
# Statuses of a store or platform for an upload that it no longer knows.
_GONE = frozenset({400, 403, 404, 409, 410})
_DATASETS = "/api/cli/datasets"
_EXTENSIONS = ("jsonl", "csv", "json", "parquet")
_COMPLETE_PARTS_TIMEOUT_S = 120.0
_LOCK_TIMEOUT_S = 3600.0
_KEPT_S = 7 * 86400.0


def list_datasets(client: PlatformClient, *, limit: int, everything: bool) -> DatasetList:
    """Return the workspace's datasets, newest first; arguments as in ``fetch_listing``."""
    return fetch_listing(client.pages(_DATASETS, DatasetList), limit=limit, everything=everything)


def get_dataset(client: PlatformClient, name_or_id: str) -> Dataset:
    return client.get(f"{_DATASETS}/{segment(name_or_id)}", model=Dataset)


def dataset_log(client: PlatformClient, name: str) -> Callable[[int, str | None], LogPage]:
    """Return a function that gets one page of a dataset's validation log; see ``PlatformClient.log_pages``."""
    return client.log_pages(f"{_DATASETS}/{segment(name)}/logs")


class DatasetPreview(NamedTuple):
    """The first rows of a dataset, or the ``message`` why the platform has no preview."""

    dataset: Dataset
    rows: list[Any]
    message: str | None = None


def preview_dataset(client: PlatformClient, name: str, *, rows: int) -> DatasetPreview:
    """Return up to ``rows`` rows of a dataset. A missing preview is not an error."""
    dataset = get_dataset(client, name)
    found = dataset.data_preview
    if isinstance(found, Mapping) and isinstance(found.get("rows"), list):
        found = found["rows"]
    if isinstance(found, list):
        return DatasetPreview(dataset, found[:rows])
    message = {
        READY: "The platform keeps no preview of this dataset.",
        "error": f"The platform rejected this dataset. See logs with: osmosis dataset logs {name}",
        "cancelled": "The upload of this dataset was cancelled.",
    }.get(dataset.status, "The platform is still working on this dataset.")
    return DatasetPreview(dataset, [], message)


def find_deletable_dataset(client: PlatformClient, name: str) -> Dataset:
    """Return the dataset to delete; raises PlatformError if the platform does not support deletion."""
    dataset = get_dataset(client, name)
    require_offered(client, Capability.DELETION)
    return dataset


def delete_dataset(client: PlatformClient, dataset: Dataset) -> None:
    """Delete a dataset permanently; runs that used it keep its name."""
    with explain_unsure_deletion("osmosis dataset list"):
        client.delete(f"{_DATASETS}/{segment(dataset.id)}")


@contextmanager
def explain_unsure_deletion(listing: str) -> Iterator[None]:
    """Add the command ``listing`` to the error if the platform did not answer a deletion."""
    try:
        yield
    except PlatformError as error:
        if error.status is None:
            unsure = f"check whether it is deleted with: {listing}"
            error.hint = f"{error.hint}; {unsure}" if error.hint else unsure
        raise


def upload_dataset(
    client: PlatformClient,
    path: Path,
    report: DatasetReport,
    *,
    overwrite: bool,
    progress: Progress,
    warn: Warn,
) -> Dataset:
    """Upload a file, checked by ``dataset_files.check_file``, as the dataset named after it.

    Raises:
        ConflictError: the name is taken and ``overwrite`` is not set.
        PlatformError: the platform or its store refused, or could not be reached.
        OsmosisError: the file changed during the upload.
    """
    scope = f"{client.platform_url} {client.git_identity} {path.stem}"
    intent, intent_file = note_intent(cache_dir() / "uploads", digest=file_digest(path), scope=scope)
    sender = _Sender(client, path, report, progress, warn, scope, intent, intent_file)
    return sender.resume() or sender.start(overwrite=overwrite)


@dataclass(frozen=True)
class _Sender:
    """Uploads one file as one dataset."""

    client: PlatformClient
    path: Path
    report: DatasetReport
    progress: Progress
    warn: Warn
    scope: str
    intent: UploadIntent
    intent_file: Path

    def resume(self) -> Dataset | None:
        """Resume an interrupted upload of the same bytes; None if there is no such upload."""
        unfinished = find_unfinished_upload(
            cache_dir() / "uploads", digest=self.intent.sha256, scope=self.scope
        )
        if unfinished is None:
            return None
        try:
            if self._can_go_on(unfinished):
                return self._send(unfinished.dataset_id, unfinished.instructions)
        except PlatformError as error:
            if error.status not in _GONE:
                raise
        unfinished.forget()
        return None

    def start(self, *, overwrite: bool) -> Dataset:
        request = DatasetCreateRequest(
            file_name=self.path.stem, file_size=self.report.file_size, extension=self.report.extension
        )
        try:
            dataset = self._create(request)
        except PlatformError as error:
            existing = error.body.get("existing_dataset_id")
            if error.status != 409 or not isinstance(existing, str) or not existing:
                raise
            if not overwrite:
                raise ConflictError(
                    error.message,
                    details=error.details,
                    hint="replace its content with `--overwrite`, or rename the file",
                ) from None
            request.overwrite_dataset_id = existing
            dataset = self._create(request)
        if dataset.upload is None:
            self._abort(dataset.id)
            raise OsmosisError("The platform returned no upload address.", code="PLATFORM_ERROR")
        return self._send(dataset.id, dataset.upload)

    def _can_go_on(self, unfinished: UnfinishedUpload) -> bool:
        """Tell whether the platform waits for parts, or may have received the call that completes the upload."""
        dataset = get_dataset(self.client, unfinished.dataset_id)
        if dataset.id != unfinished.dataset_id:
            return False
        was_completed = (
            unfinished.is_acknowledged
            and dataset.status in (*IN_PROGRESS, READY)
            and dataset.file_size == self.report.file_size
        )
        return was_completed or dataset.status in ("pending", "uploading")

    def _create(self, request: DatasetCreateRequest) -> Dataset:
        headers = {UPLOAD_INTENT_HEADER: self.intent.header}
        return self.client.post(_DATASETS, request, model=Dataset, headers=headers)

    def _send(self, dataset_id: str, instructions: UploadInstructions) -> Dataset:
        record = None
        try:
            # The upload works without its record, so a disk error does not stop it.
            with suppress(OSError):
                if instructions.method == "multipart":
                    record = open_upload(
                        cache_dir() / "uploads",
                        digest=self.intent.sha256,
                        dataset_id=dataset_id,
                        instructions=instructions,
                        scope=self.scope,
                    )
            parts = upload_file(self.path, instructions, progress=self.progress, record=record)
            dataset = self._complete(dataset_id, parts)
        except BaseException as error:  # Ctrl-C too: no partial upload stays on the platform
            if (
                isinstance(error, PlatformError)
                and error.status is None
                and instructions.method == "multipart"
            ):
                raise PlatformError(
                    error.message,
                    code=error.code,
                    details=error.details,
                    hint="run the same command again to continue with the parts that have arrived",
                ) from None
            self._abort(dataset_id)
            self.intent_file.unlink(missing_ok=True)
            raise
        if record is not None:
            record.forget()
        self.intent_file.unlink(missing_ok=True)
        return dataset

    def _complete(self, dataset_id: str, parts: list[CompletedPart] | None) -> Dataset:
        request = DatasetCompleteRequest(file_extension=self.report.extension)
        if parts is not None:
            request.parts = parts
        timeout_s = None if parts is None else _COMPLETE_PARTS_TIMEOUT_S
        path = f"{_DATASETS}/{segment(dataset_id)}/complete"
        return self.client.post(path, request, model=Dataset, timeout_s=timeout_s, retry=COMPLETING)

    def _abort(self, dataset_id: str) -> None:
        try:
            path = f"{_DATASETS}/{segment(dataset_id)}/abort"
            self.client.post(path, model=WireModel, retry=REPEATING)
        except OsmosisError as error:
            self.warn(
                f"the upload could not be aborted on the platform ({error.message}); "
                f"`{self.path.stem}` may stay listed as uploading for a while.",
                "ABORT_FAILED",
            )


def warn_of_size(dataset: Dataset, report: DatasetReport, warn: Warn) -> None:
    """Warn if the platform stores a different number of bytes than were sent, unless it converted the file."""
    converted = dataset.file_format not in (None, report.extension)
    if dataset.file_size not in (0, report.file_size) and not converted:
        warn(
            f"Size of {report.file_name} differs: {dataset.file_size} bytes stored ({report.file_size} bytes sent).",
            "DATASET_SIZE_DIFFERS",
        )


def follow_check(client: PlatformClient, name: str) -> LogFollower:
    """Return a follower of a dataset's log from now on. Call it before an upload that replaces the dataset."""
    log = LogFollower(dataset_log(client, name))
    try:
        log.news()
    except PlatformError as error:
        if error.status != 404 or (error.platform_code or "").startswith("GIT_"):
            raise
    return log


def wait_until_checked(
    client: PlatformClient,
    dataset: Dataset,
    log: LogFollower,
    *,
    pause: Callable[[], None],
    tell: Callable[[str], None],
) -> Dataset:
    """Wait until the platform has checked a dataset, and return it.

    Args:
        log: the dataset's log, from before the upload.
        pause: waits between two polls.
        tell: receives each line of the platform's log as it arrives.

    Raises:
        OsmosisError: the platform rejected the dataset; the message says why.
    """
    lines: list[LogEntry] = []
    while True:
        dataset = get_dataset(client, dataset.id)
        for entry in log.news():
            lines.append(entry)
            tell(": ".join(part for part in (entry.step, entry.message) if part))
        if dataset.status not in IN_PROGRESS:
            break
        pause()
    if dataset.status == READY and dataset.upload_error is None:
        return dataset
    said = [dataset.upload_error] if dataset.upload_error else []
    if not said:
        said = [entry.message for entry in lines if entry.message and (entry.level or "").lower() == "error"]
    problems = "".join(f"\n  - {message}" for message in said)
    kept = " The dataset is unchanged." if dataset.status == READY else ""
    raise OsmosisError(
        f"The platform rejected the file.{kept}{problems}",
        details={"id": dataset.id, "status": dataset.status, "errors": said},
        hint=f"see logs with: osmosis dataset logs {dataset.file_name}",
    )


def download_dataset(
    client: PlatformClient, name: str, *, output: str | None, overwrite: bool, progress: OpenProgress
) -> tuple[Dataset, Path]:
    """Download a dataset and return it with the file.

    ``output`` is a file, an existing directory, or any path that ends in a separator.
    """
    dataset = require_ready(get_dataset(client, name))
    source = _signed(client, dataset)
    directory, target = _target(output, _file_name(dataset, source.file_name))
    if target.is_dir():
        raise ConflictError(f"{target} is a directory.", hint="choose a file with '--output'")
    if target.exists() and not overwrite:
        raise ConflictError(
            f"{target} already exists.", hint="use '--overwrite', or choose another path with '--output'"
        )
    with progress(dataset.file_size or None) as shown:
        suggested = _fetch(client, dataset, source.presigned_url, target, shown)
    if directory is not None and suggested and suggested != target.name:
        renamed = directory / suggested
        if overwrite or not renamed.exists():
            return dataset, target.replace(renamed)
    return dataset, target


def _signed(client: PlatformClient, dataset: Dataset) -> DatasetDownload:
    return client.get(f"{_DATASETS}/{segment(dataset.id)}/download", model=DatasetDownload)


def _fetch(client: PlatformClient, dataset: Dataset, url: str, target: Path, shown: Progress) -> str | None:
    return download(
        url,
        target,
        expected_size=dataset.file_size or None,
        progress=shown,
        refresh_url=lambda: _signed(client, dataset).presigned_url,
    )


def require_ready(dataset: Dataset) -> Dataset:
    """Return ``dataset`` if it can be downloaded; otherwise raise an OsmosisError."""
    if dataset.status == READY:
        return dataset
    name = dataset.file_name or dataset.id
    if dataset.status in IN_PROGRESS:
        raise OsmosisError(
            f"Dataset `{name}` is still being processed (status `{dataset.status}`).",
            details={"id": dataset.id, "status": dataset.status},
            hint=f"see its status with: osmosis dataset info {shlex.quote(name)}",
        )
    raise OsmosisError(
        f"Dataset `{name}` cannot be used: its status is `{dataset.status or 'unknown'}`.",
        details={"id": dataset.id, "status": dataset.status},
        hint=f"see logs with: osmosis dataset logs {name}",
    )


def _file_name(dataset: Dataset, suggested: str | None) -> str:
    """Return a plain file name: a platform must not choose the directory."""
    stem = dataset.file_name or dataset.id
    named = f"{stem}.{dataset.file_format}" if dataset.file_format else stem
    for name in (suggested, named, dataset.id):
        plain = Path(name.replace("\\", "/")).name if name else ""
        if plain and plain not in (".", "..") and plain.isprintable():
            return plain
    return "dataset"


def _target(output: str | None, name: str) -> tuple[Path | None, Path]:
    """Return the directory, if ``output`` names one, and the file."""
    if output is None:
        return Path.cwd(), Path.cwd() / name
    path = expanded(output)
    if output.endswith("/") or path.is_dir():
        return path, path / name
    return None, path


@dataclass(frozen=True)
class CachedDataset:
    """A platform dataset as a local file; ``source`` is whether it was already in the cache."""

    path: Path
    sha256: str
    source: Literal["cache", "download"]


def fetch_dataset(
    client: PlatformClient,
    name: str,
    *,
    progress: OpenNamedProgress = lambda _name, _size: nullcontext(lambda _done: None),
) -> CachedDataset:
    """Return the current bytes of a platform dataset as a file in the cache."""
    dataset = require_ready(get_dataset(client, name))
    extension = _extension(dataset)
    directory = cache_dir() / "datasets" / _directory_name(dataset.id)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with filelock.FileLock(directory / ".lock", timeout=_LOCK_TIMEOUT_S):
        version = _version(dataset, client.platform_url)
        if found := _cached(directory, dataset, extension, version):
            return found
        incoming = directory / "incoming"
        with progress(dataset.file_name or dataset.id, dataset.file_size or None) as shown:
            _fetch(client, dataset, _signed(client, dataset).presigned_url, incoming, shown)
        sha256 = file_digest(incoming)
        path = incoming.replace(directory / f"{sha256}.{extension}")
        write_json(directory / "metadata.json", {"version": version, "sha256": sha256})
        _remove_old(directory, path)
        return CachedDataset(path, sha256, "download")


def _cached(
    directory: Path, dataset: Dataset, extension: str, version: dict[str, Any]
) -> CachedDataset | None:
    try:
        known: Any = json.loads((directory / "metadata.json").read_bytes())
        sha256 = str(known["sha256"])
        path = directory / f"{sha256}.{extension}"
        if dataset.updated_at is None or known["version"] != version or file_digest(path) != sha256:
            return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, OsmosisError):
        return None
    return CachedDataset(path, sha256, "cache")


def _remove_old(directory: Path, current: Path) -> None:
    """Remove earlier versions after a delay, because a running evaluation may be reading them."""
    for path in directory.glob("*.*"):
        is_data = path.suffix[1:] in _EXTENSIONS and len(path.stem) == 64
        if is_data and path != current and time.time() - path.stat().st_mtime > _KEPT_S:
            path.unlink(missing_ok=True)


def _version(dataset: Dataset, platform_url: str) -> dict[str, Any]:
    """Return the fields that change when the bytes do."""
    keys = {"id", "file_name", "file_size", "file_format", "updated_at"}
    return {"platform_url": platform_url, **dataset.model_dump(mode="json", include=keys)}


def _extension(dataset: Dataset) -> str:
    for named in (dataset.file_format, Path(dataset.file_name or "").suffix[1:]):
        if named and named.lower() in _EXTENSIONS:
            return named.lower()
    raise OsmosisError(
        f"Dataset '{dataset.file_name or dataset.id}' has an unknown format: {dataset.file_format}.",
        hint="upgrade Osmosis, or use '--dataset-file FILE'",
    )


def _directory_name(dataset_id: str) -> str:
    """Return an id as one directory name; an id that is not a valid name is replaced by its digest."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,96}", dataset_id):
        return dataset_id
    return hashlib.sha256(dataset_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
