"""The demo, trained: the base evaluated, trained, and what came of it evaluated the same way on the same rows.

No row that is evaluated was trained on: the samples come as two datasets that share no question.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.services.demo.commands import CommandFailed, Display, Tell
from osmosis_ai.services.demo.outcome import DemoOutcome
from osmosis_ai.services.demo.scratch import CONFIG, DATASET, TRAINING_CONFIG, TRAINING_DATASET, Scratch
from osmosis_ai.services.demo.session import Session, running_platform

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Estimate

TRAINED_CONFIG = "configs/eval/multiply_trained.toml"
_REWARD = "training_reward"


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """The training run, and the adapter it ended with.

    Attributes:
        name: of the run.
        seed: of its sampling, its data order and the adapter's start.
        rewards: of its steps.
        duration_s: from its start to its end.
        checkpoint: the adapter's name.
        model: what the adapter is called where it is served.
    """

    name: str
    seed: int
    rewards: tuple[float, ...]
    duration_s: float | None
    checkpoint: str
    model: str


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The same evaluation before and after training.

    Attributes:
        pass_rate, reward: by how much the trained model is above the base, paired by row; None when no row of
            both is scored.
    """

    base: DemoOutcome
    trained: DemoOutcome
    run: TrainedRun
    pass_rate: Estimate | None
    reward: Estimate | None
    platform_url: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every sample of both evaluations is scored."""
        return self.base.complete and self.trained.complete

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        return {
            "base": _described(self.base),
            "trained": _described(self.trained),
            "difference": {
                name: found and asdict(found)
                for name, found in (("pass_rate", self.pass_rate), ("reward", self.reward))
            },
            "training_run": asdict(self.run),
        }


def run_training_demo(
    scratch: Scratch, *, display: Display, keep: bool, seed: int, tell: Tell
) -> TrainingOutcome:
    """Evaluate the sample agent, train its model, and evaluate what came of it.

    Args:
        scratch: from :func:`~osmosis_ai.services.demo.scratch.prepare_scratch`.
        display: the mode of the output of what is shown.
        keep: whether the platform goes on running afterwards.
        seed: of the training run.
        tell: takes the commands as a user would type them, and what they said.

    Raises:
        OsmosisError: a command failed, or training did not finish.
        KeyboardInterrupt: the user interrupted it.
    """
    with running_platform(scratch, keep=keep, tell=tell) as platform:
        session = Session(scratch, platform, display, tell)
        session.connect()
        session.upload(DATASET)
        base = session.evaluate(CONFIG)
        session.upload(TRAINING_DATASET)
        run = _train(session, seed)
        session.step("model", "deploy", run.checkpoint)
        trained = session.evaluate(_config_for(scratch, run.model))
        platform.keep = keep
        url = platform.url if keep else None
        return TrainingOutcome(
            replace(base, platform_url=url),
            replace(trained, platform_url=url),
            run,
            *paired_differences(base, trained),
            platform_url=url,
        )


def paired_differences(base: DemoOutcome, trained: DemoOutcome) -> tuple[Estimate | None, Estimate | None]:
    """Return by how much the trained model's pass rate and reward are above the base's, paired by row."""
    from osmosis_ai.evaluation.statistics import paired_difference

    rows_before, rewards_before = _scored_samples(base.results)
    rows_after, rewards_after = _scored_samples(trained.results)
    threshold = float(base.metrics["estimates"]["pass_threshold"])
    passes_before = [float(reward >= threshold) for reward in rewards_before]
    passes_after = [float(reward >= threshold) for reward in rewards_after]
    return (
        paired_difference(passes_after, rows_after, passes_before, rows_before),
        paired_difference(rewards_after, rows_after, rewards_before, rows_before),
    )


def _train(session: Session, seed: int) -> TrainedRun:
    config = _config_with_seed(session.scratch, seed)
    status, _ = session.watch("train", "submit", config, "--watch", "--yes")
    name = session.newest("train", status)
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


def _config_with_seed(scratch: Scratch, seed: int) -> str:
    """Return the training config with a seed: the sample itself where it has that one."""
    text = (scratch.workspace / TRAINING_CONFIG).read_text(encoding="utf-8")
    seeded = _replaced(text, r"^seed = \d+", f"seed = {seed}")
    if seeded == text:
        return TRAINING_CONFIG
    name = TRAINING_CONFIG.replace(".toml", f"_seed_{seed}.toml")
    write_atomic(scratch.workspace / name, seeded, mode=0o644)
    return name


def _config_for(scratch: Scratch, model: str) -> str:
    """Write the evaluation's config anew, with nothing changed but the model."""
    text = (scratch.workspace / CONFIG).read_text(encoding="utf-8")
    changed = _replaced(text, r'^model_path = "[^"]*"', f"model_path = {json.dumps(model)}")
    write_atomic(scratch.workspace / TRAINED_CONFIG, changed, mode=0o644)
    return TRAINED_CONFIG


def _replaced(text: str, line: str, by: str) -> str:
    changed, count = re.subn(line, lambda _: by, text, flags=re.MULTILINE)
    if count != 1:
        raise OsmosisError(f"a sample config has {count} lines `{line}`, and not one.", code="INTERNAL")
    return changed


def _scored_samples(results: Path) -> tuple[list[int], list[float]]:
    """Return the row and the reward of every scored sample."""
    with (results / "summary.jsonl").open(encoding="utf-8") as lines:
        samples = [json.loads(line) for line in lines]
    scored = [
        sample for sample in samples if sample["status"] == "success" and sample.get("reward") is not None
    ]
    return [sample["row_index"] for sample in scored], [float(sample["reward"]) for sample in scored]


def _described(outcome: DemoOutcome) -> dict[str, Any]:
    """Return one evaluation as scripts see it; ``pass_rate`` is over the scored samples."""
    about, estimates = outcome.metrics["eval_run"], outcome.metrics["estimates"]
    return {
        "model": about["model_name"],
        "run": about["name"],
        "pass_rate": estimates["pass_rate"]["value"],
        "pass_rate_interval": [estimates["pass_rate"]["low"], estimates["pass_rate"]["high"]],
        "reward": estimates["reward"]["value"],
        "scored": outcome.scored,
        "total": outcome.total,
        "output_path": str(outcome.results),
    }
