"""Replies that were truncated, filtered or refused: counted in every output of a run, and found by `eval show`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.api.blob_server import serve
from tests.cli.agent_loops.classic_project import project_with
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.eval_replies import DETAIL
from tests.cli.maze import Maze
from tests.cli.test_eval_run import World
from tests.evaluation.comparison.builders import write_journalled_run
from tests.evaluation.rollouts import AGENT, write_rollout
from tests.standin_model import Reply, StandInModel

REFUSED = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
STREAMING = (
    AGENT.replace('"messages": ctx.prompt}', '"messages": ctx.prompt, "stream": "stream" in said}')
    .replace(
        "body = await reply.json()",
        'text = await reply.text()\n            body = json.loads(text) if text[0] == "{" else {"choices": [{"message": '
        '{"role": "assistant", "content": "a stream"}}]}',
    )
    .replace("import asyncio\n", "import asyncio\nimport json\n", 1)
)


def respond(body: dict[str, Any]) -> Reply:
    said = body["messages"][-1]["content"]
    if "cut" in said:
        return Reply(content="half an", finish_reason="length")
    if "filter" in said:
        return Reply(content="", finish_reason="content_filter")
    if "refuse" in said:
        if body.get("stream"):
            deltas = [
                {"role": "assistant", "content": ""},
                {"refusal": "I cannot"},
                {"refusal": " help."},
                {},
            ]
            chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
            chunks[-1]["choices"][0]["finish_reason"] = "stop"
            return Reply(chunks=[*chunks, b"data: [DONE]\n\n"])
        return Reply(choice_extra={"message": REFUSED})
    return Reply(content="ok", finish_reason="MAX_TOKENS" if "old" in said else None)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with StandInModel(respond) as model:
        world = World(tmp_path, model)
        write_rollout(world.workspace.rollouts_dir / "multiply", STREAMING)
        yield world


@pytest.mark.e2e
async def test_a_run_counts_truncated_filtered_and_refused_replies(world: World) -> None:
    world.rows(
        [
            "fine",
            "cut",
            "filter",
            "refuse",
            "old",
            "stream fine",
            "stream cut",
            "stream filter",
            "stream refuse",
        ]
    )
    outcome = await world.run("--name", "seen")
    assert (outcome.status, outcome.resource["succeeded"]) == (0, 9), outcome.err
    counted = {
        "truncated": 3,
        "filtered": 2,
        "refused": 2,
        "affected": 7,
        "known_samples": 9,
        "recorded_samples": 9,
    }
    warning = "7 of 9 attempts (77.8 %) have a model reply that was truncated (3), filtered (2), refused (2)"
    assert outcome.resource["metrics"]["estimates"]["finish"] == counted
    assert outcome.resource["headline"]["warnings"] == [warning]
    directory = Path(outcome.resource["output_path"])
    assert json.loads((directory / "metrics.json").read_text())["estimates"]["finish"] == counted
    trajectory = json.loads((directory / "trajectories" / "row_1_run_0.json").read_text())
    calls = [step["metrics"]["extra"] for step in trajectory["steps"] if "metrics" in step]
    assert [call["finish_reason"] for call in calls] == ["length"]

    seen = await world.osmosis("info", "seen", "--plain")
    for line in (
        "Truncated (token limit)\t3 of 9 attempts",
        "Filtered\t2 of 9 attempts",
        "Refused\t2 of 9 attempts",
    ):
        assert line in seen.out
    assert warning in seen.out
    rows = {
        finish: [each["row"] for each in json.loads(found.out)["data"]["samples"]]
        for finish in ("length", "content_filter", "refusal")
        for found in [await world.osmosis("show", "seen", "--finish", finish, "--json")]
    }
    assert rows == {"length": [1, 4, 6], "content_filter": [2, 7], "refusal": [3, 8]}


@pytest.mark.e2e
async def test_an_agent_loop_s_replies_are_counted(tmp_path: Path) -> None:
    async with StandInModel(lambda _: Reply(content="half an", finish_reason="length")) as model:
        project = project_with(tmp_path, model)
        project.rows({"user_prompt": "one"}, {"user_prompt": "two"})
        outcome = await project.eval("-o", "out.json", "--name", "cut", "--json")
        assert outcome.status == 0, outcome.err
        results = json.loads((project.root / "out.json").read_text())
        assert [run["finish_reasons"] for row in results["rows"] for run in row["runs"]] == [
            {"length": 1}
        ] * 2
        metrics = json.loads((Path(results["summary"]["run_dir"]) / "metrics.json").read_text())
        assert metrics["estimates"]["finish"]["truncated"] == 2


@pytest.fixture
def downloadable(maze: Maze) -> Iterator[DownloadableRun]:
    with serve() as store:
        yield DownloadableRun(maze, store)


def reasons(count: int, *flagged: str) -> dict[tuple[int, int], dict[str, int]]:
    """Return the finish reasons of one attempt on each of so many rows, the first ones flagged."""
    return {(row, 0): {flagged[row] if row < len(flagged) else "stop": 1} for row in range(count)}


@pytest.mark.parametrize(("flagged", "warns"), [(["length"], False), (["length", "refusal"], True)])
def test_a_warning_appears_above_five_percent_of_the_attempts(
    maze: Maze, flagged: list[str], warns: bool
) -> None:
    directory = maze.workspace.evals_dir / "fern"
    write_journalled_run(directory, [[1.0]] * 20, finish_reasons=reasons(20, *flagged))
    document = maze.osmosis("eval", "info", "fern", "--json").out
    assert json.loads(document)["data"]["metrics"]["estimates"]["finish"]["affected"] == len(flagged)
    assert ("have a model reply that was" in document) == warns


def test_an_attempt_counts_once_for_each_way_its_replies_ended(maze: Maze) -> None:
    several = {(0, 0): {"length": 3, "refusal": 1, "stop": 5}, (1, 0): {"stop": 2}}
    write_journalled_run(maze.workspace.evals_dir / "fern", [[1.0], [0.0], [0.0]], finish_reasons=several)
    estimates = json.loads(maze.osmosis("eval", "info", "fern", "--json").out)["data"]["metrics"]["estimates"]
    assert estimates["finish"] == {
        "truncated": 1,
        "filtered": 0,
        "refused": 1,
        "affected": 1,
        "known_samples": 2,
        "recorded_samples": 3,
    }
    shown = maze.osmosis("eval", "show", "fern", "--finish", "refusal", "--json").json["data"]["samples"]
    assert [each["finish_reasons"] for each in shown] == [several[0, 0]]
    call = {"prompt_tokens": 9, "extra": {"finish_reason": "length"}}
    said = {"steps": [{"source": "agent", "message": "half an", "metrics": call}]}
    directory = maze.workspace.evals_dir / "fern"
    (directory / "trajectories").mkdir()
    (directory / "trajectories" / "row_0_run_0.json").write_text(json.dumps(said))
    report = maze.workspace.root / "page.html"
    assert maze.osmosis("view", "fern", "--report", str(report)).status == 0
    assert "Truncated (token limit)" in report.read_text() and "1 of 2 attempts" in report.read_text()
    assert report.read_text().count(" · truncated</span>") == 1


def test_a_run_without_finish_reasons_says_that_they_are_unknown(maze: Maze) -> None:
    write_journalled_run(maze.workspace.evals_dir / "fern", [[1.0], [0.0]])
    estimates = json.loads(maze.osmosis("eval", "info", "fern", "--json").out)["data"]["metrics"]["estimates"]
    assert estimates["finish"] is None
    outcome = maze.osmosis("eval", "show", "fern", "--finish", "length")
    assert outcome.status == 0
    assert "No attempt of this run has a recorded finish reason." in outcome.out + outcome.err


@pytest.mark.parametrize("kind", ["jsonl", "inspect"])
def test_exported_files_have_the_finish_reasons(maze: Maze, kind: str) -> None:
    directory = write_journalled_run(
        maze.workspace.evals_dir / "fern", [[1.0], [0.0]], finish_reasons=reasons(2, "length")
    )
    target = maze.workspace.root / f"out.{'eval' if kind == 'inspect' else kind}"
    if kind == "inspect":
        (directory / "trajectories").mkdir()
        said = {"steps": [{"source": "user", "message": "?"}, {"source": "agent", "message": "half"}]}
        for row in range(2):
            (directory / "trajectories" / f"row_{row}_run_0.json").write_text(json.dumps(said))
    outcome = maze.osmosis("eval", "export", "fern", "--format", kind, "-o", str(target))
    assert outcome.status == 0, outcome.err
    if kind == "jsonl":
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        assert [line["finish_reasons"] for line in lines] == [{"length": 1}, {"stop": 1}]
    else:
        with ZipFile(target) as log:
            samples = [json.loads(log.read(f"samples/{row}_epoch_1.json")) for row in range(2)]
        stops = [each["output"]["choices"][0]["stop_reason"] for each in samples]
        assert stops == ["max_tokens", "stop"]


def test_samples_of_a_platform_are_found_by_their_finish_reason(downloadable: DownloadableRun) -> None:
    maze, ours = downloadable.maze, {"X-Osmosis-Capabilities": "eval-samples"}
    downloadable.holds({})
    maze.router.get(url__regex=r".*/api/cli/eval-runs/[^/]+$").respond(json=DETAIL, headers=ours)
    told = {"attempt": 0, "status": "success", "reward": 0.0}
    samples = [{**told, "row": 0}, {**told, "row": 1, "finish_reasons": {"content_filter": 1}}]
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples}, headers=ours)
    show = ("eval", "show", "platform:amber-otter-42", "--json", "--finish")
    (found,) = maze.osmosis(*show, "content_filter").json["data"]["samples"]
    assert (found["row"], found["finish_reasons"]) == (1, {"content_filter": 1})
    assert maze.osmosis(*show, "length").json["data"]["samples"] == []
