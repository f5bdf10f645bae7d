"""How much slow attempts delay the steps of a training run, with groups sampled ahead and without.

Each run trains `osmosis/tiny` on the multiply rollout; in every second run, some attempts sleep in the agent. The first step,
which fills caches, does not count. ``slow_steps`` is how many undelayed steps an attempt sleeps. Above max_staleness, a step
uses the group without that attempt. ``dropped`` is the share of attempts that were dropped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

# Before torch is imported: with a model this small a second thread costs more than it brings.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from harness import REPOSITORY, Row, multiply_training, options, report, scratch

from osmosis_ai import event_loop
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import Trainer

# The same attempts are slow in every run.
SLEEP = """
        import asyncio, random
        name, _, _ = get_rollout_context().rollout_id.rpartition("-")
        if random.Random(name).random() < float(os.environ["BENCH_SHARE"]):
            await asyncio.sleep(float(os.environ["BENCH_SLEEP_S"]))
"""
SIGNATURE = (
    "    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> AgentWorkflowOutput:\n"
)


def main() -> None:
    given = options(__doc__, max_staleness=[0, 1, 4], steps=20, attempts=64, share=0.05, sleep=4.0)
    rows: list[Row] = []
    with scratch() as folder:
        rollout = folder / "multiply"
        shutil.copytree(REPOSITORY / "rollouts" / "multiply", rollout)
        program = (rollout / "main.py").read_text()
        assert SIGNATURE in program
        (rollout / "main.py").write_text(program.replace(SIGNATURE, SIGNATURE + SLEEP))
        for max_staleness in given.max_staleness:
            without = None
            for share in (0.0, given.share):
                env = {"BENCH_SHARE": str(share), "BENCH_SLEEP_S": str(given.sleep)}
                steps = {"max_steps": given.steps, "total_epochs": 20, "max_staleness": max_staleness}
                spec = multiply_training(given.attempts // 8, rollout=rollout, env=env, **steps)
                row = event_loop.run(timed(spec, folder / f"run-{max_staleness}-{share}"))
                without = without or row["step_s"]
                ratio = round(row["step_s"] / without, 3)
                asleep = {"slow": share, "slow_steps": round(given.sleep / without, 1) if share else 0}
                rows.append({"max_staleness": max_staleness, **asleep, **row, "of_its_time_without": ratio})
    report(given, rows)


async def timed(spec: TrainingSpec, run_dir: Path) -> dict[str, Any]:
    summary = await Trainer(spec, run_dir).run()
    first, *records = summary.records
    seconds = (records[-1].timestamp_ms - first.timestamp_ms) / 1000
    oldest = max(record.metrics["rollout/staleness_max"] for record in records)
    assert oldest <= spec.settings.max_staleness
    dropped = sum(record.metrics.get("rollout/dropped_stale", 0.0) for record in records) / len(records)
    return {"step_s": round(seconds / len(records), 3), "oldest_token": oldest, "dropped": round(dropped, 3)}


if __name__ == "__main__":
    main()
