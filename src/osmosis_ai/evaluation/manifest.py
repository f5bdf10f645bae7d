"""The manifest of a run, its lock, and which run a session starts or continues.

Two sessions write into the same directory only if they hold its lock in turn and their ``inputs`` are equal, key by
key. Inputs are everything that can change a result: model, rows, source, variables, time limits, seed. Names, paths
and concurrency are not inputs.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import msgspec

from osmosis_ai.api.models.base import wire_time
from osmosis_ai.errors import ConflictError, OsmosisError, ResumeRefusedError, reason_of
from osmosis_ai.evaluation.lenient_json import as_number, as_table
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.spec import (
    DatasetInput,
    EvalRunOptions,
    EvalRunSpec,
    check_run_name,
    new_run_names,
)
from osmosis_ai.files import open_regular, write_json

SCHEMA_VERSION = 1
VERSIONS = {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1}
# Readers allocate memory for each attempt.
_MAX_ATTEMPTS = 10**7
# Names of inputs in messages; digests do not appear there.
_LABELS = {
    "dataset.sha256": "dataset: the file was changed",
    "rollout.source_digest": "rollout: its files were edited",
    "dataset.selected_source_rows": "dataset: the selected rows",
    "rollout.name": "rollout",
    "rollout.entrypoint": "rollout: the entrypoint",
    "timeouts.agent_timeout_sec": "timeouts: agent_workflow_timeout_s",
    "timeouts.grader_timeout_sec": "timeouts: grader_timeout_s",
}


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``, written once per run."""

    run_name: str
    inputs: Mapping[str, Any]
    provenance: Mapping[str, Any]
    grader_digest: str | None = None
    local_run_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")] = field(
        default_factory=lambda: uuid.uuid4().hex
    )
    created_at: str = field(default_factory=lambda: wire_time(datetime.now(timezone.utc)))

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest."""
        try:
            with open_regular(path) as file:
                raw = json.loads(file.read())
            version = str(raw["schema_version"])[:40]
            if version != str(SCHEMA_VERSION):
                raise ValueError(f"it has schema version {version}; this release supports {SCHEMA_VERSION}")
            if not {"local_run_id", "created_at"} <= raw.keys():
                raise ValueError("it has no run id or start time")
            manifest = msgspec.convert(raw, cls)
            # The name appears in lines that a CI system reads commands from.
            check_run_name(manifest.run_name)
        except (OSError, ValueError, RecursionError, KeyError, TypeError, OsmosisError) as error:
            raise OsmosisError(
                f"'{path}' is not a run's manifest ({reason_of(error)}).",
                hint="start a new run with another '--name', or with '--fresh', which archives that directory",
            ) from None
        return manifest

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Lowest and highest reward according to the decide file at the start; None if it had no range."""
        ends = self.provenance.get("reward_range")
        if not isinstance(ends, list) or len(ends) != 2:
            return None
        lowest, highest = map(as_number, ends)
        return None if lowest is None or highest is None or lowest >= highest else (lowest, highest)

    def selected_rows(self) -> list[range]:
        """Return the selected dataset rows as ranges; an error of any builtin type if they are malformed."""
        described = self.inputs["dataset"]["selected_source_rows"]
        bounds = [part.partition("-") for part in described.split(",") if part]
        ranges = [range(int(first), int(last or first) + 1) for first, _, last in bounds]
        if not all(ranges):
            raise ValueError(f"rows {described[:80]!r}")
        return ranges

    def planned(self, path: Path) -> tuple[int, int]:
        """Return how many rows the run uses, and how many attempts on each."""
        try:
            rows, n = sum(map(len, self.selected_rows())), self.inputs["n"]
            if type(n) is not int or n < 1 or rows * n > _MAX_ATTEMPTS:
                raise ValueError(f"{rows} rows with {n!r} attempts each")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise OsmosisError(f"'{path}' does not contain valid rows and attempts ({error}).") from None
        return rows, n

    def write(self, path: Path) -> None:
        """Write the manifest durably, without absent values."""
        known = {key: value for key, value in self.provenance.items() if value is not None}
        document = {"schema_version": SCHEMA_VERSION, **vars(self), "provenance": known}
        write_json(path, {key: value for key, value in document.items() if value is not None})

    def require_equal_inputs(self, inputs: Mapping[str, Any], *, name: str | None = None) -> None:
        """Refuse a session whose inputs differ from this run's."""
        name = name or self.run_name
        before, now = _flat(self.inputs), _flat(inputs)
        keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        if keys:
            changed = sorted({key.partition(".")[0] for key in keys})
            lines = "".join(f"\n  - {_describe_change(key, before.get(key), now.get(key))}" for key in keys)
            raise ResumeRefusedError(
                f"Run '{name}' cannot be continued: its inputs have changed since it was started. "
                f"Changed: {', '.join(changed)}.{lines}",
                details={"run_name": name, "changed": changed},
                hint="undo the change, or start a new run with another '--name' or with '--fresh', which archives the old run",
            )


def run_inputs(
    spec: EvalRunSpec, dataset: DatasetInput, selected_rows: str, source_digest: str, seed: int
) -> dict[str, Any]:
    """Return the inputs of a run."""
    return {
        "model_path": spec.experiment.model_path,
        "dataset": {"sha256": dataset.sha256, "selected_source_rows": selected_rows},
        "n": spec.evaluation.n,
        "rollout": {
            "name": spec.experiment.rollout,
            "entrypoint": spec.experiment.entrypoint,
            "source_digest": source_digest,
        },
        "env": dict(sorted(spec.env.items())),
        "secret_names": sorted(spec.secret_names),
        "timeouts": {
            "agent_timeout_sec": spec.evaluation.agent_workflow_timeout_s,
            "grader_timeout_sec": spec.evaluation.grader_timeout_s,
        },
        "seed": seed,
        "versions": dict(VERSIONS),
    }


def inputs_digest(inputs: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of the inputs' canonical JSON."""
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _flat(inputs: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested inputs with keys such as ``dataset.sha256``."""
    found: dict[str, Any] = {}
    for key, value in inputs.items():
        found.update(
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return found


def _describe_change(key: str, before: Any, now: Any) -> str:
    if key.startswith("env."):  # the values of variables may be secret
        what = "was added" if before is None else "was removed" if now is None else "has another value"
        return f"env: {key.removeprefix('env.')} {what}"
    label = _LABELS.get(key, key.replace(".", ": "))
    if key in ("dataset.sha256", "rollout.source_digest"):
        return label
    return f"{label}: was {_format_value(before)}, now {_format_value(now)}"


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(kw_only=True)
class RunPlan:
    """The run of a session and its attempts; the session holds the lock."""

    directory: RunDirectory
    manifest: Manifest | None = None  # of a run that is continued
    archived: Path | None = None
    was_found: bool = False  # without a name, by its inputs
    total: int = 0
    pending: int = 0
    servers: int = 1

    @property
    def name(self) -> str:
        return self.directory.path.name

    @property
    def resumed(self) -> int:
        """Attempts that earlier sessions finished."""
        return self.total - self.pending


@contextmanager
def run_lock(output_root: Path, name: str) -> Iterator[None]:
    """Hold the exclusive right to write ``<output_root>/<name>/``.

    The lock is a file next to the runs, so that a locked run can be archived.
    """
    refusal = ConflictError(
        f"Another process is using the run '{name}'.",
        details={"run_name": name},
        hint=f"wait until it ends ('osmosis eval watch {name}' shows it in a workspace directory), "
        "or choose another '--name'",
    )
    with file_lock(output_root / ".locks" / f"{name}.lock", refusal):
        yield


@contextmanager
def file_lock(path: Path, refusal: OsmosisError) -> Iterator[None]:
    """Hold a lock that the kernel releases when the process ends; raise ``refusal`` if another one holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            # Otherwise a check by is_locked() was in the way.
            if is_locked(path):
                raise refusal
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_running(output_root: Path, name: str) -> bool:
    """Return whether a process holds the run's lock."""
    return is_locked(output_root / ".locks" / f"{name}.lock")


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        # The name of a directory may leave no room for `.lock`.
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        return False
    try:
        # Shared, so that two checks do not see each other.
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def open_run(
    stack: ExitStack, output_root: Path, options: EvalRunOptions, inputs: Mapping[str, Any], config_stem: str
) -> RunPlan:
    """Find or name the run; its lock is held until ``stack`` is closed.

    Without a name, this continues the newest unfinished run with equal inputs, or starts a new one.
    """
    if options.name is not None:
        stack.enter_context(run_lock(output_root, options.name))
        directory = RunDirectory(output_root / options.name)
        archived = directory.archive() if options.fresh else None
        if directory.manifest.exists():
            manifest = Manifest.load(directory.manifest)
            manifest.require_equal_inputs(inputs, name=options.name)
            return RunPlan(directory=directory, manifest=manifest)
        if directory.is_foreign() and options.only is None:
            raise OsmosisError(
                f"'{directory.path}' already exists and is not a run.", hint="choose another '--name'"
            )
        return RunPlan(directory=directory, archived=archived)
    for directory, manifest in [] if options.fresh else _continuable(output_root, inputs, options):
        with suppress(ConflictError):
            stack.enter_context(run_lock(output_root, directory.path.name))
            return RunPlan(directory=directory, manifest=manifest, was_found=True)
    for name in new_run_names(config_stem, inputs_digest(inputs)):
        directory = RunDirectory(output_root / name)
        # Another process may have taken the name in the same second.
        with suppress(ConflictError), ExitStack() as lock:
            lock.enter_context(run_lock(output_root, name))
            if not directory.path.exists():
                stack.enter_context(lock.pop_all())
                return RunPlan(directory=directory)
    raise AssertionError("names are endless")


def _continuable(
    output_root: Path, inputs: Mapping[str, Any], options: EvalRunOptions
) -> list[tuple[RunDirectory, Manifest]]:
    """Return the runs with equal inputs that have work left, newest first."""
    found: list[tuple[RunDirectory, Manifest]] = []
    for path in output_root.glob("*/manifest.json"):
        directory = RunDirectory(path.parent)
        with suppress(OsmosisError):
            manifest = Manifest.load(path)
            if manifest.inputs == inputs and manifest.run_name == path.parent.name:
                eval_run = as_table((directory.read_metrics() or {}).get("eval_run"))
                if options.retry_failed or eval_run.get("status") != "finished":
                    found.append((directory, manifest))
    return sorted(found, key=lambda run: run[1].created_at, reverse=True)
