"""Datasets on the platform: list, preview, upload, download, and cache for evaluations.

An upload that fails or is interrupted with Ctrl-C is aborted on the platform. If the connection is lost during an
upload in parts, or this process is killed, the same command resumes it with the parts that have arrived. It finds
them in its own record or, without one, asks a self-hosted platform for the open upload of the same user and bytes.

The cache, ``<cache>/datasets/<id>/``, holds ``metadata.json`` and ``<sha256>.<extension>``. The digest is checked
before every use, and the platform is asked each time whether the dataset has changed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.services.context import Warn, log_warning

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.api.models.base import LogEntry, LogPage
    from osmosis_ai.api.models.datasets import Dataset, UploadInstructions
    from osmosis_ai.api.transfer import BlobClient, NotedIntent, UnfinishedUpload
    from osmosis_ai.datasets import DatasetReport
    from osmosis_ai.services.listing import Listing
    from osmosis_ai.services.log_following import LogFollower

Progress = Callable[[int], None]
OpenProgress = Callable[[int | None], AbstractContextManager[Progress]]
OpenNamedProgress = Callable[[str, int | None], AbstractContextManager[Progress]]
"""Opens a display for a download, given the dataset's name and size in bytes."""
IN_PROGRESS = frozenset({"pending", "uploading", "processing"})
READY = "uploaded"
# Statuses of a store or platform for an upload that it no longer knows.
_GONE = frozenset({400, 403, 404, 409, 410})
_EXTENSIONS = ("jsonl", "csv", "json", "parquet")
_LOCK_TIMEOUT_S = 3600.0
_KEPT_S = 7 * 86400.0
_KEYS = (
    "id",
    "file_name",
    "file_size",
    "status",
    "file_format",
    "original_file_format",
    "row_count",
    "original_file_size",
    "creator_name",
    "created_at",
    "updated_at",
)


def list_datasets(client: PlatformClient, *, limit: int, everything: bool) -> Listing[Dataset]:
    """Return the workspace's datasets, newest first; arguments as in ``fetch_listing``."""
    from osmosis_ai.services.listing import fetch_listing

    return fetch_listing(
        lambda size, offset: client.datasets.list(limit=size, offset=offset),
        lambda page: page.datasets,
        limit=limit,
        everything=everything,
    )


@dataclass(frozen=True)
class DatasetPreview:
    """The first rows of a dataset, as far as the platform keeps them.

    Attributes:
        available: whether the platform has a preview.
        message: why there is no preview.
    """

    dataset: Dataset
    rows: tuple[Any, ...]
    requested_rows: int
    available: bool
    message: str | None = None

    def data(self) -> dict[str, Any]:
        shown = {
            "dataset": dataset_item(self.dataset),
            "rows": list(self.rows),
            "requested_rows": self.requested_rows,
            "returned_rows": len(self.rows),
            "available": self.available,
        }
        return shown if self.message is None else {**shown, "message": self.message}


def preview_dataset(client: PlatformClient, name: str, *, rows: int) -> DatasetPreview:
    """Return up to ``rows`` rows of a dataset. A missing preview is not an error.

    Raises:
        PlatformError: the dataset does not exist, or the request failed.
    """
    dataset = client.datasets.get(name)
    found = dataset.data_preview
    if isinstance(found, Mapping) and isinstance(found.get("rows"), list):
        found = found["rows"]
    if isinstance(found, list):
        return DatasetPreview(dataset, tuple(found[:rows]), rows, available=True)
    message = {
        READY: "The platform keeps no preview of this dataset.",
        "error": f"The platform did not accept this dataset. See logs with: osmosis dataset logs {name}",
        "cancelled": "The upload of this dataset was cancelled.",
    }.get(
        dataset.status, "The platform is still working on this dataset; there is a preview when it is done."
    )
    return DatasetPreview(dataset, (), rows, available=False, message=message)


def dataset_logs(client: PlatformClient, name: str, *, limit: int, cursor: str | None) -> LogPage:
    """Return a page of a dataset's validation log, oldest first."""
    return client.datasets.logs(name, limit=limit, cursor=cursor)


def dataset_item(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as the JSON output shows it: every key, and ``platform_url`` if it has a page."""
    known = dataset.model_dump(mode="json", include={*_KEYS, "platform_url"})
    item = {key: known[key] for key in _KEYS}
    return {**item, "platform_url": known["platform_url"]} if known["platform_url"] else item


def upload_dataset(
    client: PlatformClient,
    path: Path,
    report: DatasetReport,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    warn: Warn = log_warning,
    state_dir: Path | None = None,
    blobs: BlobClient | None = None,
) -> Dataset:
    """Upload a checked file as the dataset named after it.

    Args:
        path: the file; its stem is the dataset's name.
        report: the result of :func:`~osmosis_ai.services.dataset_files.check_file`.
        overwrite: replace an existing dataset of this name.
        progress: receives the number of bytes stored so far.
        warn: receives warnings and their codes.
        state_dir: where an upload in parts is recorded (default: the cache).
        blobs: connections to the store; opened and closed here by default.

    Raises:
        ConflictError: the name is taken and ``overwrite`` is not set.
        PlatformError: the platform or its store refused, or could not be reached.
        OsmosisError: the file changed during the upload.
    """
    if state_dir is None:
        from osmosis_ai.files import cache_dir

        state_dir = cache_dir() / "uploads"
    from osmosis_ai.api.transfer import note_intent
    from osmosis_ai.datasets import file_digest

    scope = f"{client.platform_url} {client.git_identity} {path.stem}"
    noted = note_intent(state_dir, digest=file_digest(path), scope=scope)
    sender = _Sender(client, path, report, progress, warn, state_dir, scope, noted, blobs)
    return sender.resume() or sender.start(overwrite=overwrite)


@dataclass(frozen=True)
class _Sender:
    """Uploads one file as one dataset."""

    client: PlatformClient
    path: Path
    report: DatasetReport
    progress: Progress | None
    warn: Warn
    state_dir: Path
    scope: str
    noted: NotedIntent
    blobs: BlobClient | None

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def digest(self) -> str:
        return self.noted.intent.sha256

    def resume(self) -> Dataset | None:
        """Resume an interrupted upload of the same bytes; None if there is no such upload."""
        from osmosis_ai.api.http_errors import PlatformError
        from osmosis_ai.api.transfer import find_unfinished_upload

        unfinished = find_unfinished_upload(self.state_dir, digest=self.digest, scope=self.scope)
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
        dataset = self._create(overwrite=overwrite)
        if dataset.upload is None:
            self._abort(dataset.id)
            raise OsmosisError(
                "the platform took the dataset's name but did not say where its bytes go.",
                code="PLATFORM_ERROR",
            )
        return self._send(dataset.id, dataset.upload)

    def _can_go_on(self, unfinished: UnfinishedUpload) -> bool:
        """Tell whether the platform waits for parts, or may have received the call that completes the upload."""
        dataset = self.client.datasets.get(unfinished.dataset_id)
        if dataset.id != unfinished.dataset_id:
            return False
        was_completed = (
            unfinished.is_acknowledged
            and dataset.status in (*IN_PROGRESS, READY)
            and dataset.file_size == self.report.file_size
        )
        return was_completed or dataset.status in ("pending", "uploading")

    def _create(self, *, overwrite: bool) -> Dataset:
        from osmosis_ai.api.http_errors import PlatformError

        size, extension = self.report.file_size, self.report.extension
        try:
            return self.client.datasets.create(
                self.name, size_bytes=size, extension=extension, intent=self.noted.intent
            )
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
        return self.client.datasets.create(
            self.name,
            size_bytes=size,
            extension=extension,
            overwrite_id=existing,
            intent=self.noted.intent,
        )

    def _send(self, dataset_id: str, instructions: UploadInstructions) -> Dataset:
        from osmosis_ai.api.http_errors import PlatformError
        from osmosis_ai.api.transfer import upload_file

        try:
            upload = upload_file(
                self.path,
                instructions,
                progress=self.progress,
                state_dir=self.state_dir,
                dataset_id=dataset_id,
                digest=self.digest,
                scope=self.scope,
                client=self.blobs,
            )
            dataset = self.client.datasets.complete(
                dataset_id, extension=self.report.extension, parts=upload.parts
            )
        except BaseException as error:  # Ctrl-C too: no partial upload stays on the platform
            if (
                isinstance(error, PlatformError)
                and error.status is None
                and instructions.method == "multipart"
            ):
                raise _broken_off(error) from None
            self._abort(dataset_id)
            self.noted.forget()
            raise
        upload.forget()
        self.noted.forget()
        return dataset

    def _abort(self, dataset_id: str) -> None:
        try:
            self.client.datasets.abort(dataset_id)
        except OsmosisError as error:
            self.warn(
                f"the upload could not be aborted on the platform ({error.message}); "
                f"`{self.name}` may stay listed as uploading for a while.",
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


def _broken_off(error: PlatformError) -> PlatformError:
    from osmosis_ai.api.http_errors import PlatformError

    return PlatformError(
        error.message,
        code=error.code,
        details=error.details,
        hint="the parts that have arrived are kept for a while: run the same command again to go on",
    )


def follow_check(client: PlatformClient, name: str) -> LogFollower:
    """Return a follower of a dataset's log from now on. Call it before an upload that replaces the dataset.

    Raises:
        PlatformError: the request failed. A dataset that does not exist yet is not an error.
    """
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.services.log_following import LogFollower

    log = LogFollower(lambda size, cursor: client.datasets.logs(name, limit=size, cursor=cursor))
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
        dataset: as the upload returned it.
        log: the dataset's log, from before the upload.
        pause: waits between two polls.
        tell: receives each line of the platform's log as it arrives.

    Raises:
        OsmosisError: the platform rejected the dataset; the message says why.
    """
    lines: list[LogEntry] = []
    while True:
        dataset = client.datasets.get(dataset.id)
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
    kept = " The dataset keeps the content it had." if dataset.status == READY else ""
    raise OsmosisError(
        f"The platform did not accept the file.{kept}{problems}",
        details={"id": dataset.id, "status": dataset.status, "errors": said},
        hint=f"see logs with: osmosis dataset logs {dataset.file_name}",
    )


def download_dataset(
    client: PlatformClient,
    name: str,
    *,
    output: str | None = None,
    overwrite: bool = False,
    progress: OpenProgress | None = None,
    blobs: BlobClient | None = None,
) -> tuple[Dataset, Path]:
    """Download a dataset and return it with the file.

    Args:
        name: the dataset's name or id.
        output: a file, an existing directory, or any path that ends in a separator.
        overwrite: replace an existing file.
        progress: opens a progress display for a number of bytes (None if unknown); it receives the bytes so far.
        blobs: connections to the store; opened and closed here by default.

    Raises:
        ConflictError: the file exists.
        PlatformError: the dataset does not exist, or the request failed.
        OsmosisError: the dataset is not ready, or the disk is full.
    """
    from osmosis_ai.api.transfer import download

    dataset = require_ready(client.datasets.get(name))
    source = client.datasets.download(dataset.id)
    directory, target = _target(output, _file_name(dataset, source.file_name))
    _refuse_existing(target, overwrite=overwrite)
    with (progress or _show_nothing)(dataset.file_size or None) as shown:
        done = download(
            source.presigned_url,
            target,
            expected_size=dataset.file_size or None,
            progress=shown,
            refresh_url=lambda: client.datasets.download(dataset.id).presigned_url,
            client=blobs,
        )
    if directory is not None and done.suggested_name and done.suggested_name != target.name:
        renamed = directory / done.suggested_name
        if overwrite or not renamed.exists():
            return dataset, target.replace(renamed)
    return dataset, target


def require_ready(dataset: Dataset) -> Dataset:
    """Return ``dataset`` if it can be downloaded.

    Raises:
        OsmosisError: the platform is still processing the dataset, or rejected it.
    """
    if dataset.status == READY:
        return dataset
    name = dataset.file_name or dataset.id
    if dataset.status in IN_PROGRESS:
        raise OsmosisError(
            f"Dataset `{name}` is still being processed (status `{dataset.status}`).",
            details={"id": dataset.id, "status": dataset.status},
            hint=f"see how far it is with: osmosis dataset info {name}",
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


def _refuse_existing(target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        raise ConflictError(f"{target} is a directory.", hint="give the name of a file with `--output`")
    if target.exists() and not overwrite:
        raise ConflictError(
            f"{target} already exists.", hint="replace it with `--overwrite`, or name another with `--output`"
        )


@dataclass(frozen=True)
class CachedDataset:
    """A platform dataset as a local file.

    Attributes:
        source: whether it came from the cache or was downloaded.
    """

    path: Path
    sha256: str
    source: Literal["cache", "download"]


def fetch_dataset(
    client: PlatformClient,
    name: str,
    *,
    cache: Path | None = None,
    progress: OpenNamedProgress | None = None,
    blobs: BlobClient | None = None,
) -> CachedDataset:
    """Return the current bytes of a platform dataset as a file in the cache.

    Args:
        name: the dataset's name or id.
        cache: the directory of cached datasets (default: the user's cache).
        progress: opens a progress display if a download is needed.
        blobs: connections to the store; opened and closed here by default.

    Raises:
        PlatformError: the dataset does not exist, or the request failed.
        OsmosisError: the dataset is not ready, its format is unknown, or the disk is full.
    """
    import filelock

    from osmosis_ai.files import cache_dir

    dataset = require_ready(client.datasets.get(name))
    extension = _extension(dataset)
    directory = (cache or cache_dir() / "datasets") / _segment(dataset.id)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with filelock.FileLock(directory / ".lock", timeout=_LOCK_TIMEOUT_S):
        found = _cached(directory, dataset, extension, client.platform_url)
        if found is not None:
            return found
        return _download_to_cache(client, dataset, directory, extension, progress or _show_nothing, blobs)


def _cached(directory: Path, dataset: Dataset, extension: str, platform_url: str) -> CachedDataset | None:
    from osmosis_ai.datasets import file_digest

    try:
        known: Any = json.loads((directory / "metadata.json").read_bytes())
        sha256 = str(known["sha256"])
        path = directory / f"{sha256}.{extension}"
        if dataset.updated_at is None or known["version"] != _version(dataset, platform_url):
            return None
        if file_digest(path) != sha256:
            return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, OsmosisError):
        return None
    return CachedDataset(path, sha256, "cache")


def _download_to_cache(
    client: PlatformClient,
    dataset: Dataset,
    directory: Path,
    extension: str,
    progress: OpenNamedProgress,
    blobs: BlobClient | None,
) -> CachedDataset:
    from osmosis_ai.api.transfer import download
    from osmosis_ai.datasets import file_digest
    from osmosis_ai.files import write_json

    incoming = directory / "incoming"
    with progress(dataset.file_name or dataset.id, dataset.file_size or None) as shown:
        download(
            client.datasets.download(dataset.id).presigned_url,
            incoming,
            expected_size=dataset.file_size or None,
            progress=shown,
            refresh_url=lambda: client.datasets.download(dataset.id).presigned_url,
            client=blobs,
        )
    sha256 = file_digest(incoming)
    path = incoming.replace(directory / f"{sha256}.{extension}")
    write_json(
        directory / "metadata.json", {"version": _version(dataset, client.platform_url), "sha256": sha256}
    )
    _remove_old(directory, path)
    return CachedDataset(path, sha256, "download")


def _remove_old(directory: Path, current: Path) -> None:
    """Remove earlier versions after a delay, because a running evaluation may be reading them."""
    for path in directory.glob("*.*"):
        is_data = path.suffix[1:] in _EXTENSIONS and len(path.stem) == 64
        if is_data and path != current and time.time() - path.stat().st_mtime > _KEPT_S:
            path.unlink(missing_ok=True)


def _version(dataset: Dataset, platform_url: str) -> dict[str, Any]:
    """Return the fields that change when the bytes do."""
    known = dataset.model_dump(mode="json")
    return {
        "platform_url": platform_url,
        **{key: known[key] for key in ("id", "file_name", "file_size", "file_format", "updated_at")},
    }


def _extension(dataset: Dataset) -> str:
    for named in (dataset.file_format, Path(dataset.file_name or "").suffix[1:]):
        if named and named.lower() in _EXTENSIONS:
            return named.lower()
    raise OsmosisError(
        f"Dataset `{dataset.file_name or dataset.id}` has the format `{dataset.file_format}`, which cannot be read here.",
        hint="upgrade Osmosis, or pass `--dataset-file FILE`",
    )


def _segment(dataset_id: str) -> str:
    """Return an id as one directory name; an id that is not a valid name is replaced by its digest."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,96}", dataset_id):
        return dataset_id
    import hashlib

    return hashlib.sha256(dataset_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _show_nothing(*_shown: str | int | None) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _done: None)
