"""Cases of agents and judges that run on this machine, with a fake model and fixed rows."""

from __future__ import annotations

import sys
from typing import Any

from tests.cli.golden_cases import Case, file, together
from tests.cli.maze import Maze
from tests.datasets.builders import jsonl
from tests.evaluation.rollouts import write_rollout
from tests.rubric.judge_server import running_judge
from tests.rubric.serving import serving
from tests.standin_model import Reply, StandInModel
from tests.workspace.builders import MINIMAL_EVAL, MINIMAL_TRAINING

AGENT = '''
from osmosis_ai import osmosis_reward
from osmosis_ai.rollout import RolloutAgentLoop

class Echo(RolloutAgentLoop):
    """Answers with what the model says."""

    name = "echo"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        if messages[-1]["content"] == "raise":
            raise ValueError("no answer")
        reply = await ctx.chat(messages, **ctx.request.completion_params)
        return ctx.complete([*messages, reply.message], reward=0.25)

agent_loop = Echo()

@osmosis_reward
def exact(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    return 1.0 if solution_str == ground_truth else 0.0
'''
ROWS = jsonl(
    [
        {"system_prompt": "Be brief.", "user_prompt": word, "ground_truth": "ok"}
        for word in ("one", "two", "raise")
    ]
)
RUBRICS = """\
version: 1
rubrics:
- id: clarity
  rubric: Judge the clarity.
  model_info: {provider: openai, model: gpt-5-mini}
  score_max: 10
"""
RECORDS = jsonl(
    [
        {"id": "r1", "rubric_id": "clarity", "solution_str": "one [score 2]"},
        {"id": "r2", "rubric_id": "clarity", "solution_str": "two [score 8]"},
    ]
)


def loop(maze: Maze) -> None:
    """Write an agent loop and its rows, and start a fake model."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    model = maze.stack.enter_context(serving(StandInModel(lambda _: Reply(content="ok", usage=usage))))
    maze.patch.setenv("OPENAI_BASE_URL", model.base_url)
    maze.patch.setenv("OPENAI_API_KEY", "sk-golden-canary")
    maze.patch.setattr(sys, "path", sys.path[:])
    sys.modules.pop("golden_loop", None)
    together(file("golden_loop.py", AGENT), file("rows.jsonl", ROWS))(maze)


def rubric_and_judge(maze: Maze) -> None:
    """Write records and a rubric, and start a fake judge."""
    judge = maze.stack.enter_context(running_judge())
    maze.patch.setenv("OPENAI_BASE_URL", judge.base_url)
    maze.patch.setenv("OPENAI_API_KEY", "sk-golden-canary")
    together(file("rubric_configs.yaml", RUBRICS), file("records.jsonl", RECORDS))(maze)


def server_stops_at_once(maze: Maze) -> None:
    maze.patch.setattr(
        "osmosis_ai.rollout.server.serve.AgentServer.run", lambda server, say: server.listener.close()
    )


def viewer_stops_at_once(maze: Maze) -> None:
    """Stop the viewer once it has printed its URL, on a machine that does not resolve names below localhost."""
    maze.patch.setattr("osmosis_ai.viewer.serving.name_leads_here", lambda name: False)
    maze.patch.setattr("osmosis_ai.viewer.serving.RunningViewer.run", lambda viewer: viewer.listener.close())
    maze.patch.delenv("SSH_CONNECTION", raising=False)
    maze.patch.delenv("SSH_TTY", raising=False)


def eval_config(maze: Maze) -> None:
    together(file("configs/eval/multiply.toml", MINIMAL_EVAL), file("data/multiply.jsonl", ROWS))(maze)


def finished_evaluation(maze: Maze) -> None:
    """Replace the evaluation by its recorded result: two rows, two attempts each."""
    from osmosis_ai.evaluation.hooks import RunHooks, RunSummary
    from osmosis_ai.evaluation.manifest import RunPlan
    from osmosis_ai.evaluation.run_directory import RunDirectory
    from osmosis_ai.services.eval_runs.run import PreparedEvalRun
    from tests.evaluation.builders import MeasuredResults
    from tests.evaluation.recorded_runs import record

    eval_config(maze)
    write_rollout(maze.workspace.rollouts_dir / "multiply")
    maze.patch.setenv("OPENAI_API_KEY", "sk-golden-canary")
    directory = maze.workspace.evals_dir / "calm-fern-1"
    outcomes = [[1.0, 0.0], [1.0, "agent"]]

    async def run_eval(prepared: PreparedEvalRun, hooks: RunHooks) -> RunSummary:
        plan = RunPlan(directory=RunDirectory(directory), total=4, pending=4)
        hooks.plan(plan)
        hooks.stage("starting the rollout's server")
        metrics = MeasuredResults(rows=2, n=2)
        for row, attempts in enumerate(outcomes):
            for attempt, outcome in enumerate(attempts):
                metrics.set_result(record(row, attempt, outcome))
        return RunSummary(
            run_dir=directory,
            local_run_id="0" * 32,
            total_work_items=4,
            dispatched=4,
            succeeded=3,
            failed=1,
            skipped=0,
            pending=0,
            resumed=0,
            stop=None,
            duration_ms=61500,
            metrics=metrics.summary(),
            failures=(),
            rows=prepared.selection.drawn,
        )

    maze.patch.setattr("osmosis_ai.services.eval_runs.run.run_eval", run_eval)


DEMO_STEPS = {
    "osmosis platform start --port 0 --login &": "",
    "git push -u origin main && osmosis platform connect ../origin.git": "",
    "osmosis secret set DEMO_API_KEY --env DEMO_API_KEY": "",
    "osmosis dataset upload data/multiply.jsonl --wait --yes": "200 rows",
    "osmosis eval submit configs/eval/multiply.toml --watch --yes": "400/400 attempts, 4.6s",
    "osmosis eval download calm-fern-1": "",
}


def finished_demo(maze: Maze) -> None:
    """Replace the demo's evaluation by its recorded result."""
    from osmosis_ai.evaluation.conversation import Conversation, ConversationStep, ToolExchange
    from osmosis_ai.services import demo
    from osmosis_ai.services.demo import DemoEvaluation, DemoOutcome, DemoSample, Scratch, Show

    def run(scratch: Scratch, *, show: Show, **_: Any) -> DemoOutcome:
        for command, result in DEMO_STEPS.items():
            with show(command) as tell:
                if result:
                    tell(result)
        results = scratch.workspace / ".osmosis" / "evals" / "calm-fern-1"
        call = ToolExchange("multiply", {"a": 11, "b": 46}, result="506", call_id="1")
        steps = [
            ConversationStep(1, "user", "Compute 11 * 46."),
            ConversationStep(2, "assistant", "", exchanges=[call]),
            ConversationStep(3, "assistant", "#### 506"),
        ]
        conversation = Conversation(steps, facts={"label": "506"})
        estimates = {
            "counts": {"planned": 400, "scored": 400},
            "pass_rate": {"value": 0.4175, "low": 0.369, "high": 0.468},
            "pass_at_k": {"2": {"value": 0.672}, "4": {"value": 0.89}},
            "pass_hat_k": {"2": {"value": 0.163}, "4": {"value": 0.01}},
        }
        evaluation = DemoEvaluation(
            name="calm-fern-1",
            results=results,
            metrics={"summary": {}, "estimates": estimates},
            complete=True,
            sample=DemoSample(0, 0, 1.0, conversation),
            run={"run_name": "demo", "metrics": {}},
        )
        return DemoOutcome(evaluation)

    maze.patch.setattr(demo, "run_demo", run)
    maze.patch.setattr("osmosis_ai.cli.demo._program", lambda: "osmosis")


def shipped_model(maze: Maze) -> None:
    """A model with shipped sizes, on a machine that always has the same memory and no GPU."""
    config = MINIMAL_TRAINING.replace("openai/gpt-5-mini", "Qwen/Qwen3.6-35B-A3B")
    file("configs/training/multiply.toml", config)(maze)
    maze.patch.setattr("osmosis_ai.services.training_estimate.own_gpu", lambda: None)
    maze.patch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 << 18}.__getitem__)
    maze.patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "absent")


CASES = (
    Case("validate -m golden_loop:agent_loop", loop),
    Case("test -m golden_loop:agent_loop -d rows.jsonl --model openai/gpt-5-mini", loop, screen="rich"),
    Case(
        "eval -m golden_loop:agent_loop -d rows.jsonl --eval-fn golden_loop:exact --model openai/gpt-5-mini --name echo-1",
        loop,
    ),
    Case(
        "serve -m golden_loop:agent_loop --local --host 127.0.0.1 --port 0",
        together(loop, server_stops_at_once),
    ),
    Case("eval run configs/eval/multiply.toml --yes", finished_evaluation, screen="rich"),
    Case("view --no-open", viewer_stops_at_once),
    Case("eval rubric -d records.jsonl -r clarity -o results.json", rubric_and_judge, screen="rich"),
    Case("eval-rubric --rubric clarity --data records.jsonl -o results.json", rubric_and_judge),
    Case("preview --path rubric_configs.yaml", rubric_and_judge),
    Case("check --no-import", eval_config),
    Case("demo --keep-dir ../scratch", finished_demo, screen="rich"),
    Case("train estimate configs/training/multiply.toml --gpu H100", shipped_model, screen="rich"),
)
