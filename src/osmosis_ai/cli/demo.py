"""`osmosis demo`: an agent evaluated on this machine, with no account, key or GPU."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Conversation, OperationResult, Styled, Turn

if TYPE_CHECKING:
    from osmosis_ai.services.demo import DemoOutcome, Sample


def demo(
    keep_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Work in this new or empty directory (default: a new temporary one)."),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the directory when everything went well.")
    ] = False,
) -> OperationResult:
    """Watch a small agent being evaluated on this machine: no account, no key, no GPU, under two minutes.

    A language model small enough to ship in this package answers; the agent, its tool, the grader and
    the evaluation are what you would use for your own. The command exits with 0 only if every
    sample is scored.
    """
    from osmosis_ai.services.demo import CONFIG, prepare_scratch, run_demo

    output = current()
    scratch = prepare_scratch(keep_dir)
    output.note(f"$ cd {scratch.workspace}\n$ osmosis eval run {CONFIG}")
    try:
        outcome = run_demo(scratch, display=output.mode)
    except KeyboardInterrupt:
        output.note(f"What there is so far: {scratch.workspace}")
        raise
    removed = clean and outcome.complete
    if removed:
        shutil.rmtree(scratch.root)
    return OperationResult(
        operation="demo",
        status="success" if outcome.complete else "partial",
        message=f"The demo scored {outcome.scored} of {outcome.total} samples.",
        resource=_resource(outcome, removed=removed),
        blocks=[_conversation(outcome.sample)] if outcome.sample else [],
        next_steps=[] if removed else _further(outcome),
        next_steps_structured=[] if removed else [{"action": "look", "path": str(scratch.run_directory)}],
    )


def _resource(outcome: DemoOutcome, *, removed: bool) -> dict[str, object]:
    sample = outcome.sample
    return {
        "directory": None if removed else str(outcome.scratch.root),
        "workspace_directory": None if removed else str(outcome.scratch.workspace),
        "scored": outcome.scored,
        "total": outcome.total,
        "metrics": outcome.metrics,
        "run": outcome.run and {key: value for key, value in outcome.run.items() if key != "metrics"},
        "sample": sample
        and {
            "row_index": sample.row_index,
            "run_index": sample.run_index,
            "reward": sample.reward,
            "label": sample.label,
            "messages": [{"role": message.role, "text": message.text} for message in sample.messages],
        },
    }


def _conversation(sample: Sample) -> Conversation:
    truth = "" if sample.label is None else f", the right answer being {sample.label}"
    return Conversation(
        turns=[Turn(message.role, message.text, message.label) for message in sample.messages],
        title=f"One of them: row {sample.row_index}, attempt {sample.run_index + 1}",
        closing=Styled(f"reward {sample.reward:g}{truth}", "good" if sample.reward > 0 else "bad"),
        in_plain=True,
    )


def _further(outcome: DemoOutcome) -> list[str]:
    from osmosis_ai.services.demo import CONFIG, RUN_DIRECTORY

    steps = [
        f"Look further:  cd {outcome.scratch.workspace}",
        "  the agent and its grader      rollouts/multiply/main.py",
        f"  the evaluation's config       {CONFIG}",
        f"  every number of this run      {RUN_DIRECTORY}/metrics.json",
    ]
    if outcome.sample:
        trajectory = outcome.sample.trajectory.relative_to(outcome.scratch.workspace)
        steps.append(f"  the conversation above        {trajectory}")
    return [
        *steps,
        f"  again, on ten rows            {_program()} eval run {CONFIG} --rows 0-9 --yes",
        '  with a model of your choice   set model_path in the config, e.g. "openai/gpt-5-mini", and export its key',
    ]


def _program() -> str:
    """Return what to type to run this very installation."""
    beside = Path(sys.executable).with_name("osmosis")
    found = shutil.which("osmosis")
    if found is not None and beside.exists() and Path(found).samefile(beside):
        return "osmosis"
    return str(beside) if beside.exists() else f"{sys.executable} -m osmosis_ai"
