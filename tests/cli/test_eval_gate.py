"""`osmosis eval gate`: what a run proves, and how the command ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rubric.agreement import AgreementReport, SessionCounts
from tests.cli.eval_replies import DETAIL, METRICS, OWN, RESULTS
from tests.cli.maze import Maze, Outcome
from tests.evaluation.recorded_runs import passing, write_run


@pytest.fixture
def maze(maze: Maze) -> Maze:
    """With a run on this machine that passes 36 of 40 attempts on 10 rows."""
    write_run(maze.workspace.evals_dir / "good", passing(10, 4, 36))
    return maze


def gate(maze: Maze, run: str, *rules: str, mode: str = "--json") -> Outcome:
    return maze.osmosis("eval", "gate", run, *rules, mode)


@pytest.mark.parametrize(
    ("rules", "status", "word", "verdict"),
    [
        (("--min", "pass_rate=0.6", "--max", "unscored=0"), 0, "success", "pass"),
        (("--min", "pass_rate=0.6", "--min", "reward=0.6", "--min", "pass@2=0.7"), 0, "success", "pass"),
        (("--min", "pass_rate=0.85"), 3, "unclear", "unclear"),
        (("--max", "unscored=0.1"), 3, "unclear", "unclear"),
        (("--max", "pass_rate=0.5"), 1, "failed", "fail"),
        (("--min", "pass_rate=0.85", "--max", "reward=0.5"), 1, "failed", "fail"),
    ],
)
def test_a_run_passes_fails_or_is_too_small_to_tell(
    maze: Maze, rules: tuple[str, ...], status: int, word: str, verdict: str
) -> None:
    outcome = gate(maze, "good", *rules)
    envelope = outcome.json
    assert (outcome.status, envelope["status"], envelope["operation"]) == (status, word, "eval.gate")
    assert envelope["resource"]["verdict"] == verdict
    plain = gate(maze, "good", *rules, mode="--plain")
    assert (plain.status, plain.out.startswith(f"{verdict}: good ")) == (status, True)


def test_rates_are_percentages_and_rewards_are_not(maze: Maze) -> None:
    rules = ("--min", "pass_rate=0.85", "--min", "reward=0.6")
    plain = gate(maze, "good", *rules, mode="--plain").out
    assert re.search(r"pass_rate >= 85%: it is between \d\d\.\d% and \d\d\.\d% \(", plain)
    assert re.search(r"reward >= 0\.6: it is at least 0\.\d+ with 95% confidence", plain)
    shown = maze.osmosis("eval", "gate", "good", *rules).out
    assert re.search(r"pass_rate >= 85% +│ +90\.0% │", shown) and re.search(r"reward >= 0\.6 +│ +0\.9", shown)


@pytest.mark.parametrize(
    ("threshold", "value", "said"), [(0.0, 1.0, True), (1.0, 0.9, False), (float("-inf"), 0.9, False)]
)
def test_the_reward_at_which_samples_pass_is_told_where_it_is_unusual(
    maze: Maze, threshold: float, value: float, said: bool
) -> None:
    metrics = maze.workspace.evals_dir / "good" / "metrics.json"
    metrics.write_text(json.dumps({"summary": {"pass_threshold": threshold}}))
    (rate,) = gate(maze, "good", "--min", "pass_rate=0.85").json["resource"]["rules"]
    assert rate["value"] == value
    assert ("a sample passes at a reward of 0." in rate["reason"]) == said


def test_rows_cannot_be_left_out_of_a_run_by_its_manifest(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "cut", [[1.0]] * 60 + [[0.0]] * 40)
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"0-99"', '"0-59"'))
    outcome = gate(maze, "cut", "--min", "pass_rate=0.9")
    assert outcome.status not in (0, 3)
    assert "a result of row 60, attempt 0, which is not part of the run" in outcome.err


def test_an_unfinished_run_and_one_without_scores_prove_nothing(maze: Maze) -> None:
    outcomes = passing(10, 4, 40)
    outcomes[9][3] = ""
    write_run(maze.workspace.evals_dir / "part", outcomes)
    for rule in (("--min", "pass_rate=0.1"), ("--max", "pass_rate=0.1")):
        outcome = gate(maze, "part", *rule)
        assert (outcome.status, outcome.json["resource"]["verdict"]) == (3, "unclear")
        assert "1 of 40 attempts are pending" in outcome.json["resource"]["rules"][0]["reason"]

    write_run(maze.workspace.evals_dir / "broken", [["provider"] * 4] * 10)
    outcome = gate(maze, "broken", "--min", "pass_rate=0.1")
    assert outcome.status == 3
    assert outcome.json["resource"]["rules"][0]["reason"] == "no attempt of the run has a score."
    assert gate(maze, "broken", "--max", "infrastructure=0.5").status == 1
    assert gate(maze, "broken", "--min", "pass@3=0.1").status == 3


# A run of a platform


def finished(maze: Maze, metrics: dict[str, Any], **results: Any) -> None:
    run = {**OWN, "status": "finished"}
    detail = {**DETAIL, "eval_run": run, "results": {**RESULTS, **results}}
    maze.get("/eval-runs/amber-otter-42").respond(json=detail)
    maze.get("/eval-runs/er_8/metrics").respond(json=metrics)


def test_a_run_that_was_executed_elsewhere_is_gated_where_it_is_asked_for_alone(maze: Maze) -> None:
    origin = {"local_run_id": "9f0c" * 8, "sdk_version": "0.3.13", "git_head": "1a2b3c4d", "git_dirty": True}
    run = {**OWN, "status": "finished", "imported": origin}
    maze.get("/eval-runs/amber-otter-42").respond(json={**DETAIL, "eval_run": run, "results": RESULTS})
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    refused = gate(maze, "amber-otter-42", "--min", "pass_rate=0.1")
    assert (refused.status, refused.error["code"]) == (1, "CONFLICT")
    assert "was imported (executed elsewhere, with 0.3.13 at 1a2b3c4 and uncommitted changes)" in refused.err
    assert "--allow-imported" in refused.err
    against = ("--against", "platform:amber-otter-42", "--margin", "pass_rate=0.5")
    assert "was imported" in gate(maze, "good", *against).error["message"]
    allowed = gate(maze, "amber-otter-42", "--min", "pass_rate=0.1", "--allow-imported")
    assert allowed.json["resource"]["verdict"] in ("pass", "fail", "unclear")


def test_of_a_platform_that_only_counts_each_row_counts_once(maze: Maze) -> None:
    overview = {"total_samples": 40, "completed_samples": 40, "graded": 40, "passed": 40, "failed": 0}
    points = [{"k": 1, "value": 1.0}, {"k": 2, "value": 1.0}]
    finished(maze, {"status": "finished", "overview": overview, "pass_at_k": points}, sampled_rows=10)
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.74", "--min", "pass@2=0.74")
    assert outcome.status == 0
    for rule in outcome.json["resource"]["rules"]:
        # 10 of 10 rows: 0.05 ** (1 / 10).
        assert rule["at_least"] == pytest.approx(0.7411, abs=1e-4)
        assert "does not report the row of each sample" in rule["reason"]
    (unclear,) = gate(maze, "amber-otter-42", "--max", "failed=0.2").json["resource"]["rules"]
    assert unclear["verdict"] == "unclear" and unclear["settles"].startswith("about 1")
    reward = gate(maze, "amber-otter-42", "--min", "reward=0.5", "--max", "infrastructure=0.1")
    assert (reward.status, [rule["value"] for rule in reward.json["resource"]["rules"]]) == (3, [None, None])


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_of_a_platform_that_did_not_finish_proves_nothing(maze: Maze, status: str) -> None:
    run = {**OWN, "status": status, "error": "It said:\n::error::forged"}
    maze.get("/eval-runs/amber-otter-42").respond(json={**DETAIL, "eval_run": run})
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.1")
    assert outcome.status == 3
    assert f"the run is {status}, not finished" in outcome.json["resource"]["rules"][0]["reason"]
    # An error of an agent is no command to the job that gates it.
    plain = gate(maze, "amber-otter-42", "--min", "pass_rate=0.1", mode="--plain")
    assert (plain.status, "forged" in plain.out) == (3, True)
    assert not [line for line in (plain.out + plain.err).splitlines() if line.startswith("::")]


# A judge's result file


def results_file(tmp_path: Path, *judges: dict[str, Any], pending: int = 0) -> str:
    counts = SessionCounts(
        records=20,
        models=len(judges),
        runs=3,
        calls=60 + pending,
        scored_calls=60,
        unscored_calls=0,
        pending_calls=pending,
        scored_records=20,
        labelled_records=0,
        copied_records=0,
    )
    report = AgreementReport(0.95, 0.0, 1.0, seed=0, counts=counts, judges=(), panel=None, disputed=())
    trust = {**report.to_json(), "judges": list(judges)}
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"trust": trust}))
    return str(path)


def judge(model: str, mean: float, alpha: float) -> dict[str, Any]:
    def figure(value: float) -> dict[str, Any]:
        return {"value": value, "low": value - 0.1, "high": value + 0.1, "records": 20, "scores": 60}

    figures = {"mean": figure(mean), "alpha": figure(alpha)}
    return {"model": model, "unscored_calls": 0, "figures": figures}


def test_the_scores_of_a_judge_are_gated_and_of_a_panel_the_weakest(maze: Maze, tmp_path: Path) -> None:
    one = results_file(tmp_path, judge("a", 0.8, 0.95))
    assert gate(maze, one, "--min", "score=0.7", "--min", "alpha=0.8", "--max", "unscored=0").status == 0
    assert gate(maze, one, "--min", "score=0.75").status == 3
    assert gate(maze, one, "--min", "alpha=1.1").status == 1
    two = results_file(tmp_path, judge("a", 0.8, 0.95), judge("b", 0.5, 0.9))
    outcome = gate(maze, two, "--min", "score=0.7")
    assert (outcome.status, "the weakest of 2 judges is b" in outcome.out) == (1, True)
    pending = gate(maze, results_file(tmp_path, judge("a", 0.8, 0.95), pending=3), "--min", "score=0.1")
    assert (pending.status, pending.json["resource"]["run"]["status"]) == (3, "incomplete")
    document = json.loads(Path(one).read_text())
    (tmp_path / "clamped.json").write_text(json.dumps({**document, "counts": {"outside_scale": 25}}))
    clamped = gate(maze, str(tmp_path / "clamped.json"), "--min", "score=0.1").json["resource"]
    assert clamped["warnings"] == ["25 of 60 scores outside the scale, clamped."]
    without_figure = {**judge("a", 0.8, 0.9), "figures": {"mean": 5}}
    for trust in ({**document["trust"], "judges": []}, {**document["trust"], "judges": [without_figure]}, []):
        (tmp_path / "other.json").write_text(json.dumps({"trust": trust}))
        outcome = gate(maze, str(tmp_path / "other.json"), "--min", "score=0.1")
        assert "is not a result file" in outcome.error["message"]
    (tmp_path / "deep.json").write_text("[" * 200_000)
    outcome = gate(maze, str(tmp_path / "deep.json"), "--min", "score=0.1")
    assert "is not a result file" in outcome.error["message"]


# What is no gate


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((), "at least one rule"),
        (("--min", "pas_rate=0.5"), "did you mean 'pass_rate'?"),
        (("--max", "unscored"), "--max METRIC=NUMBER"),
        (("--min", "reward=nan"), "has an invalid number: 'nan'"),
        (("--min", "pass@4=80"), "is a share, from 0 to 1: write 80% as 0.8"),
        (("--max", "cost_per_row=-1"), "is never below 0, got -1"),
        (("--min", "pass_rate=0.9", "--max", "pass_rate=0.1"), "No run meets both 'pass_rate >= 90%'"),
        (("--min", "alpha=0.5"), "a run has no metric 'alpha'"),
        (("--min", "pass@3=0.1"), "The run has no pass@3; it has pass@1, pass@2, pass@4"),
    ],
)
def test_a_rule_that_is_none_is_a_wrong_command_line_and_no_run_that_fails(
    maze: Maze, rules: tuple[str, ...], said: str
) -> None:
    outcome = gate(maze, "good", *rules)
    assert (outcome.status, outcome.error["code"]) == (2, "VALIDATION")
    assert said in outcome.error["message"]


def test_a_run_that_is_nowhere_is_said_to_be(maze: Maze) -> None:
    maze.get("/eval-runs/god").respond(404, json={"error": "no such run"})
    outcome = gate(maze, "god", "--min", "reward=0")
    assert (outcome.status, outcome.error["code"]) == (1, "NOT_FOUND")
    assert "neither on this machine nor on the platform" in outcome.error["message"]


def test_rewards_are_bounded_by_their_range_or_by_what_was_observed(maze: Maze) -> None:
    # Drawn from rewards that are 1 in 93%, 0.37 in 5% and 0 in 2% of attempts, 0.949 on average.
    graded: list[list[float | str | None]] = [[1.0] * 9 for _ in range(13)]
    graded[2][4] = graded[7][0] = graded[7][5] = 0.37
    write_run(maze.workspace.evals_dir / "graded", graded)
    outcome = gate(maze, "graded", "--min", "reward=0.96", "--reward-range", "0,1")
    (rule,) = outcome.json["resource"]["rules"]
    assert (outcome.status, rule["verdict"], rule["number"]["method"]) == (3, "unclear", "korn-graubard")
    assert 0.7 < rule["at_least"] < 0.949 < rule["value"] < rule["at_most"] < 1

    write_run(maze.workspace.evals_dir / "few", [[0.5], [0.9], [0.95]])
    outcome = gate(maze, "few", "--min", "reward=0.5")
    (rule,) = outcome.json["resource"]["rules"]
    assert (outcome.status, rule["at_least"], rule["at_most"]) == (3, 0.5, 0.95)
    assert (rule["number"]["low"], rule["number"]["high"]) == (0.5, 0.95)
    assert "between 0.5 and 0.95" in rule["reason"]
    assert "between 0.5 and 0.95" in gate(maze, "few", "--min", "reward=0.5", mode="--plain").out
