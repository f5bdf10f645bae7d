"""`osmosis eval gate`: verdicts, exit codes, baselines, and attempts without a score, which never help a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.eval_replies import offer_run
from tests.cli.maze import Maze
from tests.cli.outcome import Outcome
from tests.datasets.builders import jsonl, prompt_rows
from tests.decisions.builders import write_journalled_run
from tests.evaluation.recorded_runs import journal_of, passing, record, write_run

Rewards = Sequence[Sequence[float | None]]
CONFIG = "configs/eval/maze.toml"
ROWS, ATTEMPTS = 60, 4


def gate(maze: Maze, run: str, *rules: str, mode: str = "--json") -> Outcome:
    return maze.osmosis("eval", "gate", run, *rules, mode)


def rules_of(outcome: Outcome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = outcome.resource["rules"]
    return found


def digest(row: int) -> str:
    return hashlib.md5(b"%d" % row).hexdigest()


def write(maze: Maze, name: str, rewards: Rewards, **inputs: Any) -> Path:
    """Write a run and its dataset, whose rows have a difficulty, a split of 8 rows each, and a half."""
    lines = [
        {**line, "difficulty": "easy" if row < 30 else "hard", "split": row // 8, "half": row % 2}
        for row, line in enumerate(prompt_rows(len(rewards)))
    ]
    dataset = jsonl(lines).encode()
    (maze.workspace.data_dir / "maze.jsonl").write_bytes(dataset)
    selected = {
        "sha256": hashlib.sha256(dataset).hexdigest(),
        "selected_source_rows": f"0-{len(rewards) - 1}",
    }
    return write_journalled_run(
        maze.workspace.evals_dir / name,
        rewards,
        inputs={"dataset": selected, "model_path": f"openai/{name}", **inputs},
        digests=[digest(row) for row in range(len(rewards))],
        provenance={"config": CONFIG, "dataset_name": "maze"},
        grader_digest="9" * 64,
    )


def rewrite_journal(directory: Path, change: Callable[[int, int], Any], rows: int, n: int) -> None:
    records = [change(row, attempt) for row in range(rows) for attempt in range(n)]
    (directory / "events.jsonl").write_bytes(journal_of(records))


# Limits


@pytest.fixture
def good(maze: Maze) -> Maze:
    """A run on this machine that passes 36 of 40 attempts on 10 rows."""
    write_run(maze.workspace.evals_dir / "good", passing(10, 4, 36))
    return maze


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
def test_verdict_and_exit_code(
    good: Maze, rules: tuple[str, ...], status: int, word: str, verdict: str
) -> None:
    outcome = gate(good, "good", *rules)
    assert (outcome.status, outcome.json["status"], outcome.json["operation"]) == (status, word, "eval.gate")
    assert outcome.resource["verdict"] == verdict
    plain = gate(good, "good", *rules, mode="--plain")
    shown = "inconclusive" if verdict == "unclear" else verdict
    assert (plain.status, plain.out.startswith(f"{shown}: good ")) == (status, True)


def test_percentages_and_rewards(good: Maze) -> None:
    rules = ("--min", "pass_rate=0.85", "--min", "reward=0.6")
    plain = gate(good, "good", *rules, "--verbose", mode="--plain").out
    assert re.search(r"pass_rate >= 85%: it is between \d\d\.\d% and \d\d\.\d% \(", plain)
    assert re.search(r"reward >= 0\.6: it is at least 0\.\d+ with 95% confidence", plain)
    shown = good.osmosis("eval", "gate", "good", *rules).out
    assert re.search(r"pass_rate >= 85% +│ +90\.0% │", shown) and re.search(r"reward >= 0\.6 +│ +0\.9", shown)


@pytest.mark.parametrize(
    ("threshold", "value", "shown"), [(0.0, 1.0, True), (1.0, 0.9, False), (float("-inf"), 0.9, False)]
)
def test_unusual_pass_threshold(good: Maze, threshold: float, value: float, shown: bool) -> None:
    metrics = good.workspace.evals_dir / "good" / "metrics.json"
    metrics.write_text(json.dumps({"summary": {"pass_threshold": threshold}}))
    (rate,) = rules_of(gate(good, "good", "--min", "pass_rate=0.85"))
    assert rate["value"] == value
    assert ("an attempt passes at a reward of 0 or more." in rate["reason"]) == shown


def test_manifest_cannot_hide_rows(maze: Maze) -> None:
    directory = write_run(maze.workspace.evals_dir / "cut", [[1.0]] * 60 + [[0.0]] * 40)
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"0-99"', '"0-59"'))
    outcome = gate(maze, "cut", "--min", "pass_rate=0.9")
    assert outcome.status not in (0, 3)
    assert "a result of row 60, attempt 0, which is not part of the run" in outcome.err


def test_unfinished_and_unscored_runs(maze: Maze) -> None:
    outcomes = passing(10, 4, 40)
    outcomes[9][3] = ""
    write_run(maze.workspace.evals_dir / "part", outcomes)
    for rule in (("--min", "pass_rate=0.1"), ("--max", "pass_rate=0.1")):
        outcome = gate(maze, "part", *rule)
        assert (outcome.status, outcome.resource["verdict"]) == (3, "unclear")
        assert "1 of 40 attempts are pending" in rules_of(outcome)[0]["reason"]

    write_run(maze.workspace.evals_dir / "broken", [["provider"] * 4] * 10)
    outcome = gate(maze, "broken", "--min", "pass_rate=0.1")
    assert (outcome.status, rules_of(outcome)[0]["reason"]) == (3, "no attempt of the run has a score.")
    assert gate(maze, "broken", "--max", "infrastructure=0.5").status == 1
    assert gate(maze, "broken", "--min", "pass@3=0.1").status == 3


def test_reward_bounds(maze: Maze) -> None:
    # Drawn from rewards that are 1 in 93%, 0.37 in 5% and 0 in 2% of attempts, 0.949 on average.
    graded: list[list[float | str | None]] = [[1.0] * 9 for _ in range(13)]
    graded[2][4] = graded[7][0] = graded[7][5] = 0.37
    write_run(maze.workspace.evals_dir / "graded", graded)
    outcome = gate(maze, "graded", "--min", "reward=0.96", "--reward-range", "0,1")
    (rule,) = rules_of(outcome)
    assert (outcome.status, rule["verdict"], rule["number"]["method"]) == (3, "unclear", "korn-graubard")
    assert 0.7 < rule["at_least"] < 0.949 < rule["value"] < rule["at_most"] < 1

    write_run(maze.workspace.evals_dir / "few", [[0.5], [0.9], [0.95]])
    outcome = gate(maze, "few", "--min", "reward=0.5")
    (rule,) = rules_of(outcome)
    assert (outcome.status, rule["at_least"], rule["at_most"]) == (3, 0.5, 0.95)
    assert (rule["number"]["low"], rule["number"]["high"]) == (0.5, 0.95)
    assert "between 0.5 and 0.95" in rule["reason"]
    plain = gate(maze, "few", "--min", "reward=0.5", mode="--plain").out
    assert "reward >= 0.5\t0.783\t0.500\t0.950\t3\tinconclusive\n" in plain


# Judges


def results_file(tmp_path: Path, *judges: dict[str, Any], pending: int = 0) -> str:
    calls = {"calls": 60 + pending, "scored_calls": 60, "unscored_calls": 0, "pending_calls": pending}
    records = {"records": 20, "scored_records": 20, "labelled_records": 0, "copied_records": 0}
    trust = {
        "confidence": 0.95,
        "score_min": 0.0,
        "score_max": 1.0,
        "seed": 0,
        "counts": {"models": len(judges), "runs": 3, **calls, **records},
        "judges": judges,
        "panel": None,
        "disputed": [],
    }
    path = tmp_path / "scores.json"
    path.write_text(json.dumps({"trust": trust}))
    return str(path)


def judge(model: str, mean: float, alpha: float) -> dict[str, Any]:
    figures = {
        name: {"value": value, "low": value - 0.1, "high": value + 0.1, "records": 20, "scores": 60}
        for name, value in (("mean", mean), ("alpha", alpha))
    }
    return {"model": model, "unscored_calls": 0, "figures": figures}


def test_judge_results(maze: Maze, tmp_path: Path) -> None:
    one = results_file(tmp_path, judge("a", 0.8, 0.95))
    assert gate(maze, one, "--min", "score=0.7", "--min", "alpha=0.8", "--max", "unscored=0").status == 0
    assert gate(maze, one, "--min", "score=0.75").status == 3
    assert gate(maze, one, "--min", "alpha=1.1").status == 1
    two = results_file(tmp_path, judge("a", 0.8, 0.95), judge("b", 0.5, 0.9))
    outcome = gate(maze, two, "--min", "score=0.7")
    assert (outcome.status, "the weakest of 2 judges is b" in outcome.out) == (1, True)
    pending = gate(maze, results_file(tmp_path, judge("a", 0.8, 0.95), pending=3), "--min", "score=0.1")
    assert (pending.status, pending.resource["run"]["status"]) == (3, "incomplete")
    document = json.loads(Path(one).read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**document, "counts": {"outside_scale": 25}}))
    clamped = gate(maze, str(other), "--min", "score=0.1").resource
    assert clamped["warnings"] == ["25 of 60 scores outside the scale, clamped."]
    without_figure = {**judge("a", 0.8, 0.9), "figures": {"mean": 5}}
    incomplete = [{**document["trust"], "judges": judges} for judges in ([], [without_figure])]
    for text in (*(json.dumps({"trust": trust}) for trust in (*incomplete, [])), "[" * 200_000):
        other.write_text(text)
        assert "is not a result file" in gate(maze, str(other), "--min", "score=0.1").error["message"]


# Baselines


def repeat(passes: Sequence[int]) -> list[list[float]]:
    """Return 60 rows of 4 attempts; ``passes`` are the passing attempts of each row in turn."""
    return [[float(attempt < passes[row % len(passes)]) for attempt in range(4)] for row in range(ROWS)]


EVEN, WORSE, NEAR = repeat([2, 2, 3, 1]), repeat([1, 0, 1, 1]), repeat([2, 1, 3, 1, 4])


@pytest.fixture
def runs(maze: Maze) -> Maze:
    """A baseline and candidates that are equal, worse, and too near for a verdict."""
    runs = {"base": EVEN, "equal": EVEN, "worse": WORSE, "near": NEAR}
    for seed, (name, rewards) in enumerate(runs.items()):
        write(maze, name, rewards, seed=seed)
    return maze


@pytest.mark.parametrize(
    ("run", "margin", "status", "verdict"),
    [
        ("equal", "0.05", 0, "pass"),
        ("worse", "0.05", 1, "fail"),
        ("near", "0.02", 3, "unclear"),
        ("near", "0.2", 0, "pass"),
        ("equal", "0", 3, "unclear"),
    ],
)
def test_margin_verdict(runs: Maze, run: str, margin: str, status: int, verdict: str) -> None:
    outcome = gate(runs, run, "--against", "base", "--margin", f"pass_rate={margin}")
    assert (outcome.status, outcome.resource["verdict"]) == (status, verdict)
    (rule,) = rules_of(outcome)
    assert (rule["bound"], rule["rows"], rule["samples"]) == ("margin", ROWS, 2 * ROWS * ATTEMPTS)
    assert outcome.resource["baseline"]["name"] == "base"


def test_slices(runs: Maze) -> None:
    options = "--against base --margin pass_rate=0.05 --min pass_rate=0.1 --slice difficulty"
    rules = rules_of(gate(runs, "worse", *options.split()))
    assert [(rule["bound"], rule["slice"] and rule["slice"]["value"], rule["rows"]) for rule in rules] == [
        ("min", None, 60),
        ("margin", None, 60),
        ("min", "easy", 30),
        ("min", "hard", 30),
        ("margin", "easy", 30),
        ("margin", "hard", 30),
    ]
    small = gate(runs, "equal", "--min", "pass_rate=0.1", "--slice", "split")
    assert {rule["slice"] and rule["slice"]["value"] for rule in rules_of(small)} == {None}
    assert "slice split = 0: 8 rows; below 10 there is no verdict." in small.resource["warnings"]


def test_one_table_with_bounds(runs: Maze) -> None:
    rules = "--against base --margin pass_rate=0.05 --min pass_rate=0.1 --slice difficulty"
    options = rules.split()
    lines = gate(runs, "worse", *options, mode="--plain").out.splitlines()
    assert (lines[0], lines[1]) == ("fail: worse does not meet every rule.", "worse against base:")
    assert lines[2] == "Rule\tValue\tLower bound\tUpper bound\tRows\tVerdict"
    assert [line.split("\t")[0] for line in lines[3:9]] == [
        "pass_rate >= 10%",
        "  difficulty = easy",
        "  difficulty = hard",
        "pass_rate >= baseline - 5 points",
        "  difficulty = easy",
        "  difficulty = hard",
    ]
    assert lines[9:] == ["one-sided bounds at 95% confidence"]
    full = gate(runs, "worse", *options, "--verbose", mode="--plain").out.splitlines()
    assert full[:10] == lines and len(full) == 16


def test_decide_file(runs: Maze) -> None:
    beside = runs.workspace.root / "configs/eval/maze.decide.toml"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(
        '[decide]\nagainst = "base"\nslices = ["difficulty"]\n[margin]\npass_rate = 0.02\n[min]\nreward = 0.1\n'
    )
    found = gate(runs, "near").resource
    assert (found["decided_by"], len(found["rules"])) == ("configs/eval/maze.decide.toml", 6)
    looser = rules_of(gate(runs, "near", "--margin", "pass_rate=0.4"))
    assert {(rule["bound"], rule["limit"]) for rule in looser} == {("margin", 0.4), ("min", 0.1)}
    elsewhere = runs.scratch / "other.decide.toml"
    elsewhere.parent.mkdir(exist_ok=True)
    elsewhere.write_text("[min]\nreward = 0.9\n")
    assert gate(runs, "near", "--rules", str(elsewhere)).status == 1
    beside.write_text("[margin]\npass_rate = 0.1\n")
    alone = gate(runs, "near", "--min", "reward=0.1")
    assert alone.status == 2
    assert "of configs/eval/maze.decide.toml needs a baseline" in alone.error["message"]
    beside.write_text("[margin]\npass_rate = 3\npas_rate = 0.1\n")
    wrong = gate(runs, "near")
    assert (wrong.status, wrong.error["code"]) == (1, "VALIDATION")
    assert [issue["line"] for issue in wrong.error["details"]["issues"]] == [2, 3]


def test_decide_file_outside_the_workspace(runs: Maze) -> None:
    (runs.scratch).mkdir(exist_ok=True)
    (runs.scratch / "evil.decide.toml").write_text("[min]\nreward = 0\n")
    manifest = runs.workspace.evals_dir / "near" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(CONFIG, "../scratch/evil.toml"))
    assert "at least one rule" in gate(runs, "near").error["message"]


@pytest.mark.parametrize(
    ("unclear", "status", "word"), [("pass", 0, "success"), ("fail", 1, "failed"), (None, 3, "unclear")]
)
def test_unclear_option(runs: Maze, unclear: str | None, status: int, word: str) -> None:
    options = () if unclear is None else ("--unclear", unclear)
    outcome = gate(runs, "near", "--against", "base", "--margin", "pass_rate=0.02", *options)
    assert (outcome.status, outcome.json["status"]) == (status, word)
    assert "more rows: $" in rules_of(outcome)[0]["settles"]
    assert outcome.resource["verdict"] == "unclear"
    assert gate(runs, "worse", "--against", "base", "--margin", "pass_rate=0.02", *options).status == 1


def test_unfinished_runs_are_unclear(runs: Maze) -> None:
    run = write(runs, "part", EVEN, seed=9)
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-3]))
    rule = ("--against", "base", "--margin", "pass_rate=0.5")
    (write(runs, "empty", EVEN, seed=10) / "events.jsonl").write_bytes(b"")
    for words in (
        ("empty", *rule),
        ("base", "--against", "empty", *rule[2:]),
        ("part", *rule),
        ("part", *rule, "--unclear", "pass"),
    ):
        outcome = gate(runs, *words)
        assert (outcome.status, outcome.resource["verdict"]) == (3, "unclear"), outcome.err
    sliced = ["--max", "infrastructure=0.1", "--slice", "difficulty", "--unclear", "pass"]
    assert gate(runs, "equal", *sliced).status == 3


def test_markdown_and_junit(runs: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.scratch.mkdir(exist_ok=True)
    markdown, junit, summary = (runs.scratch / name for name in ("gate.md", "gate.xml", "summary.md"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    options = "--against base --margin pass_rate=0.05 --min pass_rate=0.2 --min reward=0.1"
    rules = options.split()
    plain = gate(runs, "worse", *rules, "--markdown", str(markdown), "--junit", str(junit), mode="--plain")
    assert plain.status == 1
    page = markdown.read_text()
    assert page.startswith(f"<!-- osmosis:eval.gate:{CONFIG} -->\n")
    assert summary.read_text() == page + "\n"
    shown = rules_of(gate(runs, "worse", *rules))[0]
    assert " | {value:.3f} | {at_least:.3f} | {at_most:.3f} | ".format(**shown) in page
    cases = ElementTree.parse(junit).getroot().findall("testsuite/testcase")
    assert [(case.get("name"), [part.tag for part in case]) for case in cases] == [
        ("pass_rate >= 20%", ["skipped"]),
        ("reward >= 0.1", ["system-out"]),
        ("pass_rate >= baseline - 5 points", ["failure"]),
    ]
    for unclear, tags in (("fail", ["failure"]), ("pass", ["system-out"])):
        gate(runs, "worse", "--min", "pass_rate=0.2", "--unclear", unclear, "--junit", str(junit))
        [case] = ElementTree.parse(junit).getroot().findall("testsuite/testcase")
        assert [part.tag for part in case] == tags
    unwritable = gate(runs, "worse", *rules, "--junit", str(runs.scratch))
    assert (unwritable.status, unwritable.out) == (1, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "at least one rule"),
        ("--min pas_rate=0.5", "did you mean 'pass_rate'?"),
        ("--max unscored", "--max METRIC=NUMBER"),
        ("--min reward=nan", "has an invalid number: 'nan'"),
        ("--min pass@4=80", "is a share, from 0 to 1: write 80% as 0.8"),
        ("--max cost_per_row=-1", "is never below 0, got -1"),
        ("--min pass_rate=0.9 --max pass_rate=0.1", "No run meets both 'pass_rate >= 90%'"),
        ("--min alpha=0.5", "a run has no metric 'alpha'"),
        ("--min pass@3=0.1", "The run has no pass@3; it has pass@1, pass@2, pass@4"),
        ("--margin pass_rate=0.03", "needs a baseline"),
        ("--against base --min reward=0", "no rule uses the baseline"),
        ("--against base --margin pass_rate=-0.1", "0 or more, got -0.1"),
        ("--against base --margin pass_rate=3", "write 3 points as 0.03"),
        ("--against base --margin latency=20", "write 10% as 0.1"),
        ("--against base --margin infrastructure=0.1", "is not compared with a baseline"),
        ("--min reward=0 --confidence 95", "between 0.5 and 1"),
        ("--min reward=0 --confidence 0.4", "between 0.5 and 1"),
        ("--min reward=0 --reward-range 1,1", "is not a range"),
        ("--min reward=0 --unclear maybe", "'maybe'"),
        ("--rules nothing.toml", "rules file `nothing.toml` not found"),
        ("--rules configs", "rules file `configs` is a directory"),
    ],
)
def test_usage_errors(runs: Maze, options: str, message: str) -> None:
    outcome = gate(runs, "equal", *options.split())
    assert (outcome.status, outcome.error["code"]) == (2, "VALIDATION")
    assert message in outcome.error["message"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--against equal --margin reward=0.1", "is compared with itself"),
        ("--min reward=0 --slice dificulty", "did you mean"),
        ("--min reward=0 --slice user_prompt", "more than 50 values"),
        ("--against graded --margin reward=0.1", "graded by different rules"),
    ],
)
def test_refusals(runs: Maze, options: str, message: str) -> None:
    graded = runs.workspace.evals_dir / "graded"
    write_journalled_run(graded, EVEN, inputs={"seed": 7}, grader_digest="8" * 64)
    outcome = gate(runs, "equal", *options.split())
    assert outcome.status == 1
    assert message in f"{outcome.error['message']} {outcome.error.get('hint')}"


def test_run_not_found(maze: Maze) -> None:
    maze.get("/eval-runs/god").respond(404, json={"error": "no such run"})
    outcome = gate(maze, "god", "--min", "reward=0")
    assert (outcome.status, outcome.error["code"]) == (1, "NOT_FOUND")
    assert "neither on this machine nor on the platform" in outcome.error["message"]


@pytest.mark.parametrize("in_workspace", [True, False])
@pytest.mark.parametrize("command", ["eval gate MISSING.json --min score=0.5", "view MISSING.json"])
def test_missing_file(
    maze: Maze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, in_workspace: bool
) -> None:
    if not in_workspace:
        monkeypatch.chdir(tmp_path)
    outcome = maze.osmosis(*command.split())
    assert (outcome.status, outcome.err) == (1, "Error: File 'MISSING.json' not found.\n")


def test_too_few_attempts(runs: Maze) -> None:
    outcome = gate(runs, "equal", "--against", "base", "--margin", "pass^8=0.5")
    (rule,) = rules_of(outcome)
    assert (outcome.status, rule["reason"]) == (3, "no row has 8 attempts with a score in both runs.")


def test_reward_range(maze: Maze) -> None:
    write(maze, "scored", [[0.2, 0.4, 0.6, 0.8]] * ROWS)
    write(maze, "gaps", [[0.3, 0.5, 0.7, None]] * ROWS)
    rules = maze.scratch / "x.decide.toml"
    rules.parent.mkdir(exist_ok=True)
    text = '[decide]\nagainst = "scored"\nreward_range = [0, 1]\n[margin]\nreward = '
    rules.write_text(f"{text}0.1\n")
    (rule,) = rules_of(gate(maze, "gaps", "--rules", str(rules)))
    assert (rule["verdict"], "with the 60 unscored attempts counted" in rule["reason"]) == ("unclear", True)
    assert (rule["unscored"], rule["settles"]) == (60, "score the 60 unscored attempts")
    rules.write_text(f"{text}1\n")
    refused = gate(maze, "gaps", "--rules", str(rules))
    assert refused.status == 1 and "accepts every run" in str(refused.error)
    margin = ("--against", "scored", "--margin", "reward=0.1")
    assert gate(maze, "gaps", *margin, "--reward-range", "0,1").status == 3
    assert gate(maze, "gaps", *margin, "--reward-range", "1,0").status == 2
    beyond = gate(maze, "gaps", *margin, "--reward-range", "0,0.5")
    assert (beyond.status, "which is not between 0 and 0.5" in beyond.error["message"]) == (1, True)
    wide = gate(maze, "gaps", "--against", "scored", "--margin", "reward=0.5", "--reward-range", "0.2,0.7")
    assert wide.status == 2 and "accepts every run" in wide.error["message"]


def test_multiple_rules_are_adjusted(runs: Maze) -> None:
    alone = rules_of(gate(runs, "worse", "--min", "pass_rate=0.1"))[0]
    barely = f"pass_rate={alone['at_most'] + 0.002}"
    assert gate(runs, "worse", "--min", barely).status == 1
    fine = ("--min", "pass@2=0.1", "--max", "latency=60", "--max", "unscored=0.2")
    among = gate(runs, "worse", "--min", barely, *fine)
    assert (among.status, rules_of(among)[0]["verdict"]) == (3, "unclear")
    assert "not significant among 3 rules" in rules_of(among)[0]["reason"]
    margins = ["--against", "base", "--margin", "pass@2=0.9", "--margin", "pass^2=0.9"]
    assert rules_of(gate(runs, "worse", "--min", barely, *margins))[0]["verdict"] == "unclear"
    # A limit of 0 is about this run's own attempts, so it is no matter of chance.
    assert gate(runs, "worse", "--min", barely, "--max", "unscored=0").status == 1
    assert gate(runs, "worse", "--min", "pass_rate=0.6", *fine).status == 1


# Attempts without a score

HARD = 11
EASY: list[list[float | None]] = [[1.0] * ATTEMPTS] * 106


@pytest.mark.parametrize(
    "rule",
    [
        "--min pass_rate=0.85",
        "--min pass@2=0.85",
        "--min pass^2=0.85",
        "--min reward=0.85 --reward-range 0,1",
        "--margin pass_rate=0.05 --against base",
        "--margin pass@2=0.05 --against base",
        "--margin reward=0.05 --against base --reward-range 0,1",
        "--margin pass_rate=0.05 --against base --unpaired",
    ],
)
def test_crashes_are_no_better_than_failures(maze: Maze, rule: str) -> None:
    write(maze, "base", [*EASY, *([[1.0, 0.0, 1.0, 0.0]] * HARD)])
    write(maze, "crashes", [*EASY, *([[None] * ATTEMPTS] * HARD)])
    write(maze, "wrong", [*EASY, *([[0.0] * ATTEMPTS] * HARD)])
    wrong, crashes = (gate(maze, run, *rule.split()) for run in ("wrong", "crashes"))
    assert (wrong.status, crashes.status) == (3, 3)
    (found,) = rules_of(crashes)
    assert (found["verdict"], found["unscored"]) == ("unclear", HARD * ATTEMPTS)
    assert "the 44 unscored attempts" in found["reason"]
    assert found["settles"] == "score the 44 unscored attempts"
    # The worst case is the run that answers wrongly, interval included.
    (answered,) = rules_of(wrong)
    assert found["unscored_at_worst"]["value"] == pytest.approx(answered["value"])
    assert found["unscored_at_worst"]["low"] == pytest.approx(answered["number"]["low"])
    assert any("44 of 468 attempts have no score" in each for each in crashes.resource["warnings"])


def test_fails_only_in_the_best_case(maze: Maze) -> None:
    write(maze, "poor", [*([[0.0] * 4] * 60), *([[None] * 4] * 40)])
    for rule, status in {
        "--min pass_rate=0.3": 3,
        "--min pass_rate=0.6": 1,
        "--max pass_rate=0.3": 3,
        "--max pass_rate=0.6": 0,
    }.items():
        assert gate(maze, "poor", *rule.split()).status == status, rule


def test_reward_rule_needs_a_range(maze: Maze) -> None:
    rows = [[0.7, 0.8], [0.9, 0.5]] * 40
    write(maze, "scored", rows)
    write(maze, "gap", [*rows[:-1], [0.9, None]])
    assert gate(maze, "scored", "--min", "reward=0.5").status == 0
    for rule, status in {
        "--min reward=0.5": 0,
        "--max reward=0.5": 1,
        "--margin reward=0.1 --against scored": 0,
    }.items():
        outcome = gate(maze, "gap", *rule.split())
        reason = rules_of(outcome)[0]["reason"]
        assert (outcome.status, "range of rewards" in reason) == (3, True)
        if "against" not in rule:
            assert "1 attempt has no score and the range of rewards is unknown" in reason
            assert "--reward-range" in reason
        assert gate(maze, "gap", *rule.split(), "--reward-range", "0,1").status == status


def test_duplicate_rows(maze: Maze) -> None:
    rows = [*range(50), *(40 + copy % 10 for copy in range(190))]
    for name, reward in (("crashes", None), ("wrong", 0.0)):
        rewards: list[list[float | None]] = [[1.0]] * 50 + [[reward]] * 190
        directory = maze.workspace.evals_dir / name
        write_journalled_run(directory, rewards, digests=[digest(row) for row in rows])
    wrong, crashes = (gate(maze, run, "--min", "pass_rate=0.6") for run in ("wrong", "crashes"))
    assert (wrong.status, crashes.status) == (1, 3)
    value = rules_of(crashes)[0]["unscored_at_worst"]["value"]
    assert value == pytest.approx(rules_of(wrong)[0]["value"])


def test_warning(maze: Maze) -> None:
    rows: list[list[float | None]] = [[1.0] * 4 for _ in range(100)]
    write(maze, "full", rows)
    write(maze, "gap", [[None, 1.0, 1.0, 1.0], *rows[1:]])
    rule = ("--min", "pass_rate=0.9")
    assert gate(maze, "full", *rule).resource["warnings"] == []
    (warning,) = gate(maze, "gap", *rule).resource["warnings"]
    assert "1 of 400 attempts have no score" in warning and "--max unscored" in warning
    assert gate(maze, "gap", *rule, "--max", "unscored=0.05").resource["warnings"] == []
    against = gate(maze, "full", "--margin", "pass_rate=0.05", "--against", "gap").resource
    assert any("1 attempts of the baseline gap" in each for each in against["warnings"])


def test_unreported_amounts(maze: Maze) -> None:
    def partly(row: int, attempt: int) -> Any:
        amounts = {"tokens": 100 + row, "cost_usd": 0.01 + row / 1e4} if (row + attempt) % 10 else {}
        return record(row, attempt, 1.0 if attempt else "agent", **amounts)

    directory = write_run(maze.workspace.evals_dir / "partly", passing(30, 4, 90))
    rewrite_journal(directory, partly, 30, 4)
    rules = ("--max", "tokens=200", "--max", "cost_per_row=1", "--max", "latency=60")
    tokens, cost, latency = rules_of(gate(maze, "partly", *rules))
    assert (tokens["verdict"], tokens["unreported"], tokens["samples"]) == ("pass", 12, 108)
    assert "12 attempts did not report it" in tokens["reason"]
    assert (cost["verdict"], cost["unreported"]) == ("pass", 12)
    # All attempts took time, the failed ones too.
    assert ("unreported" in latency, latency["samples"]) == (False, 120)


def test_zero_and_unreported_amounts(maze: Maze) -> None:
    def silent(row: int, attempt: int) -> Any:
        return record(row, attempt, 1.0, tokens=None if row or attempt else 0)

    rewrite_journal(write_run(maze.workspace.evals_dir / "silent", passing(10, 4, 40)), silent, 10, 4)
    outcome = gate(maze, "silent", "--max", "tokens=100", "--max", "cost_per_row=1")
    tokens, cost = rules_of(outcome)
    assert (outcome.status, tokens["verdict"], cost["verdict"]) == (3, "unclear", "unclear")
    assert "39 attempts did not report it" in tokens["reason"]
    assert "40 attempts did not report it" in cost["reason"]

    def free(row: int, attempt: int) -> Any:
        return record(row, attempt, 1.0, cost_usd=0.0)

    rewrite_journal(write_run(maze.workspace.evals_dir / "free", passing(10, 4, 40)), free, 10, 4)
    outcome = gate(maze, "free", "--max", "cost_per_row=1", "--min", "cost_per_row=1")
    assert [rule["verdict"] for rule in rules_of(outcome)] == ["unclear", "pass"]


def test_open_ratio(maze: Maze) -> None:
    for name, amounts in (("base", (100, 100)), ("other", (100, 1200))):

        def reported(row: int, attempt: int, amounts: tuple[int, ...] = amounts) -> Any:
            return record(row, 0, 1.0, tokens=amounts[row], row_digest=digest(row))

        rewrite_journal(write(maze, name, [[1.0], [1.0]]), reported, 2, 1)
    outcome = gate(maze, "other", "--margin", "tokens=0.1", "--against", "base", "--confidence", "0.999")
    assert (outcome.status, rules_of(outcome)[0]["verdict"]) == (3, "unclear"), outcome.err
    assert maze.osmosis("eval", "compare", "base", "other", "--confidence", "0.999").status == 0


# Runs of a platform


def test_imported_run_needs_option(good: Maze) -> None:
    origin = {"local_run_id": "9f0c" * 8, "sdk_version": "0.3.13", "git_head": "1a2b3c4d", "git_dirty": True}
    offer_run(good, own={"imported": origin})
    refused = gate(good, "amber-otter-42", "--min", "pass_rate=0.1")
    assert (refused.status, refused.error["code"]) == (1, "CONFLICT")
    assert "was imported (executed elsewhere, with 0.3.13 at 1a2b3c4 and uncommitted changes)" in refused.err
    assert "--allow-imported" in refused.err
    against = ("--against", "platform:amber-otter-42", "--margin", "pass_rate=0.5")
    assert "was imported" in gate(good, "good", *against).error["message"]
    allowed = gate(good, "amber-otter-42", "--min", "pass_rate=0.1", "--allow-imported")
    assert allowed.resource["verdict"] in ("pass", "fail", "unclear")


@pytest.mark.parametrize("status", ["running", "failed"])
def test_unfinished_platform_run(maze: Maze, status: str) -> None:
    offer_run(maze, status=status, own={"error": "It said:\n::error::forged"})
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.1")
    assert outcome.status == 3
    assert f"the run is {status}, not finished" in rules_of(outcome)[0]["reason"]
    # An error of an agent is no command to the job that gates it.
    plain = gate(maze, "amber-otter-42", "--min", "pass_rate=0.1", mode="--plain")
    assert (plain.status, "forged" in plain.out) == (3, True)
    assert plain.out.startswith("inconclusive: amber-otter-42 is not finished.")
    assert not [line for line in (plain.out + plain.err).splitlines() if line.startswith("::")]


def test_platform_without_rows(maze: Maze) -> None:
    overview = {"total_samples": 40, "completed_samples": 40, "graded": 40, "passed": 40, "failed": 0}
    points = [{"k": 1, "value": 1.0}, {"k": 2, "value": 1.0}]
    metrics = {"status": "finished", "overview": overview, "pass_at_k": points}
    offer_run(maze, metrics, sampled_rows=10)
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.74", "--min", "pass@2=0.74")
    assert outcome.status == 0
    for rule in rules_of(outcome):
        # 10 of 10 rows: 0.05 ** (1 / 10).
        assert rule["at_least"] == pytest.approx(0.7411, abs=1e-4)
        assert "does not report the row of each attempt" in rule["reason"]
    (unclear,) = rules_of(gate(maze, "amber-otter-42", "--max", "failed=0.2"))
    assert unclear["verdict"] == "unclear" and unclear["settles"].startswith("about 1")
    reward = gate(maze, "amber-otter-42", "--min", "reward=0.5", "--max", "infrastructure=0.1")
    assert (reward.status, [rule["value"] for rule in rules_of(reward)]) == (3, [None, None])


def test_hosted_run_against_a_baseline(runs: Maze) -> None:
    offer_run(runs)
    rules = ("--margin", "pass_rate=0.9", "--margin", "reward=0.1", "--max", "tokens=5")
    outcome = gate(runs, "platform:amber-otter-42", "--against", "base", *rules)
    assert outcome.status == 3, outcome.err
    tokens, rate, reward = rules_of(outcome)
    assert (rate["verdict"], rate["number"]["method"]) == ("pass", "newcombe")
    assert (reward["verdict"], tokens["verdict"]) == ("unclear", "unclear")
    assert any("has only counts, without rows" in warning for warning in outcome.resource["warnings"])
    sliced = gate(runs, "platform:amber-otter-42", "--min", "pass_rate=0.1", "--slice", "difficulty")
    assert (sliced.status, sliced.out) == (1, "")


def test_hosted_counts(maze: Maze) -> None:
    overview = {"total_samples": 468, "completed_samples": 468, "graded": 424, "passed": 424, "failed": 44}
    points = [{"k": 1, "value": 106 / 117}, {"k": 2, "value": 106 / 117}]
    stats = {"mean": 1.0, "std": 0.0, "median": 1.0, "min": 1.0, "max": 1.0}
    metrics = {"status": "finished", "overview": overview, "pass_at_k": points, "reward_stats": stats}
    offer_run(maze, metrics, sampled_rows=117)
    for rule in (("--min", "pass_rate=0.85"), ("--max", "pass@2=0.96")):
        outcome = gate(maze, "amber-otter-42", *rule)
        assert (outcome.status, rules_of(outcome)[0]["unscored"]) == (3, 44)
        assert "44 of 468 attempts have no score" in outcome.resource["warnings"][0]
    (rate,) = rules_of(gate(maze, "amber-otter-42", "--min", "pass_rate=0.8"))
    assert (rate["verdict"], rate["unscored_at_worst"]["value"]) == ("pass", pytest.approx(424 / 468))
    unknown = gate(maze, "amber-otter-42", "--min", "reward=0.5")
    assert (unknown.status, "range of rewards" in rules_of(unknown)[0]["reason"]) == (3, True)
    write(maze, "base", [[1.0] * 4] * 117)
    margin = ("--margin", "pass_rate=0.1", "--against", "base")
    (held,) = rules_of(gate(maze, "platform:amber-otter-42", *margin))
    assert (held["verdict"], held["number"]["method"], held["unscored"]) == ("unclear", "newcombe", 44)


def test_hosted_counts_unknown(maze: Maze) -> None:
    counts = {"graded": 60, "passed": 60, "sampled_rows": 100}
    offer_run(maze, {"status": "finished"}, **counts, total_runs=None)
    outcome = gate(maze, "amber-otter-42", "--min", "pass_rate=0.9")
    (found,) = rules_of(outcome)
    assert (outcome.status, "does not report how many attempts have no score" in found["reason"]) == (3, True)
    write(maze, "base", [[1.0] * 4] * 100)
    margin = gate(maze, "platform:amber-otter-42", "--margin", "pass_rate=0.5", "--against", "base")
    assert (margin.status, "no score" in rules_of(margin)[0]["reason"]) == (3, True)
    # What its results report is enough.
    offer_run(maze, {"status": "finished"}, **counts, total_runs=100)
    (known,) = rules_of(gate(maze, "amber-otter-42", "--min", "pass_rate=0.9"))
    assert (known["verdict"], known["unscored"]) == ("unclear", 39)  # one was skipped


# Comparisons


def verdict(maze: Maze, *words: str) -> dict[str, Any]:
    outcome = maze.osmosis("eval", "compare", *words, "--json")
    assert outcome.status == 0, outcome.err
    (found,) = outcome.resource["candidates"]
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


def test_compare_without_verdict(maze: Maze) -> None:
    offer_run(maze, {"status": "finished"}, graded=60, passed=59, sampled_rows=100, total_runs=None)
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


def test_compare_uses_worst_case_interval(maze: Maze) -> None:
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
    several = maze.osmosis("eval", "compare", "base", "crashes", "fails", "--json").resource
    assert [each["verdict"] for each in several["candidates"]] == ["unclear", "unclear"]
    assert verdict(maze, "crashes", "base")["verdict"] == "unclear"
