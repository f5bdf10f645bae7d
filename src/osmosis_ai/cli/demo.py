"""`osmosis demo`: an agent evaluated through a platform of one's own, with no account, key or GPU."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import Conversation, OperationResult, Styled, Turn
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.demo import DemoOutcome, Sample, Scratch


def demo(
    train: Annotated[
        bool,
        typer.Option("--train", help="Then train the model, and evaluate what came of it on the same rows."),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="The seed of the training run.", show_default="0"),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Evaluate with `osmosis eval run`, without a platform.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the platform running, and say how to reach it.")
    ] = False,
    keep_dir: Annotated[
        Path | None,
        typer.Option(help="Work in this new or empty directory (default: a new temporary one)."),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove the directory when everything went well.")
    ] = False,
) -> OperationResult:
    """Watch a small agent being evaluated on this machine: no account, no key, no GPU, under two minutes.

    It starts a platform, logs in, pushes a repository, uploads a dataset, stores a secret, submits an
    evaluation, and stops what it started. A language model small enough to ship in this package answers; the
    rest is what you would use for your own. With --train that model is then trained by reinforcement learning,
    deployed, and evaluated again on the same rows, none of which it was trained on; this takes about two
    minutes more. The command exits with 0 only if every sample is scored.
    """
    from osmosis_ai.services.demo import prepare_scratch

    _check_options(train=train, seed=seed, local=local, keep=keep, clean=clean)
    with _ended_in_order():
        scratch = prepare_scratch(keep_dir)
        try:
            if train:
                return _trained(scratch, keep=keep, seed=seed or 0, clean=clean)
            return _evaluated(scratch, local=local, keep=keep, clean=clean)
        except KeyboardInterrupt:
            _tell(f"What there is so far: {scratch.root}")
            raise
        except SystemExit:
            scratch.discard()
            raise


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Make SIGTERM, which no person sends, end the demo with what it started and what it wrote."""

    def end(number: int, _frame: object) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    for one in before:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _tell(line: str) -> None:
    """Write how far the demo is to stderr, in JSON mode, too: it takes minutes."""
    current().say(formats.literal(line))


def _check_options(*, train: bool, seed: int | None, local: bool, keep: bool, clean: bool) -> None:
    """Refuse what cannot be done before anything is done."""
    if keep and (local or clean):
        raise OsmosisError(f"--keep and {'--local' if local else '--clean'} are mutually exclusive.")
    if train and local:
        raise OsmosisError("--train and --local are mutually exclusive: training needs a platform.")
    if seed is not None and not train:
        raise OsmosisError("--seed is the seed of a training run: it needs --train.")
    if train:
        from osmosis_ai.training import require_train_extra

        require_train_extra()


def _evaluated(scratch: Scratch, *, local: bool, keep: bool, clean: bool) -> OperationResult:
    from osmosis_ai.services.demo import run_local_demo, run_platform_demo

    output = current()
    if local:
        outcome = run_local_demo(scratch, display=output.mode, tell=_tell)
    else:
        outcome = run_platform_demo(scratch, display=output.mode, keep=keep, tell=_tell)
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
        next_steps_structured=[] if removed else [{"action": "look", "path": str(outcome.results)}],
    )


def _trained(scratch: Scratch, *, keep: bool, seed: int, clean: bool) -> OperationResult:
    from osmosis_ai.cli import demo_training
    from osmosis_ai.services.demo import run_training_demo

    output = current()
    outcome = run_training_demo(scratch, display=output.mode, keep=keep, seed=seed, tell=_tell)
    removed = clean and outcome.complete
    if removed:
        shutil.rmtree(scratch.root)
    sample = outcome.trained.sample
    return OperationResult(
        operation="demo",
        status="success" if outcome.complete else "partial",
        message=demo_training.message(outcome),
        resource=_resource(outcome.trained, removed=removed),
        extra=outcome.data(),
        blocks=[*([_conversation(sample)] if sample else []), *demo_training.side_by_side(outcome)],
        next_steps=[]
        if removed
        else [*_further(outcome.trained), *demo_training.further(outcome, _program())],
        next_steps_structured=[] if removed else [{"action": "look", "path": str(outcome.trained.results)}],
    )


def _resource(outcome: DemoOutcome, *, removed: bool) -> dict[str, object]:
    sample = outcome.sample
    return {
        "directory": None if removed else str(outcome.scratch.root),
        "workspace_directory": None if removed else str(outcome.scratch.workspace),
        "platform_url": outcome.platform_url,
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
    from osmosis_ai.services.demo import CONFIG

    workspace = outcome.scratch.workspace
    steps = [
        f"Look further:  cd {workspace}",
        "  the agent and its grader      rollouts/multiply/main.py",
        f"  the evaluation's config       {CONFIG}",
        f"  every number of this run      {outcome.results.relative_to(workspace)}/metrics.json",
    ]
    if outcome.sample:
        trajectory = outcome.sample.trajectory.relative_to(workspace)
        steps.append(f"  the conversation above        {trajectory}")
    steps += _platform(outcome) if outcome.platform_url else _again()
    model = '  with a model of your choice   set model_path in the config, e.g. "openai/gpt-5-mini", and {}its key'
    return [*steps, model.format("`osmosis secret set` " if outcome.platform_url else "export ")]


def _again() -> list[str]:
    from osmosis_ai.services.demo import CONFIG

    return [
        f"  again, on ten rows            {_program()} eval run {CONFIG} --rows 0-9 --yes",
        f"  with a platform that stays    {_program()} demo --keep",
    ]


def _platform(outcome: DemoOutcome) -> list[str]:
    from osmosis_ai.services.demo import CONFIG, ENV_FILE

    program = _program()
    return [
        f"The platform goes on at {outcome.platform_url}",
        f"  use it in this shell          . {outcome.scratch.root / ENV_FILE}",
        f"  its runs                      {program} eval list",
        f"  another run                   {program} eval submit {CONFIG} --watch",
        f"  stop it                       {program} platform stop",
    ]


def _program() -> str:
    """Return what to type to run this very installation."""
    beside = Path(sys.executable).with_name("osmosis")
    found = shutil.which("osmosis")
    if found is not None and beside.exists() and Path(found).samefile(beside):
        return "osmosis"
    return str(beside) if beside.exists() else f"{sys.executable} -m osmosis_ai"
