"""What a judging session is: everything that decides its scores, and nothing that only paces it.

Invariant: two sessions may share a journal only if their :meth:`SessionSpec.inputs` are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_ai.errors import ResumeRefusedError
from osmosis_ai.rubric.judge_model import JudgeModel
from osmosis_ai.rubric.record_index import RecordIndex
from osmosis_ai.rubric.records import RubricRecord
from osmosis_ai.rubric.task import JudgeTask

RUNS_PER_SEED = 10_000
_EDITED = {"data": "the file's content is another", "rubric": "its text is another"}
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
    """A session."""

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
        """The order in which each run quotes its texts; None when all use the same."""
        if not self.swap:
            return None
        return ["in the usual order" if run % 2 == 0 else "in reverse" for run in range(self.runs)]

    @property
    def calls_per_record(self) -> int:
        """How many calls each record gets, all judges together."""
        return len(self.judges) * self.runs

    @property
    def model_names(self) -> list[str]:
        """The judges' names."""
        return [judge.name for judge in self.judges]

    def task(self, record: RubricRecord, judge: int, run: int) -> JudgeTask:
        """Return the question about a record for one of the judges and runs, both from 0."""
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
        """Return what tells a call of one run (from 0) from those of other runs and seeds."""
        return self.seed * RUNS_PER_SEED + run

    def inputs(self, index: RecordIndex) -> dict[str, Any]:
        """Return what the scores depend on, without any text or key."""
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


def require_equal_inputs(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Let a session go on with a journal."""
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if changed:
        raise ResumeRefusedError(
            f"the session in '{where}' cannot be continued: its inputs have changed since it was started."
            + "".join(f"\n  - {line}" for line in input_differences(changed, before, now)),
            details={"changed": changed},
            hint="undo the change, or leave out `--resume` to start over",
        )


def input_differences(
    changed: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each input that changed: what it was and is, where that is short and no text."""
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
            else f"{spoken}: {_EDITED.get(key, 'another')}"
        )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def text_digest(text: str | None) -> str | None:
    """Return what tells a text from others without showing it; None for none."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if text is not None else None
