"""What a demo found out: its evaluations, one sample with its conversation, and what training made of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.conversation import SpokenTurn, read_conversation, turns_of
from osmosis_ai.services.demo.scratch import Scratch
from osmosis_ai.services.demo.session import CommandFailed

if TYPE_CHECKING:
    from osmosis_ai.evaluation.comparison.numbers import Difference

_SAMPLES_READ = 40
_FILE = re.compile(r"row_(\d+)_run_(\d+)\.json")


@dataclass(frozen=True, slots=True)
class DemoSample:
    """One scored sample with its conversation."""

    row_index: int
    run_index: int
    reward: float
    label: str | None
    trajectory: Path
    messages: tuple[SpokenTurn, ...]


@dataclass(frozen=True, slots=True)
class DemoEvaluation:
    """What an evaluation of the demo left behind.

    Attributes:
        status: the exit status of its command.
        results: the directory with its metrics and conversations.
        metrics: its numbers.
        sample: one of the samples.
        run: the resource of the command's own result, known when it was asked for as JSON.
    """

    status: int
    results: Path
    metrics: Mapping[str, Any]
    sample: DemoSample | None
    run: Mapping[str, Any] | None

    @property
    def counts(self) -> Mapping[str, Any]:
        """How many samples were planned, scored, unscored …, as the evaluation counts them."""
        counts: Mapping[str, Any] = self.metrics["estimates"]["counts"]
        return counts

    @property
    def scored(self) -> int:
        """How many samples have a reward."""
        return int(self.counts["scored"])

    @property
    def total(self) -> int:
        """How many samples there were to be."""
        return int(self.counts["planned"])

    @property
    def complete(self) -> bool:
        """Whether every sample is scored."""
        return self.status == 0 and 0 < self.scored == self.total

    def data(self) -> dict[str, Any]:
        """Return it as scripts see it; ``pass_rate`` is over the scored samples."""
        about, estimates = self.metrics["eval_run"], self.metrics["estimates"]
        return {
            "model": about["model_name"],
            "run": about["name"],
            "pass_rate": estimates["pass_rate"]["value"],
            "pass_rate_interval": [estimates["pass_rate"]["low"], estimates["pass_rate"]["high"]],
            "reward": estimates["reward"]["value"],
            "scored": self.scored,
            "total": self.total,
            "output_path": str(self.results),
        }


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
class DemoOutcome:
    """All that a demo found out.

    Attributes:
        scratch: where everything is.
        evaluation: the last one: of the trained model where one was trained.
        platform_url: where the demo's platform still runs, when it was to be kept.
        base, run: the evaluation before the training, and the training; None where there was none.
        pass_rate, reward: by how much the trained model is above the base, paired by row; None, too, when no row
            of both is scored.
    """

    scratch: Scratch
    evaluation: DemoEvaluation
    platform_url: str | None = None
    base: DemoEvaluation | None = None
    run: TrainedRun | None = None
    pass_rate: Difference | None = None
    reward: Difference | None = None

    @property
    def complete(self) -> bool:
        """Whether every sample of every evaluation is scored."""
        return self.evaluation.complete and (self.base is None or self.base.complete)

    def data(self) -> dict[str, Any]:
        """Return what the training came to as scripts see it; nothing where there was none."""
        if self.base is None or self.run is None:
            return {}
        from osmosis_ai.evaluation.comparison.numbers import number_data

        differences = {"pass_rate": self.pass_rate, "reward": self.reward}
        return {
            "base": self.base.data(),
            "trained": self.evaluation.data(),
            "difference": {name: found and number_data(found) for name, found in differences.items()},
            "training_run": asdict(self.run),
        }


def read_evaluation(
    scratch: Scratch, name: str, status: int, run: Mapping[str, Any] | None
) -> DemoEvaluation:
    """Read what the evaluation ``name`` left in the workspace.

    Raises:
        CommandFailed: it ended before it had results.
    """
    results = scratch.workspace / ".osmosis" / "evals" / name
    try:
        metrics = json.loads((results / "metrics.json").read_bytes())
    except FileNotFoundError as error:
        raise CommandFailed(
            f"the evaluation ended with status {status} before it had results; its files are in {scratch.root}",
            details={"status": status, "directory": str(scratch.root)},
        ) from error
    return DemoEvaluation(status, results, metrics, most_telling_sample(results), run)


def most_telling_sample(results: Path) -> DemoSample | None:
    """Return the best of the first scored samples whose conversation was kept; one that used a tool, if any did.

    Args:
        results: the directory of a finished evaluation.
    """
    found = {
        (int(match[1]), int(match[2])): path
        for path in (results / "trajectories").glob("*.json")
        if (match := _FILE.fullmatch(path.name))
    }
    read = [sample for key in sorted(found)[:_SAMPLES_READ] if (sample := _read_sample(found[key], *key))]
    return max(
        read,
        key=lambda sample: (sample.reward, any(message.role == "tool" for message in sample.messages)),
        default=None,
    )


def paired_differences(
    base: DemoEvaluation, trained: DemoEvaluation
) -> tuple[Difference | None, Difference | None]:
    """Return by how much the trained model's pass rate and reward are above the base's, paired by row."""
    from osmosis_ai.evaluation.comparison.differences import Pairs, mean_difference, scale_of_rewards

    rows_before, before = _scored_samples(base.results)
    rows_after, after = _scored_samples(trained.results)
    threshold = float(base.metrics["estimates"]["pass_threshold"])
    passes_before, passes_after = ([float(reward >= threshold) for reward in it] for it in (before, after))
    rewards = Pairs.of(before, rows_before, after, rows_after, scale=scale_of_rewards(before, after))
    passes = Pairs.of(passes_before, rows_before, passes_after, rows_after, scale=(0.0, 1.0))
    return (
        None if passes is None else mean_difference(passes),
        None if rewards is None else mean_difference(rewards),
    )


def _scored_samples(results: Path) -> tuple[list[int], list[float]]:
    """Return the row and the reward of every scored sample."""
    with (results / "summary.jsonl").open(encoding="utf-8") as lines:
        samples = [json.loads(line) for line in lines]
    scored = [it for it in samples if it["status"] == "success" and it.get("reward") is not None]
    return [it["row_index"] for it in scored], [float(it["reward"]) for it in scored]


def _read_sample(path: Path, row: int, run: int) -> DemoSample | None:
    """Read the conversation of a sample; None when it was not scored."""
    conversation = read_conversation(path.read_bytes())
    if conversation.reward is None:
        return None
    turns = tuple(turns_of(conversation))
    return DemoSample(row, run, conversation.reward, conversation.label, path, turns)
