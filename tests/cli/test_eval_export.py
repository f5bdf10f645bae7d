"""`osmosis eval export`: a run's samples for other tools, from its journal or from what a platform keeps."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.api.blob_server import BlobServer
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.eval_replies import DETAIL
from tests.cli.maze import Maze
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import journal_of, write_run
from tests.viewer.builders import STEPS, trajectory

USER = {"source": "user", "message": [{"type": "text", "text": "2 * 3?"}]}
TRAJECTORY = trajectory(
    *[STEPS[0], USER, *STEPS[2:]],
    label="6",
    metadata={"level": "easy"},
    sample_extra_fields={"grader_notes": {"notes": "as it should", "parts": {"format": 1}}},
    request_extra_fields={"source_row_index": 41},
)
CALL = {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}
ASKED = {
    "reasoning_content": "I multiply.",
    "tool_calls": [{"id": "c1", "type": "function", "function": CALL}],
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Use the tool."},
    {"role": "user", "content": "2 * 3?"},
    {"role": "assistant", "content": "**See**.", **ASKED},
    {"role": "tool", "content": "\x1b[31m6\x1b[0m\x1b]0;title\x07", "tool_call_id": "c1"},
    {"role": "assistant", "content": "#### 6"},
]


@pytest.fixture
def maze(maze: Maze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Maze:
    """With a run on this machine: two rows of two attempts, one scored, one not, one failed, one pending."""
    directory = write_run(maze.workspace.evals_dir / "mixed", [[1.0, None], ["provider", ""]])
    (directory / "trajectories").mkdir()
    (directory / "trajectories" / "row_0_run_0.json").write_bytes(TRAJECTORY)
    (directory / "trajectories" / "row_0_run_1.json").write_text("{cut off")
    return maze


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl(maze: Maze, tmp_path: Path) -> None:
    outcome = maze.osmosis("eval", "export", "mixed", "-o", str(tmp_path / "out.jsonl"), "--json")
    assert outcome.status == 0
    assert outcome.json["operation"] == "eval.export"
    assert outcome.resource == {
        "run": "mixed",
        "format": "jsonl",
        "path": str(tmp_path / "out.jsonl"),
        "samples": 3,
        "progress": "incomplete",
    }
    assert "the run is incomplete" in outcome.err
    first, unscored, failed = read_lines(tmp_path / "out.jsonl")
    known = {key: value for key, value in first.items() if value is not None}
    assert known == {
        "run": "mixed",
        "row_index": 0,
        "source_row_index": 0,
        "attempt": 0,
        "rollout_id": "row-0-run-0",
        "status": "success",
        "reward": 1.0,
        "passed": True,
        "duration_ms": 10,
        "row_digest": f"{1:016x}" * 2,
        "notes": "as it should",
        "parts": {"format": 1.0},
        "label": "6",
        "answer": "#### 6",
        "metadata": {"level": "easy"},
        "messages": MESSAGES,
    }
    assert (unscored["reward"], unscored["passed"], unscored["messages"]) == (None, None, [])
    assert (failed["status"], failed["boundary"], failed["error_type"]) == ("failed", "provider", "error")


def test_stdout(maze: Maze) -> None:
    outcome = maze.osmosis("eval", "export", "mixed", "-o", "-")
    assert (outcome.status, Path("-").exists()) == (0, False)
    statuses = [json.loads(line)["status"] for line in outcome.out.splitlines()]
    assert statuses == ["success", "success", "failed"]
    assert "the run is incomplete" in outcome.err
    for words in (("--format", "parquet"), ("--json",)):
        refused = maze.osmosis("eval", "export", "mixed", "-o", "-", *words)
        assert (refused.status, refused.out) == (2, "") and "--format jsonl" in refused.err


def test_parquet(maze: Maze, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    maze.osmosis("eval", "export", "mixed", "-o", str(tmp_path / "out.jsonl"))
    outcome = maze.osmosis("eval", "export", "mixed", "--format", "parquet", "-o", str(tmp_path))
    assert outcome.status == 0
    table = pq.read_table(tmp_path / "mixed.parquet")
    lines = read_lines(tmp_path / "out.jsonl")
    assert table.column_names == list(lines[0])
    nested = ("scores", "parts", "metadata", "messages")
    rows = [
        {key: json.loads(value) if key in nested and value else value for key, value in row.items()}
        for row in table.to_pylist()
    ]
    assert rows == lines


def test_existing_file(maze: Maze, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    refused = maze.osmosis("eval", "export", "mixed", "-o", str(target), "--json")
    assert (refused.status, refused.error["code"]) == (1, "CONFLICT")
    assert target.read_text() == "mine"
    assert maze.osmosis("eval", "export", "mixed", "-o", str(target), "--overwrite").status == 0


def test_inspect_tokens(maze: Maze, tmp_path: Path) -> None:
    directory = write_run(maze.workspace.evals_dir / "counted", [[1.0]])
    target = tmp_path / "counted.eval"
    export = ("eval", "export", "counted", "--format", "inspect", "--overwrite", "-o", str(target))
    for known, usage in (
        ({"tokens": 7, "prompt_tokens": 5, "completion_tokens": 2}, {"input_tokens": 5, "output_tokens": 2}),
        ({"tokens": 7}, {}),
    ):
        (directory / "events.jsonl").write_bytes(journal_of([record(**known)]))
        assert maze.osmosis(*export).status == 0
        with zipfile.ZipFile(target) as archive:
            stats = json.loads(archive.read("header.json"))["stats"]
        assert stats["model_usage"] == {"unknown": {"total_tokens": 7, **usage}}


def test_inspect_path_not_utf8(maze: Maze, tmp_path: Path) -> None:
    directory = write_run(maze.workspace.evals_dir / "oddly", [[1.0]])
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["provenance"]["dataset_path"] = "/caf\udce9/rows.jsonl"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    target = tmp_path / "oddly.eval"
    outcome = maze.osmosis("eval", "export", "oddly", "--format", "inspect", "-o", str(target))
    assert outcome.status == 0, outcome.err
    with zipfile.ZipFile(target) as archive:
        assert b"/caf?/rows.jsonl" in archive.read("header.json")


def test_invalid_runs(maze: Maze, tmp_path: Path) -> None:
    maze.get("/eval-runs/nothing").respond(404, json={"error": "no such run", "code": "NOT_FOUND"})
    nowhere = maze.osmosis("eval", "export", "nothing")
    assert "Run 'nothing' not found, neither on this machine nor on the platform" in nowhere.err
    assert maze.osmosis("eval", "export", "mixed", "--format", "csv").status == 2
    damaged = tmp_path / "downloaded"
    damaged.mkdir()
    (damaged / "summary.jsonl").write_text("[1]\n")
    assert "lacks the numbers (metrics.json)" in maze.osmosis("eval", "export", str(damaged)).err
    (damaged / "metrics.json").write_text("{}")
    sample = {"row_index": 0, "run_index": 0, "rollout_id": "a", "status": "success"}
    for damage in ([1], {**sample, "tokens": [1]}, {**sample, "status": "odd"}):
        (damaged / "summary.jsonl").write_text(json.dumps(damage) + "\n")
        outcome = maze.osmosis(
            "eval", "export", str(damaged), "--format", "parquet", "-o", str(tmp_path / "x.jsonl")
        )
        assert "has an invalid line: 1. Download the run again" in outcome.err
    assert not (tmp_path / "x.jsonl").exists()


def test_hosted_run_is_downloaded_first(stored: DownloadableRun, tmp_path: Path) -> None:
    sample = {"row_index": 0, "run_index": 0, "rollout_id": "row-0-run-0", "status": "success", "reward": 0.5}
    summary = {"pass_threshold": 0.5, "total_samples": 1}
    facts = {"name": "amber-otter-42", "status": "finished", "model_name": "openai/gpt-5-mini"}
    stored.described({**DETAIL, "eval_run": {**DETAIL["eval_run"], "status": "finished"}})
    stored.holds(
        {
            "metrics.json": json.dumps({"eval_run": facts, "summary": summary}).encode(),
            "summary.jsonl": json.dumps(sample).encode() + b"\n",
            "trajectories/row_0_run_0.json": TRAJECTORY,
        }
    )
    target = tmp_path / "out.jsonl"
    outcome = stored.maze.osmosis("eval", "export", "amber-otter-42", "-o", str(target), "--json")
    assert (outcome.status, outcome.err) == (0, "")
    (line,) = read_lines(target)
    assert (line["model"], line["passed"], line["label"]) == ("openai/gpt-5-mini", True, "6")
    assert (line["source_row_index"], line["messages"]) == (41, MESSAGES)


def test_journal_fills_missing_columns(stored: DownloadableRun, tmp_path: Path) -> None:
    sample = {"row_index": 0, "run_index": 0, "rollout_id": "a", "status": "success", "tokens": 7}
    other = {**sample, "row_index": 1, "rollout_id": "b"}
    said = [{"model": "judge-1", "explanation": "half of it"}]
    recorded = record(0, tokens=None, scores={"agent": 0.5}, judge_calls=1, judgements=said, lost_attempts=2)
    journal = journal_of([record(0, lost_attempts=9), recorded])
    stored.described(
        {**DETAIL, "eval_run": {**DETAIL["eval_run"], "status": "finished"}},
        headers={"X-Osmosis-Capabilities": "eval-journals"},
    )
    stored.holds(
        {
            "metrics.json": json.dumps({"eval_run": {"status": "finished"}, "summary": {}}).encode(),
            "summary.jsonl": b"".join(json.dumps(each).encode() + b"\n" for each in (sample, other)),
            "events.jsonl": journal,
        }
    )
    target = tmp_path / "out.jsonl"
    export = ("eval", "export", "amber-otter-42", "-o", str(target), "--overwrite")
    assert stored.maze.osmosis(*export).status == 0
    asked = stored.manifest.calls.last.request.url.params["types"]
    assert asked == "metrics,trajectories,journal"
    first, second = read_lines(target)
    assert (first["scores"], first["judgements"], first["lost_attempts"]) == ({"agent": 0.5}, said, 2)
    assert (first["judge_calls"], first["tokens"]) == (1, 7)  # what a platform has filled in stays
    assert (second["scores"], second["rollout_id"]) == (None, "b")
    (stored.directory / "events.jsonl").write_bytes(journal[:-5] + b"\n")
    refused = stored.maze.osmosis("eval", "export", str(stored.directory), "--overwrite")
    assert refused.status == 1
    assert "is damaged at line 2" in refused.err and "--type journal" in refused.err


@pytest.mark.e2e
def test_inspect_ai_reads_the_log(maze: Maze, tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
    from inspect_ai.model import ChatMessageAssistant

    target = tmp_path / "mixed.eval"
    assert maze.osmosis("eval", "export", "mixed", "--format", "inspect", "-o", str(target)).status == 0
    log = read_eval_log(str(target))
    assert (log.status, log.eval.task_display_name, log.eval.config.epochs) == ("cancelled", "mixed", 2)
    assert log.samples is not None and log.results is not None
    samples = {(sample.id, sample.epoch): sample for sample in log.samples}
    first, unscored, failed = samples[0, 1], samples[0, 2], samples[1, 1]
    assert (first.id, first.epoch, first.target, first.metadata["level"]) == (0, 1, "6", "easy")
    assert first.scores is not None
    assert first.scores["reward"].explanation == "as it should"
    assert first.scores["reward"].metadata == {"parts": {"format": 1.0}}
    roles = [message.role for message in first.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    called = first.messages[2]
    assert isinstance(called, ChatMessageAssistant) and called.tool_calls is not None
    assert (called.tool_calls[0].function, called.tool_calls[0].arguments) == ("multiply", {"a": 2, "b": 3})
    assert first.output.completion == "#### 6"
    assert first.scores["reward"].value == 1.0 and first.scores["passed"].value is True
    assert (unscored.scores, failed.error is not None) == ({}, True)
    rate = next(score for score in log.results.scores if score.name == "passed")
    assert rate.metrics["accuracy"].value == 1.0
    assert [each.id for each in read_eval_log_sample_summaries(str(target))] == [0, 0, 1]


@pytest.mark.parametrize("named", ["amber-otter-42", "platform:amber-otter-42"])
def test_waiting_platform_run(maze: Maze, store: BlobServer, named: str) -> None:
    run = DownloadableRun(maze, store)
    waiting = {**DETAIL["eval_run"], "status": "pending"}
    run.described({**DETAIL, "eval_run": waiting})
    refused = maze.osmosis("eval", "export", named)
    assert (
        refused.status == 1 and "has not started yet" in refused.err and "there is no run" not in refused.err
    )
    # Retried, it keeps what it had.
    run.described({**DETAIL, "eval_run": {**waiting, "revision": 1}})
    assert maze.osmosis("eval", "download", "amber-otter-42", "--yes").status == 0
    assert run.found()
