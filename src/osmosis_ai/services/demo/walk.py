"""The demo itself: the commands that a user would type, in order.

No row that is evaluated was trained on: the samples come as two datasets that share no question.
"""

from __future__ import annotations

import os

from osmosis_ai.config.lines import parse_toml
from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.services.demo.outcome import (
    DemoEvaluation,
    DemoOutcome,
    TrainedRun,
    paired_differences,
    read_evaluation,
)
from osmosis_ai.services.demo.scratch import CONFIG, DATASET, TRAINING_CONFIG, TRAINING_DATASET, Scratch
from osmosis_ai.services.demo.session import (
    SECRET,
    CommandFailed,
    Display,
    Session,
    Tell,
    platform_session,
)

TRAINED_CONFIG = "configs/eval/multiply_trained.toml"
_LOCAL_NAME = "demo"
_REWARD = "training_reward"


def run_demo(
    scratch: Scratch,
    *,
    display: Display,
    tell: Tell,
    local: bool = False,
    keep: bool = False,
    seed: int | None = None,
) -> DemoOutcome:
    """Evaluate the sample agent, perhaps train its model and evaluate what came of it the same way.

    Args:
        scratch: from :func:`~osmosis_ai.services.demo.scratch.prepare_scratch`.
        display: the mode of the output of what is shown.
        tell: takes the commands as a user would type them, and what they said.
        local: evaluate on this machine; otherwise through a platform in a process of its own.
        keep: whether that platform goes on running afterwards.
        seed: of a training run; None trains nothing.

    Raises:
        OsmosisError: a command failed, or training did not finish.
        KeyboardInterrupt: the user interrupted it.
    """
    if local:
        session = Session(scratch, display, tell, scratch.environment(os.environ))
        tell(f"$ cd {scratch.workspace}")
        status, result = session.watch("eval", "run", CONFIG, untold=("--yes", "--name", _LOCAL_NAME))
        return DemoOutcome(scratch, read_evaluation(scratch, _LOCAL_NAME, status, result))
    with platform_session(scratch, display=display, keep=keep, tell=tell) as session:
        tell(f"$ cd {scratch.workspace}\n$ git push -u origin main")
        scratch.push()
        session.type("platform", "connect", f"../{scratch.origin.name}")
        session.type("secret", "set", SECRET, "--env", SECRET)
        session.type("dataset", "upload", DATASET, "--wait", "--yes")
        base = _evaluate(session, CONFIG)
        url = session.platform_url if keep else None
        if seed is None:
            return DemoOutcome(scratch, base, url)
        session.type("dataset", "upload", TRAINING_DATASET, "--wait", "--yes")
        run = _train(session, seed)
        session.type("model", "deploy", run.checkpoint)
        trained = _evaluate(session, _config_for(scratch, run.model))
        return DemoOutcome(scratch, trained, url, base, run, *paired_differences(base, trained))


def _evaluate(session: Session, config: str) -> DemoEvaluation:
    """Submit an evaluation, show it, and fetch what it left behind."""
    status, run = session.watch("eval", "submit", config, "--watch", "--yes")
    name = _newest(session, "eval", status)
    session.type("eval", "download", name)
    return read_evaluation(session.scratch, name, status, run)


def _train(session: Session, seed: int) -> TrainedRun:
    config = _config_with_seed(session.scratch, seed)
    status, _ = session.watch("train", "submit", config, "--watch", "--yes")
    name = _newest(session, "train", status)
    data = session.ask("train", "info", name)["data"]
    run, checkpoints = data["training_run"], data["checkpoints"]
    if run["status"] != "finished" or not checkpoints:
        raise CommandFailed(
            f"training run {name} ended as {run['status']}: {run.get('error') or 'it left no checkpoint'}",
            details={"status": status, "directory": str(session.scratch.root)},
            hint=f"see {session.scratch.platform_log}, or run again with --keep and look at its log",
        )
    checkpoint = checkpoints[-1]["checkpoint_name"]
    curves = {series["key"]: series["data"] for series in data["metrics"]["metrics"]}
    duration_ms = data["metrics"]["training_run"].get("duration_ms")
    return TrainedRun(
        name=name,
        seed=seed,
        rewards=tuple(point["value"] for point in curves.get(_REWARD, ())),
        duration_s=duration_ms / 1000 if duration_ms is not None else None,
        checkpoint=checkpoint,
        model=session.ask("model", "info", checkpoint)["data"]["lora_model"]["inference_model"],
    )


def _newest(session: Session, kind: str, status: int) -> str:
    """Return the name of the run that was submitted last; ``status`` is the exit status of its submit."""
    items = session.ask(kind, "list")["items"]
    if not items:
        raise CommandFailed(
            f"`osmosis {kind} submit` ended with status {status}, and the platform has no run.",
            details={"status": status, "directory": str(session.scratch.root)},
            hint=f"see {session.scratch.platform_log}",
        )
    name: str = items[0]["name"]
    return name


def _config_with_seed(scratch: Scratch, seed: int) -> str:
    """Return the training config with a seed: the sample itself where it has that one."""
    name = TRAINING_CONFIG.replace(".toml", f"_seed_{seed}.toml")
    return _changed(scratch, TRAINING_CONFIG, "advanced", "seed", seed, name)


def _config_for(scratch: Scratch, model: str) -> str:
    """Write the evaluation's config anew, with nothing changed but the model."""
    return _changed(scratch, CONFIG, "experiment", "model_path", model, TRAINED_CONFIG)


def _changed(scratch: Scratch, config: str, section: str, key: str, value: str | int, name: str) -> str:
    """Write a config in which one value differs as ``name``; return that, or ``config`` where none does."""
    import tomli_w

    document = parse_toml((scratch.workspace / config).read_text(encoding="utf-8"), config)
    if key not in document.get(section, {}):
        raise OsmosisError(f"the sample {config} does not say `{key}` in [{section}].", code="INTERNAL")
    if document[section][key] == value:
        return config
    document[section][key] = value
    write_atomic(scratch.workspace / name, tomli_w.dumps(document), mode=0o644)
    return name
