"""A run of this machine to the platform: announced, its files sent, made a run there; the same command goes on.

What has arrived stays on the platform for a day, so nothing is given up when the connection is lost, at Ctrl-C or at
a kill: uploading the run again sends what is missing, and of a run that is there already nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.eval_runs.upload_contents import UploadableRun, UploadFile, read_uploadable

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.transfer import BlobClient
    from osmosis_ai.api.wire.eval_imports import EvalImportSession, EvalImportStart, ImportUpload

PARALLEL = 4
Progress = Callable[[int], None]
OpenProgress = Callable[[UploadableRun], Progress]


@dataclass(frozen=True)
class UploadedRun:
    """A run, and what it is called on the platform.

    Attributes:
        sent: how many files this upload has sent.
    """

    run: UploadableRun
    session: EvalImportSession
    sent: int

    @property
    def name(self) -> str:
        """Its name on the platform."""
        return self.session.eval_run_name or self.run.manifest.run_name

    def resource(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        session = self.session
        return {
            "session_id": session.session_id,
            "local_run_id": self.run.manifest.local_run_id,
            "local_run_path": str(self.run.directory),
            "eval_run_id": session.eval_run_id,
            "eval_run_name": session.eval_run_name,
            "status": session.status,
            "expected_files": session.expected_files,
            "uploaded_files": session.uploaded_files,
            "platform_url": session.platform_url,
        }


def require_uploads(client: PlatformClient) -> None:
    """Refuse a platform that takes no runs of other machines.

    Raises:
        PlatformError: it does not, or cannot be asked.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services.capabilities import require_offered

    require_offered(client, Capability.EVAL_IMPORTS)


def upload_run(
    client: PlatformClient,
    directory: Path,
    *,
    progress: OpenProgress | None = None,
    blobs: BlobClient | None = None,
) -> UploadedRun:
    """Upload a complete run while nobody else works on it.

    Args:
        client: the platform.
        directory: the run's.
        progress: called when the run has been read; what it returns takes the number of bytes that are there.
        blobs: connections to the store; otherwise opened and closed here.

    Raises:
        RunLockedError: another process works on the run.
        PlatformError: the platform refuses it, or cannot be reached; what has arrived stays.
        OsmosisError: the run is not complete, is damaged, or changes meanwhile.
    """
    from osmosis_ai.api.transfer import BlobClient
    from osmosis_ai.evaluation.run_lock import RunLock

    require_uploads(client)
    with ExitStack() as held:
        try:
            held.enter_context(RunLock(directory.parent, directory.name))
        except OSError as error:
            raise OsmosisError(
                f"the run `{directory}` cannot be locked: {error.strerror}.",
                hint="copy it to where you may write",
            ) from None
        run = read_uploadable(directory)
        store = blobs if blobs is not None else held.enter_context(BlobClient())
        return _Upload(client, run, store, progress(run) if progress is not None else None).run()


class _Cancelled(Exception):
    """The command is ending; a file under way is given up."""


class _Upload:
    """One run on its way."""

    def __init__(
        self, client: PlatformClient, run: UploadableRun, blobs: BlobClient, progress: Progress | None
    ) -> None:
        self._imports = client.eval_imports
        self._run = run
        self._files = {file.path: file for file in run.files}
        self._blobs = blobs
        self._progress = progress
        self._counting = threading.Lock()
        self._arrived: dict[str, int] = {}
        self._total = 0
        self._cancelled = threading.Event()

    def run(self) -> UploadedRun:
        announced = self._run.announcement()
        session = self._imports.start(announced)
        _require_same(session, announced)
        pending = [file.path for file in session.files if file.state == "pending"]
        try:
            if session.status == "uploading":
                self._note_there(session)
                self._send(session.session_id, pending)
            ended = self._imports.finalize(session.session_id)
        except OsmosisError as error:
            error.hint = (
                error.hint or "what has arrived is kept for a day: run the same command again to go on"
            )
            raise
        _require_same(ended, announced)
        if ended.status != "finalized" or not (ended.eval_run_id and ended.eval_run_name):
            raise _nonsense("it does not say which run came of it")
        return UploadedRun(self._run, ended, len(pending))

    def _note_there(self, session: EvalImportSession) -> None:
        for file in session.files:
            if file.state == "uploaded":
                self._note(file.path, file.size)

    def _send(self, session_id: str, pending: Sequence[str]) -> None:
        from osmosis_ai.api.wire.eval_imports import LARGEST_BATCH

        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="osmosis-upload") as pool:
            try:
                for start in range(0, len(pending), LARGEST_BATCH):
                    batch = pending[start : start + LARGEST_BATCH]
                    uploads = self._imports.uploads(session_id, batch)
                    if not {each.path for each in uploads} <= set(batch):
                        raise _nonsense("it asks for files that were not offered")
                    for done in [pool.submit(self._send_one, session_id, each) for each in uploads]:
                        done.result()
            except BaseException:
                self._cancelled.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _send_one(self, session_id: str, upload: ImportUpload) -> None:
        from osmosis_ai.api.transfer import upload_file

        file: UploadFile = self._files[upload.path]
        file.require_unchanged()
        sent = upload_file(
            file.file,
            upload.upload,
            progress=lambda done: self._note(file.path, done),
            client=self._blobs,
        )
        self._imports.complete(session_id, file.path, sent.parts)
        self._note(file.path, file.size)

    def _note(self, path: str, done: int) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
        with self._counting:
            self._total += done - self._arrived.get(path, 0)
            self._arrived[path] = done
            if self._progress is not None:
                self._progress(self._total)


def _require_same(session: EvalImportSession, announced: EvalImportStart) -> None:
    """Check that the platform speaks of the files that were announced, each once."""
    theirs = sorted((file.path, file.size, file.sha256) for file in session.files)
    if theirs != sorted((file.path, file.size, file.sha256) for file in announced.files):
        raise _nonsense("its list of files is another one")


def _nonsense(what: str) -> OsmosisError:
    return OsmosisError(f"the platform's reply to the upload makes no sense: {what}.", code="PLATFORM_ERROR")
