"""`osmosis demo`: an agent evaluated through a platform on this machine, without an account, key or GPU."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import OperationResult, Text
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.demo import DemoEvaluation, DemoOutcome, DemoSample, Scratch

_COMMAND_WIDTH = 64


def demo(
    train: Annotated[
        bool, typer.Option("--train", help="Also train the model and evaluate it again.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help="Seed of the training run (default: 0).")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Evaluate with `osmosis eval run`, without a platform.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the platform running, and print how to reach it.")
    ] = False,
    keep_dir: Annotated[
        Path | None, typer.Option(help="New or empty directory to work in (default: a new temporary one).")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the directory if nothing failed.")] = False,
) -> OperationResult:
    """Run a complete evaluation on this machine.

    No account, key or GPU is needed. It takes less than two minutes.

    The demo runs the commands that it prints: it starts a platform, logs in, pushes a repository, uploads a dataset,
    stores a secret, submits an evaluation, and stops what it started. The model is part of this package. With --train,
    the demo also trains it by reinforcement learning, deploys it, and evaluates it again on the same rows, which are
    not used for training. This takes about two minutes more. The exit status is 0 only if every attempt is scored.

    Examples:
        osmosis demo
        osmosis demo --train --keep
    """
    from osmosis_ai.cli.graceful_stop import signals_raise
    from osmosis_ai.services.demo import prepare_scratch, run_demo

    for refused, message in (
        (keep and local, "--keep and --local are mutually exclusive."),
        (keep and clean, "--keep and --clean are mutually exclusive."),
        (train and local, "--train and --local are mutually exclusive: training needs a platform."),
        (seed is not None and not train, "--seed needs --train."),
    ):
        if refused:
            raise OsmosisError(message)
    if train:
        from osmosis_ai.training import require_train_extra

        require_train_extra()
    output = current()
    what = "evaluate, train and evaluate again" if train else "evaluate"
    where = "on this machine" if local else "on a local platform (no account, key or GPU)"
    output.say(f"Osmosis demo: {what} a tool-using agent {where}")
    # On SIGTERM and SIGHUP, the demo ends its processes and deletes its files.
    with signals_raise((signal.SIGTERM, signal.SIGHUP), lambda number: SystemExit(128 + number)):
        scratch = prepare_scratch(keep_dir)
        try:
            outcome = run_demo(
                scratch, show=_show, local=local, keep=keep, seed=(seed or 0) if train else None
            )
        except KeyboardInterrupt:
            output.say(f"Partial results: {formats.literal(str(scratch.root))}")
            raise
        except SystemExit:
            scratch.discard()
            raise
    complete = outcome.evaluation.complete and (outcome.base is None or outcome.base.complete)
    if clean and complete:
        shutil.rmtree(scratch.root)
    return _result(outcome, scratch, complete=complete, removed=clean and complete)


@contextmanager
def _show(command: str) -> Iterator[Callable[[str], None]]:
    """Show a command while it runs, then its line with the result, on stderr in JSON mode, too."""
    output = current()
    results: list[str] = []
    try:
        with output.status(command):
            yield results.append
    except BaseException:
        output.say(formats.literal(f"  ✗ {command}"))
        raise
    output.say(formats.literal(f"  ✓ {command:<{_COMMAND_WIDTH}}  {', '.join(results)}".rstrip()))


def _result(outcome: DemoOutcome, scratch: Scratch, *, complete: bool, removed: bool) -> OperationResult:
    from osmosis_ai.cli.output.conversations import turns_of

    evaluation, sample = outcome.evaluation, outcome.evaluation.sample
    counts = evaluation.metrics["estimates"]["counts"]
    message = f"The demo scored {counts['scored']} of {counts['planned']} attempts."
    shown = _summary(evaluation)
    extra: dict[str, Any] = {}
    if (training := outcome.training) is not None and outcome.base is not None:
        extra = {
            "base": _numbers(outcome.base),
            "trained": _numbers(evaluation),
            "difference": outcome.difference,
            "training_run": asdict(training),
        }
        before, after = (formats.percent(extra[which]["pass_rate"]) for which in ("base", "trained"))
        took = "" if training.duration_s is None else f" in {formats.duration(training.duration_s)}"
        message = (
            f"{len(training.rewards)} training steps{took} took the pass rate from {before} to {after} "
            "on rows that were not trained on."
        )
        shown = f"{message}\n{shown}"
    turns = [] if sample is None else list(turns_of(sample.conversation))
    return OperationResult(
        operation="demo",
        status="success" if complete else "partial",
        message=message,
        shown=shown,
        resource={
            "directory": None if removed else str(scratch.root),
            "workspace_directory": None if removed else str(scratch.workspace),
            "platform_url": outcome.platform_url,
            "scored": counts["scored"],
            "total": counts["planned"],
            "metrics": evaluation.metrics,
            "run": {key: value for key, value in evaluation.run.items() if key != "metrics"},
            "sample": sample
            and {
                "row_index": sample.row_index,
                "run_index": sample.run_index,
                "reward": sample.reward,
                "label": sample.conversation.label,
                "messages": [{"role": turn.role, "text": turn.text} for turn in turns],
            },
        },
        extra=extra,
        blocks=[Text("\n".join(_example(sample)), in_plain=True)] if sample is not None else [],
        next_steps=[] if removed else _next_steps(outcome, scratch),
        next_steps_structured=[] if removed else [{"action": "look", "path": str(evaluation.results)}],
    )


def _summary(evaluation: DemoEvaluation) -> str:
    """Return ``Pass rate 41.8% (95% CI 36.9–46.8%) · pass@4 89.0% · pass^4 1.0% · 0 failed``."""
    estimates = evaluation.metrics["estimates"]
    counts, rate = estimates["counts"], estimates.get("pass_rate")
    parts = []
    if rate is not None and rate["low"] is not None:
        low, high = 100 * rate["low"], 100 * rate["high"]
        parts.append(f"Pass rate {formats.percent(rate['value'])} (95% CI {low:.1f}–{high:.1f}%)")
    for name, key in (("pass@", "pass_at_k"), ("pass^", "pass_hat_k")):
        by_k = {int(k): found for k, found in (estimates.get(key) or {}).items() if found is not None}
        if by_k and max(by_k) > 1:
            parts.append(f"{name}{max(by_k)} {formats.percent(by_k[max(by_k)]['value'])}")
    if not parts:
        parts.append(f"{counts['scored']} of {counts['planned']} attempts scored")
    return " · ".join([*parts, f"{counts['planned'] - counts['scored']} failed"])


def _example(sample: DemoSample) -> list[str]:
    """Return the conversation of an attempt, a line a turn; the result of a tool follows its call."""
    from osmosis_ai.cli.output.conversations import turns_of

    outcome = "passed" if sample.reward >= 1 else f"reward {sample.reward:g}"
    lines = [f"Example, row {sample.row_index}, attempt {sample.run_index} ({outcome})"]
    for turn in turns_of(sample.conversation):
        text = formats.one_line(turn.text)
        if turn.role == "tool":
            lines[-1] += f" → {text}"
        elif turn.role != "system":
            lines.append(f"  {turn.role:<9}  {text}")
    return lines


def _numbers(evaluation: DemoEvaluation) -> dict[str, Any]:
    estimates = evaluation.metrics["estimates"]
    rate = estimates["pass_rate"]
    return {
        "model": evaluation.metrics["eval_run"]["model_name"],
        "run": evaluation.name,
        "pass_rate": rate["value"],
        "pass_rate_interval": [rate["low"], rate["high"]],
        "reward": estimates["reward"]["value"],
        "scored": estimates["counts"]["scored"],
        "total": estimates["counts"]["planned"],
        "output_path": str(evaluation.results),
    }


def _next_steps(outcome: DemoOutcome, scratch: Scratch) -> list[str]:
    from osmosis_ai.services.demo import CONFIG, ENV_FILE

    program, training = _program(), outcome.training
    steps = [
        ("open the workspace", f"cd {shlex.quote(str(scratch.workspace))}"),
        ("browse the conversations", f"{program} view"),
    ]
    if outcome.platform_url is None:
        steps += [
            ("evaluate ten rows", f"{program} eval run {CONFIG} --rows 0-9 --yes"),
            ("keep the platform running", f"{program} demo --keep"),
        ]
    else:
        steps += [
            (f"use {outcome.platform_url}", f". {shlex.quote(str(scratch.root / ENV_FILE))}"),
            ("evaluate again", f"{program} eval submit {CONFIG} --watch"),
            ("stop the platform", f"{program} platform stop"),
        ]
    if outcome.platform_url is not None and training is not None:
        steps += [
            ("show the training run", f"{program} train info {training.name}"),
            ("download the adapter", f"{program} model download {training.checkpoint}"),
        ]
    return formats.next_block(steps)


def _program() -> str:
    """Return what to type to run this very installation."""
    here, found = Path(sys.executable).with_name("osmosis"), shutil.which("osmosis")
    if not here.exists():
        return f"{sys.executable} -m osmosis_ai"
    return "osmosis" if found is not None and Path(found).samefile(here) else str(here)
