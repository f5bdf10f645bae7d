"""`osmosis eval-rubric`: records of one rubric of a YAML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Outcome
from tests.cli.rubric_judging import configure, result_of, write
from tests.rubric.judge_server import JudgeServer


def classic(cli: Cli, *arguments: str) -> Outcome:
    return cli("eval-rubric", "--rubric", "clarity", "--data", "data.jsonl", *arguments)


def test_the_classic_command_writes_the_documented_document(cli: Cli, judge: JudgeServer) -> None:
    configure(score_max=1)
    line = {
        "id": "i-1",
        "conversation_id": "ticket-001",
        "rubric_id": " CLARITY ",
        "solution_str": "  an answer\n with   space ",
        "metadata": {"channel": "mail"},
        "extra_info": {"metadata": {"b": 2}, "secret": "not shown to the judge"},
    }
    write(line, {"rubric_id": "other", "solution_str": "skipped"}, {"solution_str": "no rubric"})
    outcome = classic(cli, "-n", "2", "-o", "results.txt")
    assert outcome.status == 0
    document = result_of("results.txt")
    keys = ("rubric_id", "provider", "model", "number", "rubric_source", "config_path", "data_path")
    assert [document[key] for key in keys[:4]] == ["clarity", "openai", "from-yaml", 2]
    assert {*keys, "generated_at"} <= document.keys()
    assert document["rubric_source"].endswith("rubric_configs.yaml:rubrics[0]")
    assert "output_identifier" not in document
    spread = {"average": 0.5, "variance": 0.0, "stdev": 0.0, "min": 0.5, "max": 0.5}
    counts = {"total_runs": 2, "success_count": 2, "failure_count": 0}
    assert document["overall_statistics"] == {**spread, **counts}
    (record,) = document["records"]
    assert (record["id"], record["record_index"], record["conversation_id"]) == ("i-1", 1, "ticket-001")
    assert record["input_record"] == line
    run = record["runs"][1]
    assert (run["run_index"], run["status"], run["score"], run["error"]) == (2, "success", 0.5, None)
    assert run["preview"] == "an answer with space"
    assert run["raw"]["choices"][0]["message"]["content"].startswith("{")
    assert run["started_at"] <= run["completed_at"] and run["duration_seconds"] >= 0
    prompt = judge.requests[0].body["messages"][1]["content"]
    assert '"dataset_metadata"' in prompt and "not shown to the judge" not in prompt


def test_the_classic_command_fails_when_runs_fail_and_still_writes(cli: Cli, judge: JudgeServer) -> None:
    configure()
    write(
        {"rubric_id": "clarity", "solution_str": "[status 400]"},
        {"rubric_id": "clarity", "solution_str": "ok"},
    )
    outcome = classic(cli, "-o", "results")
    assert outcome.status == 1 and "Run 01 [ERROR]" in outcome.out
    write({"rubric_id": "other", "solution_str": "one"})
    assert "No records in 'data.jsonl' reference rubric 'clarity'." in classic(cli).err
    (path,) = (found for found in Path("results").glob("rubric_eval_result_*.json"))
    document = result_of(str(path))
    assert document["output_identifier"] == path.stem.rpartition("_")[2]
    assert document["overall_statistics"]["failure_count"] == 1
    run = document["records"][0]["runs"][0]
    assert (run["status"], run["score"], run["outcome"]) == ("error", None, "failed")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rubric", " "], "Rubric identifier cannot be empty."),
        (["--rubric", "Clarity"], "Available ids: clarity"),
        (["-o", "folder.json"], "Output path 'folder.json' is a directory."),
    ],
)
def test_the_classic_command_refuses_before_any_call(
    cli: Cli, judge: JudgeServer, arguments: list[str], problem: str
) -> None:
    configure()
    write({"rubric_id": "clarity", "solution_str": "one"})
    Path("folder.json").mkdir()
    outcome = classic(cli, *arguments)
    assert (outcome.status, outcome.out, judge.calls) == (1, "", 0)
    assert problem in outcome.err


def test_a_missing_key_of_the_classic_command_leaves_nothing_behind(
    cli: Cli, judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(model_info={"provider": "openai", "model": "m", "api_key_env": "ABSENT_API_KEY"})
    write({"rubric_id": "clarity", "solution_str": "one"})
    outcome = classic(cli, "-o", "results")
    assert 'export ABSENT_API_KEY="..."' in outcome.err and not Path("results").exists()
