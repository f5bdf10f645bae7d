"""Datasets to and from the platform: announced, sent, completed; or given up so that nothing half-sent stays.

An upload that ends in an error or with Ctrl-C is aborted on the platform. Only when the connection is lost
in the middle of an upload in parts, or this process is killed, is it left as it is: the same command then
goes on with the parts that have arrived. It knows them from its own record, and when it was killed before there was
one, from a platform of one's own, which hands back the open upload of the same user and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.datasets import DatasetReport, validate_dataset
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.services.context import Warn, log_warning
from osmosis_ai.services.datasets.catalog import IN_PROGRESS, READY

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.http_errors import PlatformError
    from osmosis_ai.api.transfer import BlobClient, NotedIntent, UnfinishedUpload
    from osmosis_ai.api.wire.base import LogEntry
    from osmosis_ai.api.wire.datasets import Dataset, UploadInstructions
    from osmosis_ai.services.log_following import LogFollower

Progress = Callable[[int], None]
OpenProgress = Callable[[int | None], AbstractContextManager[Progress]]
# What a store or a platform says of an upload that is no longer known there.
_GONE = frozenset({400, 403, 404, 409, 410})


def check_file(path: Path, *, progress: Progress | None = None) -> DatasetReport:
    """Check a file that is about to be uploaded.

    Args:
        path: the file.
        progress: takes the number of bytes read so far.

    Raises:
        OsmosisError: there is no such file, or the platform would not take it.
    """
    if not path.name.isascii():
        try:
            path.name.encode()
        except UnicodeEncodeError:
            raise OsmosisError(
                f"The file name '{path.name}' is not valid UTF-8.", hint="rename the file"
            ) from None
    report = validate_dataset(path, progress=progress)
    if not report.valid:
        problems = "".join(f"\n  - {error}" for error in report.errors)
        raise OsmosisError(f"File validation failed:{problems}", details=asdict(report))
    return report


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
    """Upload a checked file as the dataset of its name, and return the dataset.

    Args:
        client: the platform.
        path: the file; its stem is the dataset's name.
        report: what :func:`check_file` found.
        overwrite: replace the bytes of a dataset that has the name already.
        progress: takes the number of bytes that are there so far.
        warn: takes what the user should know, and its code.
        state_dir: where an upload in parts is remembered; the cache by default.
        blobs: connections to the store; otherwise opened and closed here.

    Raises:
        ConflictError: the name is taken and ``overwrite`` is not set.
        PlatformError: the platform or its store refused, or could not be reached.
        OsmosisError: the file changed meanwhile.
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
    """One file on its way to one name."""

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
        """Go on with an upload of the same bytes that broke off; None when there is none to go on with."""
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
        """Announce the upload and send everything."""
        dataset = self._create(overwrite=overwrite)
        if dataset.upload is None:
            self._abort(dataset.id)
            raise OsmosisError(
                "the platform took the dataset's name but did not say where its bytes go.",
                code="PLATFORM_ERROR",
            )
        return self._send(dataset.id, dataset.upload)

    def _can_go_on(self, unfinished: UnfinishedUpload) -> bool:
        """Tell whether the platform waits for parts, or may have been told already that all are there."""
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
        """Announce the upload, and return the dataset."""
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
        except BaseException as error:  # Ctrl-C as well: nothing half-sent stays on the platform
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
    """Warn if the platform stores another number of bytes than it was sent, unless it converted the file."""
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
    """Return the log of a dataset from here on; call it before an upload that replaces one.

    Raises:
        PlatformError: as every call; not when there is no such dataset yet.
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
    """Return the dataset when the platform has checked it.

    Args:
        client: the platform.
        dataset: as the upload returned it.
        log: of the dataset, from before the upload.
        pause: waits between two looks.
        tell: takes each line of the platform's log, as it comes.

    Raises:
        OsmosisError: the platform did not accept the dataset; the message says why.
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
    said = [dataset.upload_error] if dataset.upload_error else _errors(lines)
    problems = "".join(f"\n  - {message}" for message in said)
    kept = " The dataset keeps the content it had." if dataset.status == READY else ""
    raise OsmosisError(
        f"The platform did not accept the file.{kept}{problems}",
        details={"id": dataset.id, "status": dataset.status, "errors": said},
        hint=f"see logs with: osmosis dataset logs {dataset.file_name}",
    )


def _errors(entries: list[LogEntry]) -> list[str]:
    return [entry.message for entry in entries if entry.message and (entry.level or "").lower() == "error"]


def download_dataset(
    client: PlatformClient,
    name: str,
    *,
    output: str | None = None,
    overwrite: bool = False,
    progress: OpenProgress | None = None,
    blobs: BlobClient | None = None,
) -> tuple[Dataset, Path]:
    """Download a dataset, and return it with the file.

    Args:
        client: the platform.
        name: the dataset's name or id.
        output: a file; or a directory: one that exists, or any path that ends in a separator.
        overwrite: replace a file that is there.
        progress: opens a display for so many bytes (None: nobody knows); it takes those that are there.
        blobs: connections to the store; otherwise opened and closed here.

    Raises:
        ConflictError: the file is there already.
        PlatformError: no such dataset, or as every call.
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
    """Return ``dataset`` when its bytes can be had.

    Raises:
        OsmosisError: the platform is not done with it, or did not accept it.
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
    """Return a plain file name: a platform must not choose a directory."""
    stem = dataset.file_name or dataset.id
    named = f"{stem}.{dataset.file_format}" if dataset.file_format else stem
    for name in (suggested, named, dataset.id):
        plain = Path(name.replace("\\", "/")).name if name else ""
        if plain and plain not in (".", "..") and plain.isprintable():
            return plain
    return "dataset"


def _target(output: str | None, name: str) -> tuple[Path | None, Path]:
    """Return the directory, if one was meant, and the file."""
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


def _show_nothing(_size: int | None) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _done: None)
