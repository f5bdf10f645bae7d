"""Which run directory an invocation writes: a new one, or one that is to be continued.

A name says it outright. Without one, the same command means the same run: the newest run with
equal inputs that still has work is continued; when there is none, a new one is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.manifest import Manifest, inputs_digest
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import RunLock, RunLockedError
from osmosis_ai.evaluation.run_name import LOCKS_DIRECTORY, is_archive, new_run_names
from osmosis_ai.evaluation.spec import EvalRunOptions


@dataclass(frozen=True)
class OpenedRun:
    """A run directory whose lock is held."""

    name: str
    directory: RunDirectory
    manifest: Manifest | None
    put_aside: Path | None = None
    found: bool = False


def open_run(
    stack: ExitStack,
    output_root: Path,
    options: EvalRunOptions,
    inputs: Mapping[str, Any],
    config_stem: str,
) -> OpenedRun:
    """Find or name the run; its lock is held until ``stack`` is closed."""
    if options.name is not None:
        return _open_named(stack, output_root, options.name, inputs, options)
    if not options.fresh:
        for name in _continuable(output_root, inputs, retry_failed=options.retry_failed):
            try:
                stack.enter_context(RunLock(output_root, name))
            except RunLockedError:
                continue  # that one is being worked on
            directory = RunDirectory(output_root / name)
            return OpenedRun(name, directory, Manifest.load(directory.manifest), found=True)
    return _open_new(stack, output_root, new_run_names(config_stem, inputs_digest(inputs)))


def _open_new(stack: ExitStack, output_root: Path, names: Iterator[str]) -> OpenedRun:
    """Open a run under the first of the names that nobody has, also not since it was looked for."""
    while True:
        directory = RunDirectory(output_root / next(names))
        with ExitStack() as held:
            try:
                held.enter_context(RunLock(output_root, directory.path.name))
            except RunLockedError:
                continue  # begun by another process, in the same second
            if not directory.path.exists():
                stack.enter_context(held.pop_all())
                return OpenedRun(directory.path.name, directory, None)


def _open_named(
    stack: ExitStack, output_root: Path, name: str, inputs: Mapping[str, Any], options: EvalRunOptions
) -> OpenedRun:
    stack.enter_context(RunLock(output_root, name))
    directory = RunDirectory(output_root / name)
    put_aside = directory.put_aside() if options.fresh else None
    if not directory.manifest.exists():
        if directory.is_foreign() and not options.adopts_journal:
            raise OsmosisError(
                f"`{directory.path}` is there already, and it is not a run; choose another `--name`."
            )
        return OpenedRun(name, directory, None, put_aside)
    manifest = Manifest.load(directory.manifest)
    manifest.require_equal_inputs(inputs, name=name)
    return OpenedRun(name, directory, manifest)


def _continuable(output_root: Path, inputs: Mapping[str, Any], *, retry_failed: bool) -> Iterator[str]:
    """Yield the names of runs with equal inputs that have work left, the newest first."""
    known = []
    for directory in map(RunDirectory, _run_paths(output_root)):
        try:
            manifest = Manifest.load(directory.manifest)
        except OsmosisError:
            continue
        if manifest.inputs == inputs and manifest.run_name == directory.path.name:
            known.append((manifest.created_at, directory))
    for _, directory in sorted(known, key=lambda entry: entry[0], reverse=True):
        if retry_failed or not is_finished(directory):
            yield directory.path.name


def is_finished(directory: RunDirectory) -> bool:
    """Tell whether the run's last session left nothing undone."""
    eval_run = (directory.read_metrics() or {}).get("eval_run")
    return isinstance(eval_run, dict) and eval_run.get("status") == "finished"


def _run_paths(output_root: Path) -> list[Path]:
    if not output_root.is_dir():
        return []
    return [
        path
        for path in output_root.iterdir()
        if path.name != LOCKS_DIRECTORY and not is_archive(path.name) and (path / "manifest.json").is_file()
    ]
