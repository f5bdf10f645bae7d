"""A grader that asks a judge: its explanation is kept with the sample, and its cost is the run's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.cli.eval_runs.view import numbers_table
from osmosis_ai.evaluation.budget import Budget
from osmosis_ai.evaluation.metrics_models import Estimates
from tests.evaluation.rollouts import write_rollout, write_rows
from tests.evaluation.test_runner import World
from tests.standin_model import Reply, StandInModel

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_children_without_torch")]

# Asks no model of its own: every call is the grader's.
JUDGED = """
import os

import uvicorn

from osmosis_ai import evaluate_rubric
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend
from osmosis_ai.rollout.server import create_rollout_server

os.environ["OPENAI_BASE_URL"] = "{base_url}"


class Agent(AgentWorkflow):
    async def run(self, ctx):
        return [*ctx.prompt, {{"role": "assistant", "content": "done"}}]


class Judged(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[0]["content"]
        key = None if said == "keyless" else "sk-judge"
        model = "anthropic/judge" if said == "keyless" else "openai/judge"
        result = await evaluate_rubric(solution_str=said, rubric="Be kind.", model=model, api_key=key)
        ctx.set_reward(result.score)


if __name__ == "__main__":
    app = create_rollout_server(backend=LocalBackend(workflow=Agent, grader=Judged))
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["_OSMOSIS_ROLLOUT_PORT"]), log_level="error")
"""


async def test_a_score_outside_the_scale_is_kept_next_to_the_clamped_one(tmp_path: Path) -> None:
    async with StandInModel(lambda _: Reply('{"score": 4, "explanation": "Great."}')) as model:
        world = World(tmp_path, model)
        write_rollout(world.rollout_dir, JUDGED.format(base_url=model.base_url))
        write_rows(world.rows, ["one", "two"])
        await world.run()
        for scored in world.records():
            (judgement,) = scored["judgements"]
            assert (scored["reward"], judgement["score"], judgement["stated_score"]) == (1.0, 1.0, 4.0)
        estimates = Estimates.model_validate(world.metrics()["estimates"])
        assert estimates.judges is not None and estimates.judges.outside_scale == 2
        numbers, _ = numbers_table(estimates, None)
        (judges,) = [row for row in numbers.rows if row[0] == "Judges"]  # type: ignore[union-attr]
        assert judges[3].endswith("tokens, 2 scores outside the scale, clamped"), judges


async def test_its_explanation_is_with_the_sample_and_its_cost_is_in_the_run(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "cost": 0.25}
    good = Reply('{"score": 0.5, "explanation": "Polite."}', usage=usage)
    async with StandInModel(lambda _: good) as model:
        world = World(tmp_path, model)
        write_rollout(world.rollout_dir, JUDGED.format(base_url=model.base_url))
        write_rows(world.rows, ["one", "keyless"])
        summary = await world.run()
        assert (summary.succeeded, summary.failed) == (1, 1)
        scored, keyless = sorted(world.records(), key=lambda record: int(record["row_index"]))
        judgement = {"model": "openai/judge", "score": 0.5, "explanation": "Polite."}
        assert scored["reward"] == 0.5
        assert scored["judgements"] == [judgement]
        assert (scored["judge_calls"], scored["judge_tokens"], scored["judge_cost_usd"]) == (1, 100, 0.25)
        assert keyless["boundary"] == "grader" and "ANTHROPIC_API_KEY" in keyless["error"]
        assert "judge_calls" not in keyless

        trajectory = json.loads((world.directory / "trajectories" / "row_0_run_0.json").read_text())
        kept = trajectory["extra"]["osmosis"]["sample_extra_fields"]["judge_calls"]
        assert kept["judgements"] == [judgement]

        estimates = Estimates.model_validate(world.metrics()["estimates"])
        assert estimates.judges is not None
        assert estimates.judges.model_dump() == {
            "calls": 1,
            "tokens": 100,
            "cost_usd": 0.25,
            "outside_scale": 0,
        }
        numbers, _ = numbers_table(estimates, None)
        assert ("Judges", "$0.25", "", "1 call, 100 tokens") in numbers.rows  # type: ignore[union-attr]

        write_rows(world.rows, [f"row {row}" for row in range(12)])
        limited = {"budget": Budget(max_cost_usd=0.5), "max_in_flight": 2, "name": "limited"}
        spent = await world.run(options=limited)
        assert spent.stop is not None and "--max-cost 0.5" in spent.stop.reason
        assert 2 <= spent.succeeded < 12
