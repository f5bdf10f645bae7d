"""`osmosis eval gate` and `eval compare`: attempts without a score never help a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.eval_replies import DETAIL, METRICS, OWN, RESULTS
from tests.cli.maze import Maze, Outcome
from tests.decisions.builders import write_journalled_run
from tests.evaluation.recorded_runs import journal_of, passing, record, write_run

ROWS, HARD, ATTEMPTS = 117, 11, 4
EASY: list[list[float | None]] = [[1.0] * ATTEMPTS] * (ROWS - HARD)
CRASHES: list[list[float | None]] = [*EASY, *([[None] * ATTEMPTS] * HARD)]
WRONG: list[list[float | None]] = [*EASY, *([[0.0] * ATTEMPTS] * HARD)]


def gate(maze: Maze, run: str, *rules: str) -> Outcome:
    return maze.osmosis("eval", "gate", run, *rules, "--json")


def rules_of(outcome: Outcome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = outcome.json["resource"]["rules"]
    return found


def write(maze: Maze, name: str, rewards: Sequence[Sequence[float | None]]) -> Path:
    """Write a run on a dataset whose column ``half`` has two values."""
    lines = (
        json.dumps({"user_prompt": str(row), "ground_truth": "x", "half": row % 2}) + "\n"
        for row in range(len(rewards))
    )
    dataset = "".join(lines).encode()
    (maze.workspace.data_dir / "maze.jsonl").write_bytes(dataset)
    described = {
        "sha256": hashlib.sha256(dataset).hexdigest(),
        "selected_source_rows": f"0-{len(rewards) - 1}",
    }
    return write_journalled_run(
        maze.workspace.evals_dir / name,
        rewards,
        inputs={"dataset": described, "model_path": f"openai/{name}"},
        digests=[hashlib.md5(str(row).encode()).hexdigest() for row in range(len(rewards))],
        provenance={"dataset_name": "maze"},
    )


@pytest.mark.parametrize(
    "rule",
    [
        ("--min", "pass_rate=0.85"),
        ("--min", "pass@2=0.85"),
        ("--min", "pass^2=0.85"),
        ("--min", "reward=0.85", "--reward-range", "0,1"),
        ("--margin", "pass_rate=0.05", "--against", "base"),
        ("--margin", "pass@2=0.05", "--against", "base"),
        ("--margin", "reward=0.05", "--against", "base", "--reward-range", "0,1"),
        ("--margin", "pass_rate=0.05", "--against", "base", "--unpaired"),
    ],
    ids=" ".join,
)
def test_an_agent_that_crashes_on_hard_rows_passes_no_more_than_one_that_fails_them(
    maze: Maze, rule: tuple[str, ...]
) -> None:
    write(maze, "base", [*EASY, *([[1.0, 0.0, 1.0, 0.0]] * HARD)])
    write(maze, "crashes", CRASHES)
    write(maze, "wrong", WRONG)
    wrong, crashes = gate(maze, "wrong", *rule), gate(maze, "crashes", *rule)
    assert (wrong.status, crashes.status) == (3, 3)
    (found,) = rules_of(crashes)
    assert (found["verdict"], found["unscored"]) == ("unclear", HARD * ATTEMPTS)
    assert "the 44 unscored attempts" in found["reason"]
    assert found["settles"] == "score the 44 unscored attempts"
    # The worst case is the run that answers wrongly, interval included.
    (answered,) = rules_of(wrong)
    assert found["unscored_at_worst"]["value"] == pytest.approx(answered["value"])
    assert found["unscored_at_worst"]["low"] == pytest.approx(answered["number"]["low"])
    assert any("44 of 468 attempts have no score" in each for each in crashes.json["resource"]["warnings"])


def test_a_rule_fails_only_if_it_fails_with_every_unscored_attempt_at_its_best(maze: Maze) -> None:
    write(maze, "poor", [*([[0.0] * 4] * 60), *([[None] * 4] * 40)])
    assert gate(maze, "poor", "--min", "pass_rate=0.3").status == 3
    assert gate(maze, "poor", "--min", "pass_rate=0.6").status == 1
    assert gate(maze, "poor", "--max", "pass_rate=0.3").status == 3
    assert gate(maze, "poor", "--max", "pass_rate=0.6").status == 0


def test_the_rules_of_slices_hold_without_scores_too(maze: Maze) -> None:
    rows: list[list[float | None]] = [
        [1.0] * 4 if row % 2 or row >= 30 else [None] * 4 for row in range(ROWS)
    ]
    write(maze, "base", [[1.0, 1.0, 1.0, float(row % 3 > 0)] for row in range(ROWS)])
    write(maze, "crashes", rows)
    limits = gate(maze, "crashes", "--min", "pass_rate=0.65", "--slice", "half")
    assert {(each["slice"] or {}).get("value"): each["verdict"] for each in rules_of(limits)} == {
        None: "pass",
        "0": "unclear",
        "1": "pass",
    }
    margins = gate(maze, "crashes", "--margin", "pass_rate=0.1", "--against", "base", "--slice", "half")
    assert {(each["slice"] or {}).get("value"): each["verdict"] for each in rules_of(margins)} == {
        None: "unclear",
        "0": "unclear",
        "1": "pass",
    }


def test_a_rule_on_rewards_needs_their_range_if_an_attempt_has_no_score(maze: Maze) -> None:
    rows = [[0.7, 0.8], [0.9, 0.5]] * 40
    write(maze, "scored", rows)
    write(maze, "gap", [*rows[:-1], [0.9, None]])
    assert gate(maze, "scored", "--min", "reward=0.5").status == 0
    for rule in (("--min", "reward=0.5"), ("--max", "reward=0.5")):
        outcome = gate(maze, "gap", *rule)
        assert outcome.status == 3
        assert "1 attempt has no score and the range of rewards is unknown" in rules_of(outcome)[0]["reason"]
        assert "--reward-range" in rules_of(outcome)[0]["reason"]
    assert gate(maze, "gap", "--min", "reward=0.5", "--reward-range", "0,1").status == 0
    assert gate(maze, "gap", "--max", "reward=0.5", "--reward-range", "0,1").status == 1
    margin = ("--margin", "reward=0.1", "--against", "scored")
    outcome = gate(maze, "gap", *margin)
    assert (outcome.status, "range of rewards" in rules_of(outcome)[0]["reason"]) == (3, True)
    assert gate(maze, "gap", *margin, "--reward-range", "0,1").status == 0


def test_copies_of_a_row_weigh_the_same_with_and_without_a_score(maze: Maze) -> None:
    def run(name: str, unscored: float | None) -> None:
        rows: list[list[float | None]] = [[1.0]] * 50 + [[unscored]] * 190
        rows_of_dataset = [*range(50), *(40 + copy % 10 for copy in range(190))]
        write_journalled_run(
            maze.workspace.evals_dir / name,
            rows,
            digests=[hashlib.md5(b"%d" % row).hexdigest() for row in rows_of_dataset],
        )

    run("crashes", None)
    run("wrong", 0.0)
    assert gate(maze, "wrong", "--min", "pass_rate=0.6").status == 1
    crashes = gate(maze, "crashes", "--min", "pass_rate=0.6")
    assert crashes.status == 3
    (answered,) = rules_of(gate(maze, "wrong", "--min", "pass_rate=0.6"))
    assert rules_of(crashes)[0]["unscored_at_worst"]["value"] == pytest.approx(answered["value"])


def test_any_unscored_attempt_is_reported_unless_a_rule_asks_about_it(maze: Maze) -> None:
    rows: list[list[float | None]] = [[1.0] * 4 for _ in range(100)]
    write(maze, "full", rows)
    write(maze, "gap", [[None, 1.0, 1.0, 1.0], *rows[1:]])
    rule = ("--min", "pass_rate=0.9")
    assert gate(maze, "full", *rule).json["resource"]["warnings"] == []
    (warning,) = gate(maze, "gap", *rule).json["resource"]["warnings"]
    assert "1 of 400 attempts have no score" in warning and "--max unscored" in warning
    assert gate(maze, "gap", *rule, "--max", "unscored=0.05").json["resource"]["warnings"] == []
    against = gate(maze, "full", "--margin", "pass_rate=0.05", "--against", "gap").json["resource"]
    assert any("1 attempts of the baseline gap" in each for each in against["warnings"])


def test_amounts_use_what_attempts_reported_and_count_the_others(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "partly", passing(30, 4, 90))
    lines = []
    for row in range(30):
        for attempt in range(4):
            known = (row + attempt) % 10 > 0
            told = msgspec.structs.replace(
                record(row, attempt, 1.0 if attempt else "agent"),
                tokens=100 + row if known else None,
                cost_usd=0.01 + row / 1e4 if known else None,
            )
            lines.append(told)
    (directory / "events.jsonl").write_bytes(journal_of(lines))
    rules = ("--max", "tokens=200", "--max", "cost_per_row=1", "--max", "latency=60")
    tokens, cost, latency = rules_of(gate(maze, "partly", *rules))
    assert (tokens["verdict"], tokens["unreported"], tokens["samples"]) == ("pass", 12, 108)
    assert "12 attempts did not report it" in tokens["reason"]
    assert (cost["verdict"], cost["unreported"]) == ("pass", 12)
    # All attempts took time, the failed ones too.
    assert ("unreported" in latency, latency["samples"]) == (False, 120)


def test_an_amount_of_0_is_not_nothing_if_other_attempts_did_not_report_it(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "silent", passing(10, 4, 40))
    records = [
        msgspec.structs.replace(
            record(row, attempt, 1.0), tokens=None if row or attempt else 0, cost_usd=None
        )
        for row in range(10)
        for attempt in range(4)
    ]
    (directory / "events.jsonl").write_bytes(journal_of(records))
    outcome = gate(maze, "silent", "--max", "tokens=100", "--max", "cost_per_row=1")
    tokens, cost = rules_of(outcome)
    assert (outcome.status, tokens["verdict"], cost["verdict"]) == (3, "unclear", "unclear")
    assert "39 attempts did not report it" in tokens["reason"]
    assert "40 attempts did not report it" in cost["reason"]


def test_a_ratio_that_few_rows_leave_open_is_no_error(maze: Maze) -> None:
    for name, amounts in (("base", (100, 100)), ("other", (100, 1200))):
        directory = write(maze, name, [[1.0], [1.0]])
        lines = [
            msgspec.structs.replace(
                record(row, 0, 1.0), tokens=amount, row_digest=hashlib.md5(str(row).encode()).hexdigest()
            )
            for row, amount in enumerate(amounts)
        ]
        (directory / "events.jsonl").write_bytes(journal_of(lines))
    rule = ("--margin", "tokens=0.1", "--against", "base", "--confidence", "0.999")
    outcome = gate(maze, "other", *rule)
    assert (outcome.status, rules_of(outcome)[0]["verdict"]) == (3, "unclear"), outcome.err
    assert maze.osmosis("eval", "compare", "base", "other", "--confidence", "0.999").status == 0


# Runs of a platform


def finished(
    maze: Maze, metrics: dict[str, Any], headers: dict[str, str] | None = None, **results: Any
) -> None:
    detail = {**DETAIL, "eval_run": {**OWN, "status": "finished"}, "results": {**RESULTS, **results}}
    maze.get("/eval-runs/amber-otter-42").respond(json=detail, headers=headers or {})
    maze.get("/eval-runs/er_8/metrics").respond(json=metrics, headers=headers or {})


def test_the_counts_of_a_hosted_run_include_its_unscored_attempts(maze: Maze) -> None:
    overview = {"total_samples": 468, "completed_samples": 468, "graded": 424, "passed": 424, "failed": 44}
    points = [{"k": 1, "value": 106 / 117}, {"k": 2, "value": 106 / 117}]
    stats = {"mean": 1.0, "std": 0.0, "median": 1.0, "min": 1.0, "max": 1.0}
    finished(
        maze,
        {"status": "finished", "overview": overview, "pass_at_k": points, "reward_stats": stats},
        sampled_rows=117,
    )
    for rule in (("--min", "pass_rate=0.85"), ("--max", "pass@2=0.96")):
        outcome = gate(maze, "amber-otter-42", *rule)
        assert (outcome.status, rules_of(outcome)[0]["unscored"]) == (3, 44)
        assert "44 of 468 attempts have no score" in outcome.json["resource"]["warnings"][0]
    (rate,) = rules_of(gate(maze, "amber-otter-42", "--min", "pass_rate=0.8"))
    assert (rate["verdict"], rate["unscored_at_worst"]["value"]) == ("pass", pytest.approx(424 / 468))
    unknown = gate(maze, "amber-otter-42", "--min", "reward=0.5")
    assert (unknown.status, "range of rewards" in rules_of(unknown)[0]["reason"]) == (3, True)
    write(maze, "base", [[1.0] * 4] * 117)
    margin = ("--margin", "pass_rate=0.1", "--against", "base")
    (held,) = rules_of(gate(maze, "platform:amber-otter-42", *margin))
    assert (held["verdict"], held["number"]["method"], held["unscored"]) == ("unclear", "newcombe", 44)


def test_a_hosted_run_whose_unscored_attempts_are_unknown_passes_nothing(maze: Maze) -> None:
    counts = {"graded": 60, "passed": 60, "sampled_rows": 100}
    finished(maze, {"status": "finished"}, **counts, total_runs=None)
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.9")
    (found,) = rules_of(outcome)
    assert (outcome.status, "does not report how many attempts have no score" in found["reason"]) == (3, True)
    write(maze, "base", [[1.0] * 4] * 100)
    margin = gate(maze, "platform:amber-otter-42", "--margin", "pass_rate=0.5", "--against", "base")
    assert (margin.status, "no score" in rules_of(margin)[0]["reason"]) == (3, True)
    # What its results report is enough.
    finished(maze, {"status": "finished"}, **counts, total_runs=100)
    (known,) = rules_of(gate(maze, "amber-otter-42", "--min", "pass_rate=0.9"))
    assert (known["verdict"], known["unscored"]) == ("unclear", 39)  # one was skipped


def test_comparisons_with_unknown_scores_or_ranges_have_no_verdict(maze: Maze) -> None:
    finished(maze, {"status": "finished"}, graded=60, passed=59, sampled_rows=100, total_runs=None)
    write(maze, "zeros", [[0.0] * 4] * 100)
    found = verdict(maze, "zeros", "platform:amber-otter-42", "--unpaired")
    assert (found["verdict"], "does not report how many" in found["reason"]) == ("unclear", True)

    rows = [[0.2, 0.3], [0.5, 0.4], [0.3, 0.6]] * 20
    raised: list[list[float | None]] = [[a + 0.2, b + 0.3 * a] for a, b in rows]
    write(maze, "base", rows)
    write(maze, "full", raised)
    write(maze, "gap", [[None, raised[0][1]], *raised[1:]])
    assert verdict(maze, "base", "full")["verdict"] == "better"
    unknown = verdict(maze, "base", "gap")
    assert (unknown["verdict"], "range of rewards is unknown" in unknown["reason"]) == ("unclear", True)
    assert verdict(maze, "base", "gap", "--reward-range", "0,1")["verdict"] == "better"


def test_the_attempts_of_a_platforms_run_include_its_unscored_ones(maze: Maze) -> None:
    rate = {
        "value": 1.0,
        "low": 0.97,
        "high": 1.0,
        "at_least": 0.972,
        "at_most": 1.0,
        "n": 424,
        "clusters": 106,
    }
    counts = {"planned": 468, "scored": 424, "pending": 0, "skipped": 0}
    estimates = {"pass_rate": rate, "counts": counts}
    finished(maze, {**METRICS, "estimates": estimates}, {"X-Osmosis-Capabilities": "eval-samples"})
    samples = [
        {
            "row": row,
            "attempt": attempt,
            "source_row_index": row,
            "row_digest": hashlib.md5(b"%d" % row).hexdigest(),
        }
        | ({"status": "success", "reward": 1.0} if row < ROWS - HARD else {"status": "failed"})
        for row in range(ROWS)
        for attempt in range(ATTEMPTS)
    ]
    run = {"eval_run": {**OWN, "status": "finished"}, "results": {**RESULTS, "sampled_rows": 117}}
    detail = {**DETAIL, **run}
    detail["config"] = {**DETAIL["config"], "n": ATTEMPTS}
    offering = {"headers": {"X-Osmosis-Capabilities": "eval-samples"}}
    maze.get("/eval-runs/amber-otter-42").respond(json=detail, **offering)
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples}, **offering)
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.85")
    assert outcome.status == 3, outcome.err
    (found,) = rules_of(outcome)
    assert (found["unscored"], found["unscored_at_worst"]["value"]) == (44, pytest.approx(106 / 117))
    assert gate(maze, "amber-otter-42", "--min", "pass_rate=0.8").status == 0


# Comparisons


def verdict(maze: Maze, *words: str) -> dict[str, Any]:
    outcome = maze.osmosis("eval", "compare", *words, "--json")
    assert outcome.status == 0, outcome.err
    (found,) = outcome.json["resource"]["candidates"]
    return dict(found)


MIXED = [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]] * 25


def changed(*, crashes: bool) -> list[list[float | None]]:
    """Return a run with 20 rows better, 14 worse and 66 unchanged, which crash once instead of failing."""
    rows: list[list[float | None]] = []
    for place, attempts in enumerate(MIXED):
        change = 1 if place % 5 == 0 else -1 if place % 7 == 1 else 0
        passes = int(sum(attempts)) + change
        failures: list[float | None] = [0.0] * (ATTEMPTS - passes)
        if not change and crashes:
            failures[0] = None
        rows.append([*([1.0] * passes), *failures])
    return rows


def test_a_comparison_uses_the_interval_of_the_worst_case_and_not_its_value(maze: Maze) -> None:
    write(maze, "base", MIXED)
    write(maze, "fails", changed(crashes=False))
    write(maze, "crashes", changed(crashes=True))
    assert verdict(maze, "base", "fails")["verdict"] == "unclear"
    found = verdict(maze, "base", "crashes")
    (rate,) = (each for each in found["metrics"] if each["metric"] == "pass_rate")
    worst = rate["unscored_at_worst"]
    # Crashes look like an improvement. In the worst case its value is above 0, and its interval includes 0.
    assert rate["difference"]["low"] > 0
    assert worst["low"] < 0 < worst["value"]
    assert (found["verdict"], "unscored attempts counted against" in found["reason"]) == ("unclear", True)
    # The same with several candidates, and the other way round.
    several = maze.osmosis("eval", "compare", "base", "crashes", "fails", "--json").json["resource"]
    assert [each["verdict"] for each in several["candidates"]] == ["unclear", "unclear"]
    assert verdict(maze, "crashes", "base")["verdict"] == "unclear"


def test_a_slice_is_not_better_because_its_failures_have_no_score(maze: Maze) -> None:
    crashing: list[list[float | None]] = [
        [reward or (None if row % 2 else 0.0) for reward in attempts] for row, attempts in enumerate(MIXED)
    ]
    write(maze, "base", MIXED)
    write(maze, "crashes", crashing)
    slices = verdict(maze, "base", "crashes", "--slice", "half")["slices"]
    assert {each["value"]: each["verdict"] for each in slices} == {"0": "unclear", "1": "unclear"}
    assert next(each for each in slices if each["value"] == "1")["difference"]["low"] > 0.2
