"""The manifest of a run: its inputs, and the check that a resume has equal ones.

Invariant: two sessions write into the same run directory only if their ``inputs`` are equal, key by key. Inputs are
everything that can change a result: model, rows, source, variables, time limits, seed. Names, paths and concurrency
are not among them.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError, ResumeRefusedError, reason_of
from osmosis_ai.evaluation.lenient_json import as_number
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunSpec, check_run_name
from osmosis_ai.files import open_regular, write_json

SCHEMA_VERSION = 1
VERSIONS = {"rollout_protocol": "0.3", "dataset_normalization": 1, "state_schema": 1}
# Readers allocate memory for each of them.
_MAX_ATTEMPTS = 10**7
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_ABSENT = object()
# Digests say nothing to a reader, and variables may be secret: their values are not shown.
_CHANGES_WITHOUT_VALUES = {
    "dataset.sha256": "dataset: the file was changed",
    "rollout.source_digest": "rollout: its files were edited",
}
_LABELS = {
    "dataset.selected_source_rows": "dataset: the selected rows",
    "rollout.name": "rollout",
    "rollout.entrypoint": "rollout: the entrypoint",
    "timeouts.agent_timeout_sec": "timeouts: agent_workflow_timeout_s",
    "timeouts.grader_timeout_sec": "timeouts: grader_timeout_s",
}


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
        """Return the manifest of a run that starts now, without absent provenance."""
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
            if version == SCHEMA_VERSION:
                return cls._decode(raw)
        except (OSError, ValueError, RecursionError, KeyError, TypeError, OsmosisError) as error:
            raise OsmosisError(
                f"'{path}' is not a run's manifest ({reason_of(error)}).",
                hint="start a new run with another '--name', or with '--fresh', which archives that directory",
            ) from None
        raise OsmosisError(
            f"'{path}' has schema version {version!r}; this release knows {SCHEMA_VERSION}.",
            hint="upgrade Osmosis: the run was created by a later release",
        )

    @classmethod
    def _decode(cls, raw: Mapping[str, Any]) -> Manifest:
        manifest = cls(
            raw["local_run_id"],
            raw["run_name"],
            raw["created_at"],
            raw["inputs"],
            raw["provenance"],
            raw.get("grader_digest"),
        )
        has_types = isinstance(manifest.inputs, dict) and isinstance(manifest.provenance, dict)
        has_types = has_types and isinstance(manifest.grader_digest, (str, type(None)))
        if not has_types or not _RUN_ID.fullmatch(manifest.local_run_id):
            raise ValueError("its fields have the wrong types")
        # The name appears in lines that a CI system reads commands from.
        check_run_name(manifest.run_name)
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
            rows, n = sum(each.stop - each.start for each in self.selected_rows()), self.inputs["n"]
            if type(n) is not int or n < 1 or rows * n > _MAX_ATTEMPTS:
                raise ValueError(f"{rows} rows with {n!r} attempts each")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise OsmosisError(f"'{path}' does not contain valid rows and attempts ({error}).") from None
        return rows, n

    def write(self, path: Path) -> None:
        """Write the manifest durably."""
        document = {"schema_version": SCHEMA_VERSION, **vars(self)}
        if self.grader_digest is None:
            del document["grader_digest"]
        write_json(path, document)

    def require_equal_inputs(self, inputs: Mapping[str, Any], *, name: str | None = None) -> None:
        """Refuse a session whose inputs differ from this run's."""
        changed = sorted(
            key
            for key in {*self.inputs, *inputs}
            if self.inputs.get(key, _ABSENT) != inputs.get(key, _ABSENT)
        )
        if changed:
            name = name or self.run_name
            differences = [
                f"\n  - {line}"
                for key in changed
                for line in _differences(key, self.inputs.get(key), inputs.get(key))
            ]
            raise ResumeRefusedError(
                f"the run '{name}' cannot be continued: its inputs have changed since it was started. "
                f"Changed: {', '.join(changed)}.{''.join(differences)}",
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


def utc_now() -> str:
    """Return the current time as ISO 8601 with milliseconds and ``Z``."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _differences(key: str, before: Any, now: Any) -> Iterator[str]:
    """Yield a line for every difference between two values of an input."""
    if before == now:
        return
    if key == "env":
        before, now = before or {}, now or {}
        for name in sorted({*before, *now}):
            if name not in now:
                yield f"env: {name} was removed"
            elif name not in before:
                yield f"env: {name} was added"
            elif before[name] != now[name]:
                yield f"env: {name} has another value"
    elif isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differences(f"{key}.{name}", before.get(name), now.get(name))
    else:
        label = _LABELS.get(key, key.replace(".", ": "))
        yield _CHANGES_WITHOUT_VALUES.get(
            key, f"{label}: was {_format_value(before)}, now {_format_value(now)}"
        )


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
