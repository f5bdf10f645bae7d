"""The manifest: what a run's results were computed from, and the gate a resume must pass.

Invariant: two sessions write into the same run directory only if their ``inputs`` are equal, key by
key. Inputs are everything that can change a result: the policy, the rows, the agent's source, its
variables and time limits, the seed. Names, paths and concurrency are not among them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError, ResumeRefusedError, reason_of
from osmosis_ai.evaluation.input_changes import describe_changes
from osmosis_ai.evaluation.lenient_json import as_number
from osmosis_ai.evaluation.run_name import check_run_name
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec
from osmosis_ai.files import open_regular, write_json

SCHEMA_VERSION = 1
VERSIONS = {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1}
_MOST_ATTEMPTS = 10**8
_RUN_ID = re.compile(r"[0-9a-f]{32}")
# What tools leave in a source directory; none of it is the agent.
_BY_PRODUCTS = frozenset(
    {
        "__pycache__",
        ".git",
        ".venv",
        "venv",
        "dist",
        "build",
        "node_modules",
        ".pytest_cache",
        ".ruff_cache",
        ".mypy_cache",
        "uv.lock",
    }
)


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``, written once per run."""

    local_run_id: str
    run_name: str
    created_at: str
    inputs: Mapping[str, Any]
    provenance: Mapping[str, Any]
    grader_digest: str | None = None

    @classmethod
    def new(
        cls,
        run_name: str,
        inputs: Mapping[str, Any],
        provenance: Mapping[str, Any],
        *,
        grader_digest: str | None = None,
    ) -> Manifest:
        """Make the manifest of a run that starts now; absent provenance is left out."""
        known = {key: value for key, value in provenance.items() if value is not None}
        return cls(uuid.uuid4().hex, run_name, utc_now(), inputs, known, grader_digest)

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest."""
        try:
            with open_regular(path) as file:
                raw = json.loads(file.read())
            version = raw["schema_version"]
            if type(version) is not int or version < SCHEMA_VERSION:
                raise ValueError(f"schema version {str(version)[:40]}")
            # A later one may have other keys.
            manifest = cls._of(raw) if version == SCHEMA_VERSION else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError, OsmosisError) as error:
            raise OsmosisError(
                f"`{path}` is not a run's manifest ({reason_of(error)}).",
                hint="start a new run: under another `--name`, or with `--fresh`, which puts that directory aside",
            ) from None
        if manifest is None:
            raise OsmosisError(
                f"`{path}` has schema version {version!r}; this release knows {SCHEMA_VERSION}.",
                hint="a later release has made the run: upgrade Osmosis",
            )
        return manifest

    @classmethod
    def _of(cls, raw: Mapping[str, Any]) -> Manifest:
        known = ("local_run_id", "run_name", "created_at", "inputs", "provenance")
        manifest = cls(*(raw[key] for key in known))
        manifest = replace(manifest, grader_digest=raw.get("grader_digest"))
        whole = isinstance(manifest.inputs, dict) and isinstance(manifest.provenance, dict)
        whole = whole and isinstance(manifest.grader_digest, (str, type(None)))
        if not whole or not _RUN_ID.fullmatch(manifest.local_run_id):
            raise ValueError("its fields have the wrong types")
        # It is shown in lines that a CI system reads commands from.
        check_run_name(manifest.run_name)
        return manifest

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """The lowest and highest reward, as the decide file said when the run began; None if it did not."""
        ends = self.provenance.get("reward_range")
        numbers = [as_number(end) for end in ends] if isinstance(ends, list) and len(ends) == 2 else []
        least, most = numbers or (None, None)
        return None if least is None or most is None or least >= most else (least, most)

    @property
    def sampled_rows(self) -> int:
        """How many rows the run uses."""
        described = self.inputs["dataset"]["selected_source_rows"]
        bounds = [part.partition("-") for part in described.split(",") if part]
        counts = [int(last or first) - int(first) + 1 for first, _, last in bounds]
        # One that counts backwards would make up for another, of which there is no end.
        if any(count < 1 for count in counts):
            raise ValueError(f"rows {described[:80]!r}")
        return sum(counts)

    def planned(self, path: Path) -> tuple[int, int]:
        """Return how many rows the run uses, and how many attempts on each."""
        try:
            rows, n = self.sampled_rows, self.inputs["n"]
            if type(n) is not int or n < 1 or not 0 <= rows * n <= _MOST_ATTEMPTS:
                raise ValueError(f"{rows} rows with {n!r} attempts each")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OsmosisError(f"`{path}` does not tell which rows its run has ({error}).") from None
        return rows, n

    def write(self, path: Path) -> None:
        """Write the manifest durably."""
        write_json(
            path,
            {
                "schema_version": SCHEMA_VERSION,
                "local_run_id": self.local_run_id,
                "run_name": self.run_name,
                "created_at": self.created_at,
                "inputs": self.inputs,
                "provenance": self.provenance,
                **({"grader_digest": self.grader_digest} if self.grader_digest is not None else {}),
            },
        )

    def require_equal_inputs(self, inputs: Mapping[str, Any], *, name: str | None = None) -> None:
        """Let a session with ``inputs`` continue this run."""
        changed = sorted(
            key
            for key in {*self.inputs, *inputs}
            if self.inputs.get(key, _ABSENT) != inputs.get(key, _ABSENT)
        )
        if changed:
            raise ResumeRefusedError(
                f"the run `{name or self.run_name}` cannot be continued: its inputs have changed since it was started. "
                f"Changed: {', '.join(changed)}."
                + "".join(f"\n  - {line}" for line in describe_changes(self.inputs, inputs)),
                details={"run_name": name or self.run_name, "changed": changed},
                hint="undo the change, or start a new run: under another `--name`, or with `--fresh`, which puts the old one aside",
            )


def run_inputs(
    spec: EvalRunSpec, dataset: DatasetInput, selected_rows: str, source_digest: str, seed: int
) -> dict[str, Any]:
    """Return the inputs of a run as they are locked."""
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


def source_digest(rollout_dir: Path, *, output_root: Path | None = None) -> str:
    """Return the SHA-256 (hex) over the names and bytes of the files that make up a rollout."""
    digest = hashlib.sha256()
    for relative, path in source_files(rollout_dir, output_root=output_root):
        content = hashlib.sha256()
        with path.open("rb") as handle:
            while chunk := handle.read(1 << 20):
                content.update(chunk)
        digest.update(os.fsencode(relative) + b"\0" + content.digest())
    return digest.hexdigest()


def source_files(rollout_dir: Path, *, output_root: Path | None = None) -> list[tuple[str, Path]]:
    """Return the files that make up a rollout, each with its path relative to it, sorted."""
    return sorted(_source_files(rollout_dir, rollout_dir, output_root))


def _source_files(root: Path, directory: Path, output_root: Path | None) -> Iterator[tuple[str, Path]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.name in _BY_PRODUCTS or entry.name.endswith(".egg-info"):
                continue
            if entry.is_symlink() and not entry.is_file():
                raise OsmosisError(
                    f"`{path}` is a symbolic link to {'a directory' if entry.is_dir() else 'nothing'}; "
                    "what it holds could change between two sessions of a run. Copy the files in, or remove the link."
                )
            if entry.is_dir():
                if output_root is None or path.resolve() != output_root.resolve():
                    yield from _source_files(root, path, output_root)
            elif entry.is_file():
                yield path.relative_to(root).as_posix(), path


def utc_now() -> str:
    """Return the current time as ISO 8601 with milliseconds and ``Z``."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_ABSENT = object()
