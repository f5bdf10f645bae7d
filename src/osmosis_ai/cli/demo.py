"""`osmosis demo`: an agent evaluated through a platform of one's own, with no account, key or GPU."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osmosis_ai.cli.output import formats
from osmosis_ai.cli.output.context import current
from osmosis_ai.cli.output.results import (
    Block,
    Cell,
    Column,
    ConversationBlock,
    ConversationTurn,
    OperationResult,
    Styled,
    Table,
)
from osmosis_ai.errors import OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.demo import DemoOutcome
    from osmosis_ai.services.demo.outcome import DemoEvaluation, DemoSample, TrainedRun


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

    Examples:
        osmosis demo
        osmosis demo --train --keep
    """
    from osmosis_ai.services.demo import prepare_scratch, run_demo

    _check_options(train=train, seed=seed, local=local, keep=keep, clean=clean)
    with _ended_in_order():
        scratch = prepare_scratch(keep_dir)
        try:
            outcome = run_demo(
                scratch,
                display=current().mode,
                tell=_tell,
                local=local,
                keep=keep,
                seed=(seed or 0) if train else None,
            )
        except KeyboardInterrupt:
            _tell(f"What there is so far: {scratch.root}")
            raise
        except SystemExit:
            scratch.discard()
            raise
    removed = clean and outcome.complete
    if removed:
        shutil.rmtree(scratch.root)
    return _operation(outcome, removed=removed)


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


def _operation(outcome: DemoOutcome, *, removed: bool) -> OperationResult:
    evaluation, data = outcome.evaluation, outcome.data()
    sample = evaluation.sample
    blocks: list[Block] = [_conversation(sample)] if sample else []
    message = f"The demo scored {evaluation.scored} of {evaluation.total} samples."
    if outcome.base is not None and outcome.run is not None:
        blocks.append(_before_and_after(outcome.base, evaluation, data["difference"]))
        message = _what_training_did(outcome.run, data)
    return OperationResult(
        operation="demo",
        status="success" if outcome.complete else "partial",
        message=message,
        resource=_resource(outcome, removed=removed),
        extra=data,
        blocks=blocks,
        next_steps=[] if removed else list(_further(outcome)),
        next_steps_structured=[] if removed else [{"action": "look", "path": str(evaluation.results)}],
    )


def _resource(outcome: DemoOutcome, *, removed: bool) -> dict[str, object]:
    evaluation = outcome.evaluation
    sample, run = evaluation.sample, evaluation.run
    return {
        "directory": None if removed else str(outcome.scratch.root),
        "workspace_directory": None if removed else str(outcome.scratch.workspace),
        "platform_url": outcome.platform_url,
        "scored": evaluation.scored,
        "total": evaluation.total,
        "metrics": evaluation.metrics,
        "run": run and {key: value for key, value in run.items() if key != "metrics"},
        "sample": sample
        and {
            "row_index": sample.row_index,
            "run_index": sample.run_index,
            "reward": sample.reward,
            "label": sample.label,
            "messages": [{"role": message.role, "text": message.text} for message in sample.messages],
        },
    }


def _conversation(sample: DemoSample) -> ConversationBlock:
    truth = "" if sample.label is None else f", the right answer being {sample.label}"
    return ConversationBlock(
        turns=[ConversationTurn(message.role, message.text, message.label) for message in sample.messages],
        title=f"One of them: row {sample.row_index}, attempt {sample.run_index}",
        closing=Styled(f"reward {sample.reward:g}{truth}", "good" if sample.reward > 0 else "bad"),
        in_plain=True,
    )


def _what_training_did(run: TrainedRun, data: Mapping[str, Any]) -> str:
    before, after = (formats.percent(data[which]["pass_rate"]) for which in ("base", "trained"))
    took = f" in {formats.duration(run.duration_s)}" if run.duration_s is not None else ""
    return (
        f"{len(run.rewards)} training steps{took} took the pass rate from {before} to {after} "
        "on rows that were not trained on."
    )


def _before_and_after(base: DemoEvaluation, trained: DemoEvaluation, difference: Mapping[str, Any]) -> Table:
    """Return both evaluations, and how far their difference can be trusted."""
    from osmosis_ai.evaluation.headline import breakdown, pass_rule, scored_of_planned

    both = (base, trained)
    estimates = [evaluation.metrics["estimates"] for evaluation in both]
    failed = [evaluation.counts["failed_by_boundary"] for evaluation in both]
    tokens = [known["tokens"]["per_sample"] for known in estimates]
    rows: list[list[Cell]] = [
        [
            f"Pass rate ({pass_rule(estimates[0]['pass_threshold'])})",
            *(_with_interval(known["pass_rate"], ".1f", scale=100, unit=" %") for known in estimates),
            _with_interval(difference["pass_rate"], "+.1f", scale=100, unit=" points"),
        ],
        [
            "Reward",
            *(_with_interval(known["reward"], ".3f") for known in estimates),
            _with_interval(difference["reward"], "+.3f"),
        ],
        ["Tokens a sample", *(formats.count(None if it is None else round(it)) for it in tokens), None],
        ["Samples scored", *(scored_of_planned(it.scored, it.total) for it in both), None],
        ["Samples failed", *(breakdown(it) if it else "0" for it in failed), None],
    ]
    columns = [Column("", keep=True), *(Column(it, right=True) for it in ("Base", "Trained", "Difference"))]
    paired = difference["pass_rate"]["rows"] if difference["pass_rate"] else 0
    note = f"95 % intervals; the difference is paired over the {paired} rows that both answered"
    return Table(columns, rows, title="Before and after training", note=note, in_plain=True)


def _with_interval(found: Mapping[str, Any] | None, form: str, *, scale: int = 1, unit: str = "") -> str:
    if found is None:
        return formats.MISSING
    value, low, high = (
        None if found[key] is None else found[key] * scale for key in ("value", "low", "high")
    )
    return f"{value:{form}}{unit}" + ("" if low is None else f" ({low:{form}} – {high:{form}})")


def _further(outcome: DemoOutcome) -> Iterator[str]:
    """Yield where to look further, and what to type next."""
    from osmosis_ai.services.demo import CONFIG, ENV_FILE

    workspace, evaluation, program = outcome.scratch.workspace, outcome.evaluation, _program()
    yield f"Look further:  cd {workspace}"
    yield "  the agent and its grader      rollouts/multiply/main.py"
    yield f"  the evaluation's config       {CONFIG}"
    yield f"  every number of this run      {evaluation.results.relative_to(workspace)}/metrics.json"
    if evaluation.sample:
        yield f"  the conversation above        {evaluation.sample.trajectory.relative_to(workspace)}"
    yield f"  the same in a browser         {program} view"
    if outcome.platform_url:
        yield f"The platform goes on at {outcome.platform_url}"
        yield f"  use it in this shell          . {outcome.scratch.root / ENV_FILE}"
        yield f"  its runs                      {program} eval list"
        yield f"  another run                   {program} eval submit {CONFIG} --watch"
        yield f"  stop it                       {program} platform stop"
    else:
        yield f"  again, on ten rows            {program} eval run {CONFIG} --rows 0-9 --yes"
        yield f"  with a platform that stays    {program} demo --keep"
    key = "`osmosis secret set`" if outcome.platform_url else "export"
    yield f'  with a model of your choice   set model_path in the config, e.g. "openai/gpt-5-mini", and {key} its key'
    if outcome.platform_url and (run := outcome.run) is not None:
        yield f"  how the training went         {program} train info {run.name}"
        yield f"  the adapter, to take away     {program} model download {run.checkpoint}"
        yield f'  evaluate it yourself          set model_path = "{run.model}" in a config of configs/eval/'


def _program() -> str:
    """Return what to type to run this very installation."""
    beside = Path(sys.executable).with_name("osmosis")
    found = shutil.which("osmosis")
    if found is not None and beside.exists() and Path(found).samefile(beside):
        return "osmosis"
    return str(beside) if beside.exists() else f"{sys.executable} -m osmosis_ai"
