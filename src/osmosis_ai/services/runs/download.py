"""Download a run's files into its directory: their types, valid names and local paths.

The platform's file list is untrusted: a path that is not in the contract, or that leads elsewhere through a
link or its name, counts as a failure and is never written. Files are written atomically. Files that are there
already are skipped, so repeating the command resumes a download.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.connections import SIGNING
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.eval_runs import (
    DownloadItem,
    DownloadUrls,
    DownloadUrlsRequest,
    ManifestFile,
    SampleManifest,
)
from osmosis_ai.api.models.runs import Run
from osmosis_ai.datasets.selection import file_digest
from osmosis_ai.errors import ErrorCode, NotFoundError, OsmosisError, UsageError
from osmosis_ai.evaluation.journal import replay
from osmosis_ai.files import expanded, require_directory
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.runs.lifecycle import WAITING, run_path
from osmosis_ai.workspace.layout import WorkspaceDirectory

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.transfer import BlobClient

ASK_FROM_BYTES = 100 << 20
PARALLEL = 8
URL_BATCH = 500


@dataclass(frozen=True)
class FileLayout:
    """The files of runs of one kind: name patterns by type, and names that the platform reserves.

    Types in ``by_name`` are excluded from `all`, because not every platform has them.
    """

    key: str
    path: str
    noun: str
    follow: str
    patterns: Mapping[str, re.Pattern[str]]
    not_begun: ErrorCode
    reserved: re.Pattern[str] | None = None
    by_name: tuple[str, ...] = ()


JOURNAL_TYPE, JOURNAL = "journal", "events.jsonl"
EVAL_FILES = FileLayout(
    key="eval_run",
    path="/samples",
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
    path="/outputs",
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


def parse_types(text: str, layout: FileLayout) -> tuple[str, ...]:
    """Parse ``metrics,trajectories`` or ``all`` (also ``all,journal``), keeping the order."""
    asked = list(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    unknown = [word for word in asked if word not in ("all", *layout.patterns)]
    if unknown:
        named = ", ".join(f"`{word}`" for word in unknown)
        raise UsageError(f"--type: unknown {named}; it takes {', '.join(layout.patterns)} or `all`.")
    if "all" not in asked:
        return tuple(asked)
    if set(asked) - {"all", *layout.by_name}:
        raise UsageError("--type takes either `all` or a list of types, not both.")
    usual = (name for name in layout.patterns if name not in layout.by_name)
    return (*usual, *(word for word in asked if word != "all"))


def check_rows(rows: str | None) -> str | None:
    """Return ``rows`` without spaces."""
    if rows is None:
        return None
    tight = re.sub(r"\s+", "", rows)
    if not _ROWS.fullmatch(tight):
        raise UsageError(f"--rows takes row numbers and ranges such as 3,7,10-20, got {rows!r}.")
    for part in tight.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise UsageError(f"--rows: {part} ends before it begins.")
    return tight


def run_directory(run: Run, workspace: WorkspaceDirectory, output: Path | None, layout: FileLayout) -> Path:
    """Return the directory for a run's files: ``output``, or a subdirectory of ``.osmosis``.

    Names are normalized for all file systems. The run's id is appended if two runs could share a directory,
    or if a local evaluation uses it.
    """
    if output is not None:
        return expanded(output).absolute()
    home = workspace.evals_dir if layout.key == "eval_run" else workspace.benchmarks_dir
    run_id = safe_name(run.id)
    if not run.name:
        return home / run_id
    folded = safe_name(run.name)
    place = home / folded
    unsure = folded != run.name or folded != folded.lower() or _WINDOWS_NAMES.fullmatch(folded)
    if unsure or (place / "manifest.json").exists():
        return home / f"{folded}--{run_id}"
    return place


def path_problem(path: str, types: Sequence[str], directory: Path, layout: FileLayout) -> str | None:
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


class TransferCancelled(Exception):
    """The command is ending, so the current transfer is abandoned."""


class Transfers:
    """Threads that transfer files, and the bytes done so far; an error abandons the transfers in progress."""

    def __init__(self, threads: int, name: str, progress: Callable[[int], None] | None) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._progress = progress
        self._arrived: dict[str, int] = {}
        self._total = 0
        self._counting = threading.Lock()
        self._cancelled = threading.Event()

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._cancelled.set()
            self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool.shutdown()

    def note(self, path: str, done: int) -> None:
        if self._cancelled.is_set():
            raise TransferCancelled
        with self._counting:
            change = done - self._arrived.get(path, 0)
            self._total += change
            self._arrived[path] = done
            if change and self._progress is not None:
                self._progress(self._total)


def safe_name(name: str) -> str:
    """Return ``name`` as one path segment that is safe on all file systems."""
    folded = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    folded = re.sub(r"^[.]+|[. ]+$", "_", folded)
    if len(folded) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        folded = f"{folded[:_LONGEST_NAME]}-{digest}"
    return folded or "_"


@dataclass(frozen=True)
class FailedFile:
    path: str
    error: str


@dataclass(frozen=True)
class DownloadPlan:
    """Files to fetch, files that exist already, and listed files that must not be written."""

    run: Run
    types: tuple[str, ...]
    rows: str | None
    directory: Path
    workspace: WorkspaceDirectory
    pending: tuple[ManifestFile, ...]
    skipped: tuple[ManifestFile, ...]
    failures: tuple[FailedFile, ...]
    totals: dict[str, Any] = field(default_factory=dict)
    layout: FileLayout = EVAL_FILES

    @property
    def pending_bytes(self) -> int:
        return sum(file.size for file in self.pending)

    @property
    def types_without_rows(self) -> tuple[str, ...]:
        """The requested types with a file per sample, if rows were requested and none of them has such a file."""
        kinds = tuple(kind for kind in self.types if kind in ("trajectories", "artifacts"))
        listed = [file.path for file in (*self.pending, *self.skipped)] + [
            each.path for each in self.failures
        ]
        has_files = any(path.startswith(tuple(f"{kind}/" for kind in kinds)) for path in listed)
        return () if self.rows is None or has_files else kinds


@dataclass(frozen=True)
class DownloadOutcome:
    plan: DownloadPlan
    fetched: tuple[ManifestFile, ...]
    failures: tuple[FailedFile, ...]

    def resource(self) -> dict[str, Any]:
        """Return the JSON without the command's own fields; ``status`` is the run's."""
        plan = self.plan
        listed = [*plan.pending, *plan.skipped]
        breakdown = {}
        for name in plan.types:
            sizes = [file.size for file in listed if plan.layout.patterns[name].fullmatch(file.path)]
            breakdown[name] = {"files": len(sizes), "bytes": sum(sizes)}
        resource: dict[str, Any] = {
            plan.layout.key: {"id": plan.run.id, "name": plan.run.name},
            "status": plan.run.status,
            "selected_types": list(plan.types),
            "files_downloaded": len(self.fetched),
            "files_skipped": len(plan.skipped),
            "files_failed": [{"path": failed.path, "error": failed.error} for failed in self.failures],
            "bytes_downloaded": sum(file.size for file in self.fetched),
            "total_files": len(listed) + len(plan.failures),
            "total_bytes": sum(file.size for file in listed),
            "breakdown": breakdown,
            "manifest_totals": plan.totals,
            "output_path": str(plan.directory),
        }
        return resource if plan.rows is None else {**resource, "rows": plan.rows}


def plan_download(
    client: PlatformClient,
    run: Run,
    *,
    types: Sequence[str],
    workspace: WorkspaceDirectory,
    layout: FileLayout = EVAL_FILES,
    rows: str | None = None,
    output: Path | None = None,
    overwrite: bool = False,
) -> DownloadPlan:
    """List a run's files and decide which to fetch; writes nothing."""
    if run.status in WAITING and not getattr(run, "revision", 0):
        name = run.name or run.id
        raise OsmosisError(
            f"{layout.noun} run '{name}' has not started yet: there is nothing to download.",
            code=layout.not_begun,
            details={"id": run.id, "status": run.status},
            hint=f"follow it with: {layout.follow} {name}",
        )
    if JOURNAL_TYPE in types:
        require_offered(client, Capability.EVAL_JOURNALS)
    manifest = _manifest(client, run, types, rows, layout)
    directory = run_directory(run, workspace, output, layout)
    require_directory(directory)
    pending, skipped, failures = [], [], []
    seen: set[str] = set()
    for file in manifest.files:
        problem = path_problem(file.path, types, directory, layout)
        if problem is None and file.path in seen:
            problem = "is listed twice"
        seen.add(file.path)
        shown = file.path if len(file.path) <= 200 else f"{file.path[:200]}…"
        if problem is not None:
            failures.append(FailedFile(shown, problem))
        elif not overwrite and _is_there(directory / file.path, file) and not _damage(directory, file.path):
            skipped.append(file)
        else:
            pending.append(file)
    if failures and not pending and not skipped:
        raise OsmosisError(
            f"None of the {len(failures)} files of '{run.name or run.id}' can be written: "
            f"{failures[0].path} {failures[0].error}.",
            code="PLATFORM_ERROR",
            details={"files_failed": [{"path": failed.path, "error": failed.error} for failed in failures]},
        )
    return DownloadPlan(
        run=run,
        types=tuple(types),
        rows=rows,
        directory=directory,
        workspace=workspace,
        pending=tuple(pending),
        skipped=tuple(skipped),
        failures=tuple(failures),
        totals=manifest.totals,
        layout=layout,
    )


def run_download(
    client: PlatformClient, plan: DownloadPlan, *, progress: Callable[[int], None] | None = None
) -> DownloadOutcome:
    """Fetch pending files, eight at a time; a failed file does not stop the others."""
    from osmosis_ai.api.transfer import BlobClient

    if not plan.pending:
        return DownloadOutcome(plan, (), plan.failures)
    if plan.directory.is_relative_to(plan.workspace.state_dir):
        plan.workspace.create_state_dir()
    with BlobClient() as blobs, Transfers(PARALLEL, "osmosis-download", progress) as transfers:
        return _Fetch(client, plan, blobs, transfers).run()


def save_metrics(
    client: PlatformClient, run: Run, workspace: WorkspaceDirectory, output: Path | None
) -> tuple[Path | None, str | None]:
    """Fetch a run's ``metrics.json`` into the run's directory."""
    try:
        plan = plan_download(
            client, run, types=("metrics",), workspace=workspace, output=output, overwrite=True
        )
        if [file.path for file in plan.pending] != ["metrics.json"]:
            return None, f"The platform has no metrics.json of '{run.name or run.id}'."
        outcome = run_download(client, plan)
    except OsmosisError as error:
        return None, f"The metrics could not be saved: {error.message}"
    if outcome.failures:
        return None, f"The metrics could not be saved: {outcome.failures[0].error}"
    return plan.directory / "metrics.json", None


class _Fetch:
    def __init__(
        self, client: PlatformClient, plan: DownloadPlan, blobs: BlobClient, transfers: Transfers
    ) -> None:
        self._client = client
        self._plan = plan
        self._blobs = blobs
        self._note, self._pool = transfers.note, transfers.pool

    def run(self) -> DownloadOutcome:
        failures = {failed.path: failed for failed in self._plan.failures}
        fetched = []
        for file, error in self._results():
            if error is None:
                fetched.append(file)
            else:
                failures[file.path] = FailedFile(file.path, error)
        order = {file.path: index for index, file in enumerate(self._plan.pending)}
        fetched.sort(key=lambda file: order[file.path])
        return DownloadOutcome(self._plan, tuple(fetched), tuple(failures.values()))

    def _results(self) -> Iterator[tuple[ManifestFile, str | None]]:
        # URLs expire within minutes, so a batch is signed when the previous one is almost done.
        running: dict[Future[str | None], ManifestFile] = {}
        for start in range(0, len(self._plan.pending), URL_BATCH):
            batch = self._plan.pending[start : start + URL_BATCH]
            urls = self._sign(batch)
            for file in batch:
                url = urls.get((file.token, file.path))
                if url is None:
                    yield file, "the platform gave no URL for it"
                else:
                    running[self._pool.submit(self._fetch, file, url)] = file
            while len(running) > PARALLEL:
                yield from _finished(running)
        while running:
            yield from _finished(running)

    def _sign(self, files: Sequence[ManifestFile]) -> dict[tuple[str | None, str], str]:
        wanted = [
            DownloadItem.model_validate({"path": file.path, **({"token": file.token} if file.token else {})})
            for file in files
        ]
        path = f"{_files_path(self._plan.run, self._plan.layout)}/download-urls"
        request = DownloadUrlsRequest(items=wanted)
        given = self._client.post(path, request, model=DownloadUrls, retry=SIGNING).items
        exact = {(item.token, item.path): item.url for item in given if item.url}
        by_path = {item.path: item.url for item in given if item.url}
        found = {}
        for file in files:
            url = exact.get((file.token, file.path)) or by_path.get(file.path)
            if url:
                found[(file.token, file.path)] = url
        return found

    def _fetch(self, file: ManifestFile, url: str) -> str | None:
        from osmosis_ai.api.transfer import download

        target = self._plan.directory / file.path

        def refresh() -> str:
            new = self._sign([file]).get((file.token, file.path))
            if new is None:
                raise OsmosisError("the platform gave no new URL for it", code="PLATFORM_ERROR")
            return new

        try:
            # Check again: a link may have been created since the plan.
            problem = path_problem(file.path, self._plan.types, self._plan.directory, self._plan.layout)
            if problem is not None:
                return problem
            download(
                url,
                target,
                expected_size=file.size,
                expected_sha256=file.sha256,
                progress=lambda done: self._note(file.path, done),
                refresh_url=refresh,
                client=self._blobs,
            )
        except OsmosisError as error:
            self._note(file.path, 0)
            return error.message
        damage = _damage(self._plan.directory, file.path)
        if damage is not None:
            target.unlink()
            self._note(file.path, 0)
            return damage
        self._note(file.path, file.size)
        return None


def _finished(running: dict[Future[str | None], ManifestFile]) -> Iterator[tuple[ManifestFile, str | None]]:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), future.result()


def _files_path(run: Run, layout: FileLayout) -> str:
    return run_path("eval" if layout is EVAL_FILES else "benchmark", run.id, layout.path)


def _manifest(
    client: PlatformClient, run: Run, types: Sequence[str], rows: str | None, layout: FileLayout
) -> SampleManifest:
    try:
        return client.get(
            f"{_files_path(run, layout)}/manifest",
            model=SampleManifest,
            params={"types": ",".join(types), "rows": rows},
        )
    except PlatformError as error:
        if error.status == 404:
            raise NotFoundError(
                f"The platform has no files of '{run.name or run.id}': the run was deleted, or the platform is "
                "too old to offer downloads.",
                details=error.details,
            ) from None
        raise


def _damage(directory: Path, path: str) -> str | None:
    """Return what is wrong with a downloaded journal; other files cannot be checked."""
    if path != JOURNAL:
        return None
    try:
        for _ in replay(directory / path):
            pass
    except (OsmosisError, OSError) as error:
        return f"is damaged: {error}"
    return None


def _is_there(path: Path, file: ManifestFile) -> bool:
    try:
        if not path.is_file() or path.stat().st_size != file.size:
            return False
        # A retry may replace a file by one of the same size.
        return file.sha256 is None or file_digest(path) == file.sha256.lower()
    except OSError:
        return False
