"""Runs, conversations and rubric results for pages."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np

from osmosis_ai.rubric.agreement import measure_agreement
from osmosis_ai.training.runs.curves import (
    CurveMark,
    CurveValue,
    SavedAdapter,
    TrainingCurves,
    ValidationHeadline,
    ViewedCurve,
)
from tests.decisions.builders import run_of
from tests.rubric.tables import simulated
from tests.viewer.fake_source import FakeSource, a_run, a_sample

ROWS = 30


def two_runs() -> FakeSource:
    """Return a baseline and a candidate, which is better in twenty rows and worse in one."""
    keys = [f"{row:064x}" for row in range(ROWS)]
    before = run_of([[0.0] * 6 if row else [1.0] * 6 for row in range(ROWS)], name="old", keys=keys)
    after = run_of([[1.0] * 6 if 0 < row <= 20 else [0.0] * 6 for row in range(ROWS)], name="new", keys=keys)
    listed = {
        "old": [a_sample(row, passed=not row, reward=float(not row)) for row in range(ROWS)],
        "new": [a_sample(row + 5, row_digest=f"{row:064x}") for row in range(ROWS)],
    }
    return FakeSource([a_run("old"), a_run("new")], listed=listed, samples_of={"old": before, "new": after})


SCRIPT = "</script><script>alert(1)</script>"


def learned(steps: int = 12) -> TrainingCurves:
    """Return curves of a run with two validations; the first has scores for half of the samples."""
    names = ("rollout/raw_reward", "train/kl_base", "train/entropy_loss", "time/step_s", "time/sampling_s")
    curves = [
        ViewedCurve(key, f"the {key}", [CurveValue(step, (step % 7) / 7) for step in range(1, steps + 1)])
        for key in names
    ]
    validation = [
        CurveValue(0, 0.2, 0.1, 0.3, over=4, of=8),
        CurveValue(steps, 0.625, 0.43, 0.81, over=8, of=8),
    ]
    return TrainingCurves(
        [*curves, ViewedCurve("eval/validation/reward", "Validation reward", validation)],
        [
            CurveMark(3, "checkpoint", "step 3"),
            CurveMark(4, "restart", "resumed"),
            CurveMark(5, "warning", SCRIPT),
            CurveMark(6, "warning", SCRIPT),
        ],
        [SavedAdapter("keen-owl-2-step-3", 3, 0.25, 20480, "active"), SavedAdapter("keen-owl-2-step-12", 12)],
        headline=ValidationHeadline(step=steps, reward=0.625, low=0.43, high=0.81, scored=8, planned=8),
    )


RUBRIC_TEXT = "</script><script>alert(1)</script>{{ 7*7 }}"


def a_document(records: int = 60) -> dict[str, Any]:
    """Return a result of `osmosis eval rubric`, read from its JSON."""
    table = simulated(records=records)
    agreement = measure_agreement(table)
    written = {
        "score_min": table.score_min,
        "score_max": table.score_max,
        "overall_statistics": {"average": 0.5},
        "trust": msgspec.to_builtins(agreement),
        "records": [
            {
                "index": row + 1,
                "label": f"record {row + 1} {RUBRIC_TEXT if not row else ''}",
                "judgements": [
                    {
                        "model": table.models[place],
                        "run": run + 1,
                        "score": None if np.isnan(score) else float(score),
                        "explanation": RUBRIC_TEXT,
                    }
                    for place, runs in enumerate(table.scores[row])
                    for run, score in enumerate(runs)
                ],
            }
            for row in range(records)
        ],
    }
    found: dict[str, Any] = json.loads(json.dumps(written))
    return found


CALL = {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 2, "b": 3}}


STEPS: list[dict[str, Any]] = [
    {"source": "system", "message": "Use the tool."},
    {"source": "user", "message": "2 * 3?"},
    {
        "source": "agent",
        "message": "**See**.",
        "model_name": "tiny",
        "reasoning_content": "I multiply.",
        "timestamp": "2026-01-01T00:00:00Z",
        "extra": {"duration_ms": 200},
        "tool_calls": [CALL],
        "observation": {"results": [{"source_call_id": "c1", "content": "\x1b[31m6\x1b[0m\x1b]0;title\x07"}]},
        "metrics": {"prompt_tokens": 10, "completion_tokens": 5, "cost_usd": 0.25},
    },
    {
        "source": "agent",
        "message": "#### 6",
        "timestamp": "2026-01-01T00:00:01Z",
        "extra": {"duration_ms": 50},
    },
]


def trajectory(*steps: dict[str, Any], **told: Any) -> bytes:
    return json.dumps({"steps": list(steps), "extra": {"osmosis": told}}).encode()


def tiles_of(page: str) -> dict[str, str]:
    """Return what the tiles of a page say, by their labels."""
    found = re.findall(r"<span>([^<]+)</span><b>([^<]+)</b>(?:<small>([^<]*)</small>)?", page)
    return {label: f"{value} {detail}".strip() for label, value, detail in found}
