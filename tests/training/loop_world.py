"""A training loop whose rollouts, learner and engine are played by objects that remember what happened.

The policy is a number: its version. A rollout takes no time unless a test makes it wait; its reward
is the one that the test chooses for the step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.controller.attempt import Attempt, AttemptResults
from osmosis_ai.controller.outcomes import Verdict
from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.engines.recording import RecordedRollout
from osmosis_ai.training.learner.checkpoints import CheckpointDirectory, CheckpointStore
from osmosis_ai.training.learner.learner import StepRefusedError
from osmosis_ai.training.learner.step import StepMetrics
from osmosis_ai.training.runs.loop import StopReason, TrainingHooks, TrainingLoop, TrainingLoopState
from osmosis_ai.training.runs.metrics import MetricsHistory, StepRecord
from osmosis_ai.training.runs.rollouts import RolloutSampler
from osmosis_ai.training.runs.spec import DataOrder, SplitRows, ValidationPlan
from tests.controller.attempts import ended, record_of_ended
from tests.training.samples import recorded

Rewards = Callable[[int, int], float | None]


def alternating(step: int, index: int) -> float | None:
    """Every group has something to learn from."""
    return float(index % 2)


class NumberLearner:
    """Learns by counting."""

    saves_every_step = True

    def __init__(self, refuse: Sequence[int] = ()) -> None:
        self.updates = 0
        self.seen: list[tuple[int, tuple[float, ...], tuple[int, ...]]] = []
        self._refuse = set(refuse)
        self.calls = 0
        self.learning = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def step(self, sequences: Any, advantages: Any, *, policy_version: int | None = None) -> StepMetrics:
        self.calls += 1
        self.learning.set()
        assert self.go_on.wait(300)
        if self.calls in self._refuse:
            raise StepRefusedError("the step was refused: its loss is not a finite number.")
        if not sequences:
            return StepMetrics(updates=self.updates)
        assert policy_version == self.updates
        versions = tuple(sorted({v for s in sequences for v in s.versions if v >= 0}))
        self.seen.append((self.updates, tuple(advantages), versions))
        self.updates += 1
        return StepMetrics(updates=self.updates, learned=True, tokens=10, loss=0.5, grad_norm=1.0)

    def merged_state(self) -> dict[str, Any]:
        return {}

    def low_rank_state(self) -> dict[str, Any]:
        return {}

    def save_adapter(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "adapter_config.json").write_text("{}")

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


class VersionEngine:
    """Serves the version that was published last."""

    version = 0
    failure: OsmosisError | None = None

    async def publish(self, policy: NumberLearner, version: int) -> None:
        assert policy.updates == version
        self.version = version


class ScriptedRunner:
    """Gives each attempt the reward that the script says, sampled by the engine's version; it is the bridge, too."""

    def __init__(self, engine: VersionEngine, rewards: Rewards) -> None:
        self._engine = engine
        self._rewards = rewards
        self.asked: list[str] = []
        self.begun_at: dict[int, int] = {}
        self._begun = asyncio.Event()
        self.hang_at: int | None = None
        self.hang_in = "train"
        self.hanging = asyncio.Event()
        self.cancelled = False

    async def run_all(self, attempts: Sequence[Attempt], results: AttemptResults) -> None:
        kind, number, *_ = attempts[0].name.split("-")
        step = int(number)
        if self.asked[-1:] != [f"{kind} {step}"]:
            self.asked.append(f"{kind} {step}")
        if kind == "train":
            self.begun_at.setdefault(step, self._engine.version)
            self._begun.set()
        if step == self.hang_at and kind == self.hang_in:
            await self._hang()
        for attempt in attempts:
            record = self._made(attempt, step if kind == "train" else 0)
            await results.record(record, ended(attempt, attempt.name))
        await asyncio.sleep(0)

    def take(self, rollout_id: str) -> RecordedRollout:
        return recorded(versions=(self._engine.version,))

    def discard(self, rollout_id: str) -> None:
        pass

    async def until_begun(self, batches: int) -> None:
        """Wait until so many batches have been asked for."""
        while len(self.begun_at) < batches:
            self._begun.clear()
            await self._begun.wait()

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def _made(self, attempt: Attempt, step: int) -> TerminalRecord:
        reward = self._rewards(step, attempt.run_index)
        verdict = (
            Verdict("success", reward=reward)
            if reward is not None
            else Verdict("failed", error_type="agent_error", boundary="agent", error="the agent broke")
        )
        return record_of_ended(ended(attempt, attempt.name), verdict)


@dataclass
class Told(TrainingHooks):
    """Remembers what it was told."""

    notes: list[str] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    checkpoints: list[CheckpointDirectory] = field(default_factory=list)
    on_step: Callable[[StepRecord], None] = lambda _: None
    rests: list[Callable[[], None]] = field(default_factory=list)

    async def goes_on(self) -> bool:
        """Go on as often as there is a rest to do meanwhile."""
        if not self.rests:
            return False
        self.rests.pop(0)()
        return True

    def note(self, message: str) -> None:
        self.notes.append(message)

    def step(self, record: StepRecord, total_steps: int) -> None:
        self.records.append(record)
        self.on_step(record)

    def checkpoint(self, saved: CheckpointDirectory) -> None:
        self.checkpoints.append(saved)


class LoopWorld:
    """A loop over 6 rows in batches of 2, 3 steps an epoch, and everything it touches."""

    def __init__(
        self,
        path: Path,
        *,
        rewards: Rewards = alternating,
        learner: NumberLearner | None = None,
        held_out: int = 1,
        **settings: Any,
    ) -> None:
        rows = [DatasetRow(i, [{"role": "user", "content": f"{i}"}], None, None) for i in range(6 + held_out)]
        known = {"rollout_batch_size": 2, "n_samples_per_prompt": 2, "total_epochs": 10, "max_steps": 4}
        self.settings = TrainingSettings(**{**known, "checkpoint_save_freq": 100, **settings})
        self.learner = learner or NumberLearner()
        self.engine = VersionEngine()
        self.runner = ScriptedRunner(self.engine, rewards)
        self.history = MetricsHistory(path / "metrics.jsonl")
        self.checkpoints = CheckpointStore(
            path / "checkpoints", keep_every=self.settings.checkpoint_save_freq
        )
        self.told = Told()
        split = SplitRows(dict(enumerate(rows[:6])), rows[6:])
        order = DataOrder(
            tuple(split.training),
            self.settings.rollout_batch_size,
            self.settings.total_epochs,
            self.settings.seed,
            self.settings.max_steps,
        )
        self.loop = TrainingLoop(
            settings=self.settings,
            rows=split,
            order=order,
            validation=ValidationPlan(),
            sampler=RolloutSampler(self.runner, self.runner),  # type: ignore[arg-type]
            learner=self.learner,  # type: ignore[arg-type]
            engine=self.engine,  # type: ignore[arg-type]
            history=self.history,
            checkpoints=self.checkpoints,
            hooks=self.told,
            state=TrainingLoopState(),
            provenance={"commit": "4be1"},
        )

    def resume(self) -> None:
        """Start again from the last checkpoint, as a later session does."""
        checkpoint = self.checkpoints.latest()
        assert checkpoint is not None
        state = TrainingLoopState(**checkpoint.load_into(self.learner))
        rewound = self.history.rewind(state.step)
        self.engine.version = self.learner.updates
        self.loop = replace(self.loop, state=state, rewound=rewound)

    async def run(self) -> StopReason:
        return await self.loop.run()
