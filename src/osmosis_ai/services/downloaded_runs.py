"""Convert a downloaded run to the layout of a local run, so that the same code can read it.

Invariant: the download is never changed; missing files are derived in a temporary directory.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from osmosis_ai.api.http_errors import UnreadableReply
from osmosis_ai.api.models.eval_runs import EvalSample
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.conversation import LARGEST_CONVERSATION_BYTES
from osmosis_ai.evaluation.export import ExportedRun, read_run
from osmosis_ai.evaluation.lenient_json import as_table, as_text
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.metrics import Estimates
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.files import cache_dir, write_json
from osmosis_ai.services.runs.lifecycle import get_evaluation, lists_samples, platform_samples
from osmosis_ai.ui.numbers import amount
from osmosis_ai.workspace.layout import WorkspaceDirectory

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient

_NEEDED = {
    "metrics": ("metrics.json", "the numbers"),
    "trajectories": ("summary.jsonl", "the list of attempts"),
    "logs": ("logs.txt", "the log"),
}
"""Required file and its description, by the file type that downloads it."""


_PLATFORM_FIELDS = (
    *("source_row_index", "row_digest", "tokens", "cost_usd", "duration_ms", "model_latency_ms"),
    *("boundary", "category", "finish_reasons"),
)
_PLATFORM_TEXTS = ("error", "input", "output", "notes", "parts")
"""Sample fields of ``TerminalRecord`` that the platform knows but its sample list may lack."""


class NoSampleListedError(OsmosisError):
    """A downloaded run's list of samples has no readable sample."""


def is_downloaded_run(directory: Path) -> bool:
    """Whether a directory looks like a default `osmosis eval download`."""
    found = RunDirectory(directory)
    return not found.manifest.exists() and found.metrics.is_file() and found.summary.is_file()


def is_download(directory: Path) -> bool:
    """Whether a directory has any file of a downloaded run."""
    found = RunDirectory(directory)
    if found.manifest.exists():
        return False
    files = (found.metrics, found.summary, found.log, found.events)
    return any(file.is_file() for file in files) or any(
        True for folder in (found.trajectories, found.artifacts) for _ in folder.glob("row_*_run_*")
    )


def require_types(directory: Path, *kinds: str) -> None:
    """Check that a downloaded run has the files that a command needs; local runs always pass."""
    if not is_download(directory):
        return
    missing = [kind for kind in kinds if not (directory / _NEEDED[kind][0]).is_file()]
    if missing:
        named = " and ".join(f"{what} ({file})" for file, what in map(_NEEDED.__getitem__, missing))
        raise NotFoundError(
            f"The run downloaded to '{directory}' lacks {named}.", hint=fetching(directory, ",".join(missing))
        )


def fetching(directory: Path, types: str) -> str:
    """Return the command that downloads more file types of a run."""
    name = quote(name_of_download(directory) or "RUN")
    return f"osmosis eval download {name} --type {types} -o {quote(str(directory))}"


def name_of_download(directory: Path) -> str | None:
    """Return a downloaded run's name on its platform; None if unknown."""
    facts = as_table((RunDirectory(directory).read_metrics() or {}).get("eval_run"))
    where = directory.resolve()
    # A directory chosen by the user does not contain the run's name.
    at_home = where.parent.parts[-2:] == (".osmosis", "evals")
    return as_text(facts.get("name")) or (where.name if at_home else None)


@contextmanager
def laid_out(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the directory to read a run from, and a cache directory.

    For a download, both are temporary (see :func:`as_local_run`).
    """
    if not is_download(directory):
        yield directory, cache_dir()
        return
    require_types(directory, "trajectories")
    with as_local_run(directory) as local:
        yield local, local.parent


@contextmanager
def as_local_run(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory with the downloaded run in the layout of a local run."""
    run = read_run(directory, without_metrics=True)
    with TemporaryDirectory(prefix="osmosis-downloaded-") as scratch:
        local = RunDirectory(Path(scratch, directory.resolve().name))
        local.path.mkdir()
        listed = _write_journal(run, local.events)
        if not listed.samples:
            unread = (
                f": {amount(listed.unread, 'line')} of its list of attempts cannot be read"
                if listed.unread
                else ""
            )
            raise NoSampleListedError(
                f"The run downloaded to '{directory}' has no attempts{unread}.",
                hint=f"download the list of attempts again: {fetching(directory, 'trajectories')}",
            )
        downloaded = RunDirectory(directory)
        written = downloaded.read_metrics() or {}
        counted = _counted(written)
        _manifest(run, listed, counted).write(local.manifest)
        if counted is not None:
            # The run's own numbers remain correct if samples are missing.
            write_json(local.metrics, {**written, "journal_bytes": local.events.stat().st_size})
        for file, to in ((downloaded.metrics, local.metrics), (downloaded.log, local.log)):
            if file.is_file() and not file.is_symlink() and not to.exists():
                _linked(file, to)
        for folder in (downloaded.trajectories, downloaded.artifacts):
            if folder.is_dir() and not folder.is_symlink():
                # Copy links as links, so that they are not followed.
                shutil.copytree(folder, local.path / folder.name, symlinks=True, copy_function=_linked)
        yield local.path


@contextmanager
def numbers_alone(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory with the metrics of a run that was downloaded without its samples."""
    written = RunDirectory(directory).read_metrics() or {}
    if _counted(written) is None:
        raise OsmosisError(
            f"'{directory / 'metrics.json'}' is incomplete, and the attempts were not downloaded.",
            hint=fetching(directory, "metrics,trajectories"),
        )
    facts, name = as_table(written.get("eval_run")), directory.resolve().name
    run_id = as_text(facts.get("id")) or name
    inputs = {
        "model_path": as_text(facts.get("model_name")),
        "rollout": {"name": as_text(facts.get("rollout_name"))},
    }
    provenance = {"dataset_name": as_text(facts.get("dataset_name")), "run_id": run_id}
    with TemporaryDirectory(prefix="osmosis-downloaded-") as scratch:
        local = RunDirectory(Path(scratch, name))
        local.path.mkdir()
        started = as_text(facts.get("started_at")) or ""
        Manifest(name, inputs, provenance, None, _digest(run_id), started).write(local.manifest)
        # These numbers cannot be compared with a journal that was not downloaded.
        write_json(local.metrics, {key: value for key, value in written.items() if key != "journal_bytes"})
        yield local.path


@contextmanager
def fetched_run(client: PlatformClient, name: str, *, conversations: bool) -> Iterator[Path]:
    """Yield a temporary directory with the files that a report of a platform's run needs."""
    from osmosis_ai.services.runs.download import ASK_FROM_BYTES, plan_download, run_download

    with TemporaryDirectory(prefix="osmosis-report-") as scratch:
        found = get_evaluation(client, name).run
        plan = plan_download(
            client, found, types=("metrics", "trajectories"), workspace=WorkspaceDirectory(Path(scratch))
        )
        if not conversations:
            wanted = [file for file in plan.pending if not file.path.startswith("trajectories/")]
            plan = replace(plan, pending=tuple(wanted))
        by_hand = f"osmosis eval download {name}, then osmosis view .osmosis/evals/{plan.directory.name} --report FILE.html"
        if plan.pending_bytes > ASK_FROM_BYTES:
            raise OsmosisError(
                f"The conversations of '{name}' are too large for a report: {plan.pending_bytes / 2**20:,.0f} MiB.",
                hint=f"--no-text reads its numbers alone; or {by_hand}",
            )
        failures = run_download(client, plan).failures
        if failures:
            raise OsmosisError(
                f"{amount(len(failures), 'file')} of '{name}' could not be downloaded: {failures[0].path}: {failures[0].error}.",
                code="PLATFORM_ERROR",
                hint=f"the same command again; or {by_hand}",
            )
        if not RunDirectory(plan.directory).summary.is_file():
            raise NoSampleListedError(
                f"The platform has no list of attempts of '{name}'.",
                hint=f"`osmosis eval info {quote(name)}` and `osmosis eval logs {quote(name)}` print the rest",
            )
        filled = _fill_in(client, found.id, RunDirectory(plan.directory).summary, text=conversations)
        large = sum(file.size > LARGEST_CONVERSATION_BYTES for file in plan.pending if "/" in file.path)
        found_files = RunDirectory(plan.directory)
        written = found_files.read_metrics()
        if written is not None:
            known = {**as_table(written.get("eval_run")), "samples_unread": not filled, "unread": large}
            write_json(found_files.metrics, {**written, "eval_run": known})
        yield plan.directory


def _fill_in(client: PlatformClient, run_id: str, listing: Path, *, text: bool) -> bool:
    """Add the platform's details to a list of samples, and return whether they could be read.

    Both are merged by row and attempt, with one sample of each in memory. Values of the list take precedence.
    """
    if not lists_samples(client):
        return True
    target = listing.with_name(f"{listing.name}.filled")
    try:
        with listing.open("rb") as lines, target.open("wb") as filled:
            filled.writelines(_filled(lines, _told(client, run_id), text=text))
    except UnreadableReply:
        target.unlink()
        return False
    target.replace(listing)
    return True


def _told(client: PlatformClient, run_id: str) -> Iterator[EvalSample]:
    reached = (-1, -1)
    for sample in platform_samples(client, run_id, details=True):
        if (sample.row, sample.attempt) <= reached:
            return
        reached = (sample.row, sample.attempt)
        yield sample


def _filled(lines: Iterable[bytes], told: Iterator[EvalSample], *, text: bool) -> Iterator[bytes]:
    """Yield the lines of a list of samples with the platform's details added; other lines unchanged."""
    sample = next(told, None)
    for line in lines:
        listed = _object_in(line)
        row, attempt = (listed.get(name) for name in ("row_index", "run_index"))
        if type(row) is int and type(attempt) is int:
            while sample is not None and (sample.row, sample.attempt) < (row, attempt):
                sample = next(told, None)
            if sample is not None and (sample.row, sample.attempt) == (row, attempt):
                listed = _beside(sample, text=text) | listed
                line = orjson.dumps(listed, option=orjson.OPT_APPEND_NEWLINE)
        yield line


def _object_in(line: bytes) -> dict[str, Any]:
    """Return the known fields of a line; empty if it is not an object."""
    try:
        found = as_table(orjson.loads(line))
    except ValueError:
        return {}
    return {name: value for name, value in found.items() if value is not None}


def _beside(sample: EvalSample, *, text: bool) -> dict[str, Any]:
    """Return the platform's details of a sample; invalid values are dropped when the list is read."""
    known = {name: getattr(sample, name) for name in (*_PLATFORM_FIELDS, *(_PLATFORM_TEXTS if text else ()))}
    took = sample.duration_ms
    known["duration_ms"] = round(took) if took is not None and math.isfinite(took) else None
    for name, value in tuple(known.items()):
        try:
            orjson.dumps(value)
        except TypeError:  # a lone surrogate, which JSON can contain, is not text
            del known[name]
    return known


@dataclass(frozen=True)
class _ListedSamples:
    samples: int
    rows: int
    attempts: int
    unread: int


def _counted(written: Mapping[str, Any]) -> int | None:
    """Return how many samples a run's metrics cover; None if some numbers are missing."""
    estimates = Estimates.read(written.get("estimates"))
    if estimates is None or not isinstance(written.get("summary"), dict):
        return None
    return estimates.counts.planned - estimates.counts.pending


def _write_journal(run: ExportedRun, target: Path) -> _ListedSamples:
    samples = rows = attempts = unread = 0

    def count() -> None:
        nonlocal unread
        unread += 1

    with target.open("wb") as lines:
        for known in run.listed(skipped=count):
            record = TerminalRecord(**{"duration_ms": 0, **known})
            lines.write(record.to_line())
            rows, attempts = max(rows, record.row_index + 1), max(attempts, record.run_index + 1)
            samples += 1
    return _ListedSamples(samples, rows, attempts, unread)


def _missing_data(
    listed: _ListedSamples, counted: int | None, facts: Mapping[str, Any], *, without_metrics: bool
) -> Iterator[str]:
    if facts.get("samples_unread") is True:
        yield (
            "The platform's details of the attempts cannot be read: error sources, previews and "
            "costs are not included here."
        )
    if isinstance(large := facts.get("unread"), int) and large:
        have = "conversation has" if large == 1 else "conversations have"
        yield (
            f"{large:,} {have} more than {LARGEST_CONVERSATION_BYTES >> 20} MB and cannot be read here: "
            f"`osmosis eval download {quote(str(facts.get('name') or facts.get('id')))}` fetches the run's files."
        )
    if listed.unread:
        yield (
            f"{amount(listed.unread, 'line')} of the platform's list of attempts cannot be read; "
            "these attempts are omitted."
        )
    if counted is not None and counted > listed.samples:
        yield (
            f"The metrics cover {counted:,} attempts, but the list of attempts has only "
            f"{listed.samples:,}; the others are omitted."
        )
    if without_metrics:
        yield "Its metrics.json, which has the pass threshold, is missing: a reward of 1 is assumed."


def _manifest(run: ExportedRun, listed: _ListedSamples, counted: int | None) -> Manifest:
    facts, without_metrics = run.facts, not RunDirectory(run.directory).metrics.exists()
    inputs: dict[str, Any] = {
        "model_path": facts.get("model_name"),
        "rollout": {"name": facts.get("rollout_name")},
        "dataset": {"selected_source_rows": f"0-{listed.rows - 1}"},
        "n": listed.attempts,
    }
    provenance = {
        "dataset_name": facts.get("dataset_name"),
        "run_id": run.run_id,
        "missing_data": list(_missing_data(listed, counted, facts, without_metrics=without_metrics)),
    }
    name, started = run.directory.resolve().name, str(facts.get("started_at") or "")
    return Manifest(name, inputs, provenance, None, _digest(run.run_id), started)


def _digest(run_id: str) -> str:
    """Return an id in the format of local runs."""
    return hashlib.sha256(run_id.encode("utf-8", "replace")).hexdigest()[:32]


def _linked(source: str | Path, target: str | Path) -> None:
    """Hard-link a file, or copy it if that is not possible."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
