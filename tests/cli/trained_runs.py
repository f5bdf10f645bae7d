"""Training directories of this machine, and the conversations in them."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.training.runs.metrics import MetricsHistory, StepRecord
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples
from tests.cli.maze import Maze
from tests.viewer.source_contract import leave_validation, sample_record

CALL = {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 2, "b": 3}}


def trajectory(text: str, **told: Any) -> bytes:
    steps = [
        {"source": "user", "message": "2 * 3?"},
        {
            "source": "agent",
            "message": "",
            "reasoning_content": "I multiply.",
            "tool_calls": [CALL],
            "observation": {"results": [{"source_call_id": "c1", "content": text}]},
        },
        {"source": "agent", "message": "#### 6"},
    ]
    return json.dumps({"steps": steps, "extra": {"osmosis": {"label": "6", **told}}}).encode()


def trained_here(directory: Path) -> Path:
    """Write a training directory of three steps; a second session resumed after the first step."""
    (directory / "checkpoints" / "step-00000003" / "adapter").mkdir(parents=True)
    (directory / "checkpoints" / "step-00000003" / "adapter" / "adapter.bin").write_bytes(b"12345")
    inputs = {"model_path": "osmosis/tiny", "rollout": {"name": "maze"}, "settings": {"seed": 3}}
    Manifest(directory.name, inputs, {}).write(directory / "manifest.json")
    for step in range(1, 4):
        measured = {"rollout/raw_reward": step / 4}
        if step == 3:
            measured |= {
                "eval/validation/reward": 0.5,
                "eval/validation/reward_low": 0.4,
                "eval/validation/reward_high": 0.6,
                "eval/validation/scored": 8,
                "eval/validation/samples": 10,
            }
        append_step(directory, step, measured, warnings=["it is slow"] * (step == 2))
    lines = [
        '2026-10-02T07:00:00.000Z INFO [plan] training {"adapter":{"LoRA":"4,096 parameters"},'
        f'"steps_done":{done},"total_steps":3}}'
        for done in (0, 1)
    ]
    (directory / "logs.txt").write_text("\n".join(lines) + "\n")
    return directory


def append_step(directory: Path, step: int, measured: dict[str, float], **more: Any) -> None:
    """Add a step to the metrics of a training directory."""
    history = MetricsHistory(directory / "metrics.jsonl")
    history.append(StepRecord(step, 1_790_000_000_000 + step, measured, **more))


def in_training(directory: Path) -> AbstractContextManager[None]:
    """Hold the lock of a training directory like the process that trains."""
    return TrainingDirectory(directory).held()


def validated_here(maze: Maze) -> Path:
    """Leave a training directory that validated four samples after its third step, and has of two what was said."""
    directory = trained_here(maze.workspace.root / "trained" / "walks")
    records = [
        sample_record(0, 0, 1.0),
        sample_record(0, 1, 0.25, notes="Nearly.", parts={"format": 1.0}),
        sample_record(1, 0, error="ValueError: \x1b[31mno\x1b]0;owned\x07"),
        sample_record(2, 0, 0.0),
    ]
    samples = ValidationSamples.of(records, step=3, pass_threshold=1.0)
    said = {(0, 1): trajectory("seven"), (2, 0): trajectory("\x1b[31meight")}
    leave_validation(TrainingDirectory(directory), samples, said)
    return directory
