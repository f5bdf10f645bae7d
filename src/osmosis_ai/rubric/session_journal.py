"""Inputs of a session and its journal, which stores these inputs, every finished call and the working time.

Sessions may share a journal only if their :meth:`SessionSpec.inputs` are equal. A line counts once it is on disk, so a
killed session resumes where it stopped and pays for no score twice. The journal is stored next to the results and
removed when every call has a score.

A call is a combination of record, judge and run. It has a score or a reason for a missing one: *unscored* if the
judge's answer had no readable score, *failed* if the judge could not be asked.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError, ResumeRefusedError
from osmosis_ai.evaluation.journal import committed_lines
from osmosis_ai.files import cache_dir, write_atomic
from osmosis_ai.rubric.judge_model import JudgeModel
from osmosis_ai.rubric.records import RecordIndex, RubricRecord
from osmosis_ai.rubric.types import JudgeTask

RUNS_PER_SEED = 10_000
_EDITED = {"data": "the file's content changed", "rubric": "its text changed"}
_SPOKEN = {
    "data": "data",
    "rubric": "rubric",
    "models": "models",
    "api_base": "addresses of the models",
    "runs": "calls per record (`-n`)",
    "bounds": "score bounds",
    "rubric_id": "rubric id",
    "reading": "how records are read",
}


@dataclass(frozen=True)
class SessionSpec:
    """Configuration of a session."""

    rubric_id: str
    rubric: str
    judges: tuple[JudgeModel, ...]
    runs: int
    bounds: tuple[float, float] = (0.0, 1.0)
    system_prompts: tuple[str | None, ...] = ()
    original_input: str | None = None
    ground_truth: str | None = None
    keep_raw: bool = False
    seed: int = 0
    swap: bool = False

    @property
    def presentations(self) -> list[str] | None:
        """Order of the quoted texts in each run; None if all runs use the same."""
        if not self.swap:
            return None
        return ["in the usual order" if run % 2 == 0 else "in reverse" for run in range(self.runs)]

    @property
    def calls_per_record(self) -> int:
        return len(self.judges) * self.runs

    @property
    def model_names(self) -> list[str]:
        return [judge.name for judge in self.judges]

    def task(self, record: RubricRecord, judge: int, run: int) -> JudgeTask:
        """Return the question about a record for a judge and a run, both counted from 0."""
        low, high = self.bounds
        return JudgeTask(
            rubric=self.rubric,
            solution_str=record.solution_str,
            ground_truth=record.ground_truth or self.ground_truth,
            original_input=record.original_input or self.original_input,
            metadata=record.metadata,
            score_min=low if record.score_min is None else record.score_min,
            score_max=high if record.score_max is None else record.score_max,
            system_prompt=self.system_prompts[judge] if self.system_prompts else None,
            reverse_blocks=self.swap and run % 2 == 1,
        )

    def call_index(self, run: int) -> int:
        """Return a call index that is unique to the run (from 0) and seed."""
        return self.seed * RUNS_PER_SEED + run

    def inputs(self, index: RecordIndex) -> dict[str, Any]:
        """Return the inputs that determine the scores, without texts and keys."""
        return {
            "data": index.digest,
            "rubric": text_digest(self.rubric),
            "rubric_id": self.rubric_id,
            "models": self.model_names,
            "api_base": [judge.api_base for judge in self.judges],
            "reasoning_effort": [judge.reasoning_effort for judge in self.judges],
            "runs": self.runs,
            "seed": self.seed,
            "swap": self.swap,
            "bounds": list(self.bounds),
            "system_prompt": [text_digest(text) for text in self.system_prompts],
            "original_input": text_digest(self.original_input),
            "ground_truth": text_digest(self.ground_truth),
            "reading": [index.rules.rubric_id, index.rules.tagged_only, index.rules.wrap_metadata],
        }


def input_differences(
    changed: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each changed input, with both values if they are short and not texts."""
    for key in changed:
        spoken = _SPOKEN.get(key, key.replace("_", " "))
        told = key in (
            "models",
            "runs",
            "seed",
            "swap",
            "bounds",
            "rubric_id",
            "api_base",
            "reasoning_effort",
        )
        yield (
            f"{spoken}: was {_shown(before.get(key))}, now {_shown(now.get(key))}"
            if told
            else f"{spoken}: {_EDITED.get(key, 'changed')}"
        )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def text_digest(text: str | None) -> str | None:
    """Return the digest of a text, or None."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if text is not None else None


CallStatus = Literal["scored", "unscored", "failed"]
STATUSES: tuple[CallStatus, ...] = ("scored", "unscored", "failed")
_NO_RESULT = 255


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A finished call."""

    record: int
    model: int
    run: int
    status: CallStatus
    score: float | None
    stated_score: float | None
    explanation: str | None
    reason: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_s: float
    retries: int
    started_at: str
    completed_at: str
    raw: Any = None

    def to_line(self) -> bytes:
        """Return the call as a line of JSON without None values."""
        return json_bytes({key: value for key, value in asdict(self).items() if value is not None}) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> CallRecord:
        try:
            fields = orjson.loads(line)
            call = cls(**{**_ABSENT, **fields})
            if call.status not in STATUSES or (call.score is None) != (call.status != "scored"):
                raise ValueError("its status is not that of a call")
        except TypeError as error:
            raise ValueError(str(error)) from None
        return call


_ABSENT: dict[str, Any] = dict.fromkeys(
    ("score", "stated_score", "explanation", "reason", "error", "cost_usd")
)


class CallStates:
    """Status of every call of a session by record, model and run, all counted from 0."""

    def __init__(self, records: int, models: int, runs: int) -> None:
        self.shape = (records, models, runs)
        total = records * models * runs
        self.scores = array("d", [math.nan]) * total
        self._offsets = array("q", [-1]) * total
        self._states = bytearray([_NO_RESULT]) * total
        self._open = bytearray([1]) * total
        self._outside_scale = bytearray(total)
        self._reasons: list[str] = []
        self._reason_codes = bytearray(total)

    def __len__(self) -> int:
        return len(self._open)

    def holds(self, call: CallRecord) -> bool:
        """Return whether the call belongs to the session."""
        records, models, runs = self.shape
        return 1 <= call.record <= records and 0 <= call.model < models and 1 <= call.run <= runs

    def settle(self, call: CallRecord, offset: int) -> None:
        """Record the latest result of a call and its offset in the journal."""
        item = self._item(call.record - 1, call.model, call.run - 1)
        self.scores[item] = call.score if call.score is not None else math.nan
        self._outside_scale[item] = call.stated_score is not None
        self._offsets[item] = offset
        self._states[item] = STATUSES.index(call.status)
        self._reason_codes[item] = self._code_of(call.reason or call.status)
        self._open[item] = 0

    def reopen_scoreless(self) -> None:
        """Reopen every call without a score, keeping its current result meanwhile."""
        for item, state in enumerate(self._states):
            if state != 0:
                self._open[item] = 1

    def open_runs(self, record: int, model: int) -> Iterator[int]:
        """Yield a judge's pending runs for a record."""
        start = self._item(record, model, 0)
        return (run for run in range(self.shape[2]) if self._open[start + run])

    def open_count(self, model: int | None = None) -> int:
        """Count the pending calls of one judge or of all."""
        if model is None:
            return self._open.count(1)
        _, models, runs = self.shape
        return sum(self._open[model * runs + run :: models * runs].count(1) for run in range(runs))

    def count(self, status: CallStatus) -> int:
        """Count the calls with this status."""
        return self._states.count(STATUSES.index(status))

    @property
    def outside_scale(self) -> int:
        """Number of scores that were clamped to the scale."""
        return self._outside_scale.count(1)

    def reasons(self, status: CallStatus) -> dict[str, int]:
        """Count the calls with this status by reason, most frequent first."""
        code = STATUSES.index(status)
        found = Counter(
            reason for state, reason in zip(self._states, self._reason_codes, strict=True) if state == code
        )
        return {self._reasons[reason]: count for reason, count in found.most_common()}

    @property
    def pending(self) -> int:
        """Number of calls without a result."""
        return self._states.count(_NO_RESULT)

    def offsets(self, record: int) -> list[int]:
        """Return the journal offsets of a record's calls by model and run; -1 without a result."""
        start, width = self._item(record, 0, 0), self.shape[1] * self.shape[2]
        return list(self._offsets[start : start + width])

    def records_with(self, status: CallStatus | None) -> int:
        """Count the records that have a call with this status; None counts pending ones."""
        code = _NO_RESULT if status is None else STATUSES.index(status)
        width = self.shape[1] * self.shape[2]
        return sum(code in self._states[start : start + width] for start in range(0, len(self), width))

    def _code_of(self, reason: str) -> int:
        # A byte suffices, since the possible reasons are few.
        if reason not in self._reasons:
            self._reasons.append(reason)
        return min(self._reasons.index(reason), 255)

    def _item(self, record: int, model: int, run: int) -> int:
        return (record * self.shape[1] + model) * self.shape[2] + run


def json_bytes(value: Any, *, indent: bool = False) -> bytes:
    """Encode ``value`` as UTF-8 JSON, whatever texts and numbers it holds."""
    options = orjson.OPT_INDENT_2 if indent else None
    try:
        return orjson.dumps(value, option=options)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(value, ensure_ascii=False, default=str, indent=2 if indent else None)
        return text.encode("utf-8", "replace")


SUFFIX = ".partial.jsonl"
_SCHEMA = 1
_ELAPSED = b'{"elapsed_s"'
FULL_HINT = "free some space and run the same command with `--resume`: it continues where it stopped"


class SessionLock:
    """Exclusive lock for writing a result, as a context manager. The kernel releases it if the process dies."""

    def __init__(self, output: Path) -> None:
        from filelock import FileLock

        self._output = output
        name = hashlib.sha256(os.fsencode(output.absolute())).hexdigest()[:24]
        path = cache_dir() / "locks" / f"rubric-{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path, mode=0o600, preserve_lock_file=True, fallback_to_soft=False)

    def __enter__(self) -> SessionLock:
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConflictError(
                f"another process is writing '{self._output}'.", hint="choose another `--output`"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def journal_of(output: Path) -> Path:
    """Return the journal's path for a result."""
    return output.with_name(output.name + SUFFIX)


def start_journal(path: Path, inputs: dict[str, Any]) -> Path | None:
    """Start a journal, moving an existing one to a backup."""
    aside = None
    if path.exists():
        aside = path.with_name(path.name.removesuffix(SUFFIX) + ".previous" + SUFFIX)
        path.replace(aside)
    write_atomic(path, json_bytes({"schema_version": _SCHEMA, "inputs": inputs}) + b"\n")
    return aside


def find_output(output: Path, inputs: dict[str, Any], *, fixed: bool) -> Path:
    """Return the result path of the unfinished session with these ``inputs``."""
    if fixed:
        candidates = [path for path in [journal_of(output)] if path.is_file()]
    else:
        found = output.parent.glob(f"*{SUFFIX}") if output.parent.is_dir() else []
        candidates = sorted(
            (path for path in found if not path.name.endswith(".previous" + SUFFIX)),
            key=lambda path: path.stat().st_mtime_ns,
            reverse=True,
        )
    if not candidates:
        where = f"'{output}'" if fixed else f"'{output.parent}'"
        raise NotFoundError(
            f"there is no unfinished session to resume for {where}.",
            hint="a session that scored every record leaves nothing to resume; leave out `--resume` to start one",
        )
    for path in candidates:
        if read_inputs(path) == inputs:
            return path.with_name(path.name.removesuffix(SUFFIX))
    before = read_inputs(candidates[0])
    changed = [key for key in sorted({*before, *inputs}) if before.get(key) != inputs.get(key)]
    raise ResumeRefusedError(
        f"the session in '{candidates[0]}' cannot be continued: its inputs have changed since it was started."
        + "".join(f"\n  - {line}" for line in input_differences(changed, before, inputs)),
        details={"changed": changed},
        hint="undo the change, or leave out `--resume` to start over",
    )


def read_inputs(path: Path) -> dict[str, Any]:
    """Return the inputs stored in a journal."""
    try:
        header = orjson.loads(next(line for _, line in committed_lines(path)))
        version, inputs = header["schema_version"], header["inputs"]
    except (StopIteration, ValueError, KeyError, TypeError):
        raise OsmosisError(
            f"'{path}' is not the journal of a judging session.", hint="remove it to start over"
        ) from None
    if version != _SCHEMA:
        raise OsmosisError(f"'{path}' has schema version {version!r}; this release knows {_SCHEMA}.")
    return dict(inputs)


def worked_s(path: Path) -> float:
    """Return the total working time of a journal's sessions in seconds."""
    lines = (line for _, line in committed_lines(path) if line.startswith(_ELAPSED))
    return sum(float(orjson.loads(line)["elapsed_s"]) for line in lines)


def replay(path: Path) -> Iterator[tuple[int, CallRecord]]:
    """Yield (offset, call) of all calls in a journal, oldest first."""
    for number, (offset, line) in enumerate(committed_lines(path), start=1):
        if number == 1 or line.startswith(_ELAPSED):
            continue
        try:
            call = CallRecord.from_line(line)
        except ValueError as error:
            raise ConflictError(
                f"the journal '{path}' is damaged on line {number}: {error}.",
                details={"path": str(path), "line": number},
                hint="leave out `--resume` to start over; the damaged journal is kept",
            ) from None
        yield offset, call
