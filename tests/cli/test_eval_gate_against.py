"""`osmosis eval gate` against a baseline: margins, slices, rules beside the config, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.eval_replies import DETAIL, METRICS, OWN, RESULTS
from tests.cli.maze import Maze, Outcome
from tests.decisions.builders import write_journalled_run

CONFIG = "configs/eval/maze.toml"
ROWS, ATTEMPTS = 60, 4


def rewards(passes: Sequence[int], rows: int = ROWS) -> list[list[float]]:
    """Return 60 rows of 4 attempts, of which as many pass as is said of each row in turn."""
    return [
        [float(attempt < passes[row % len(passes)]) for attempt in range(ATTEMPTS)] for row in range(rows)
    ]


EVEN, WORSE, NEAR = rewards([2, 2, 3, 1]), rewards([1, 0, 1, 1]), rewards([2, 1, 3, 1, 4])


@pytest.fixture(scope="module")
def dataset() -> bytes:
    parts = [{"difficulty": "easy" if row < 30 else "hard", "split": row // 8} for row in range(ROWS)]
    lines = [{"user_prompt": f"{row}?", "ground_truth": "x", **part} for row, part in enumerate(parts)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.fixture
def maze(maze: Maze, dataset: bytes) -> Maze:
    """With a baseline and candidates that are equal, worse, and too near to tell."""
    (maze.workspace.data_dir / "maze.jsonl").write_bytes(dataset)
    for seed, (name, outcomes) in enumerate(
        {"base": EVEN, "equal": EVEN, "worse": WORSE, "near": NEAR}.items()
    ):
        write(maze, name, outcomes, seed=seed, sha256=hashlib.sha256(dataset).hexdigest())
    return maze


def write(
    maze: Maze, name: str, outcomes: list[list[float]], *, sha256: str = "d" * 64, **inputs: object
) -> Path:
    described = {"sha256": sha256, "selected_source_rows": f"0-{len(outcomes) - 1}"}
    return write_journalled_run(
        maze.workspace.evals_dir / name,
        outcomes,
        inputs={"dataset": described, **inputs},
        digests=[hashlib.md5(str(row).encode()).hexdigest() for row in range(len(outcomes))],
        provenance={"config": CONFIG, "dataset_name": "maze"},
        grader_digest="9" * 64,
    )


def gate(maze: Maze, run: str, *options: str, mode: str = "--json") -> Outcome:
    return maze.osmosis("eval", "gate", run, *options, mode)


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
def test_a_run_is_no_worse_than_its_baseline_or_it_is_or_nobody_can_tell(
    maze: Maze, run: str, margin: str, status: int, verdict: str
) -> None:
    outcome = gate(maze, run, "--against", "base", "--margin", f"pass_rate={margin}")
    assert (outcome.status, outcome.json["resource"]["verdict"]) == (status, verdict)
    (rule,) = outcome.json["resource"]["rules"]
    assert set(rule["number"]) == {
        *("value", "low", "high", "rows", "samples"),
        *("method", "p", "p_adjusted", "reason"),
    }
    assert (rule["bound"], rule["rows"], rule["samples"]) == ("margin", ROWS, 2 * ROWS * ATTEMPTS)
    assert outcome.json["resource"]["baseline"]["name"] == "base"


def test_every_rule_is_asked_of_every_slice_that_is_large_enough(maze: Maze) -> None:
    asked = "--against base --margin pass_rate=0.05 --min pass_rate=0.1 --slice difficulty"
    outcome = gate(maze, "worse", *asked.split())
    rules = outcome.json["resource"]["rules"]
    assert [(rule["bound"], rule["slice"] and rule["slice"]["value"], rule["rows"]) for rule in rules] == [
        ("min", None, 60),
        ("margin", None, 60),
        ("min", "easy", 30),
        ("min", "hard", 30),
        ("margin", "easy", 30),
        ("margin", "hard", 30),
    ]
    small = gate(maze, "equal", "--min", "pass_rate=0.1", "--slice", "split")
    assert {rule["slice"] and rule["slice"]["value"] for rule in small.json["resource"]["rules"]} == {None}
    assert "slice split = 0: 8 rows; below 10 there is no verdict." in small.json["resource"]["warnings"]


def test_rules_beside_the_config_are_found_and_those_of_the_command_line_go_before_them(maze: Maze) -> None:
    beside = maze.workspace.root / "configs/eval/maze.decide.toml"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(
        '[decide]\nagainst = "base"\nslices = ["difficulty"]\n[margin]\npass_rate = 0.02\n[min]\nreward = 0.1\n'
    )
    found = gate(maze, "near").json["resource"]
    assert (found["decided_by"], len(found["rules"])) == ("configs/eval/maze.decide.toml", 6)
    looser = gate(maze, "near", "--margin", "pass_rate=0.4").json["resource"]
    assert {(rule["bound"], rule["limit"]) for rule in looser["rules"]} == {("margin", 0.4), ("min", 0.1)}
    elsewhere = maze.scratch / "other.decide.toml"
    elsewhere.parent.mkdir(exist_ok=True)
    elsewhere.write_text("[min]\nreward = 0.9\n")
    assert gate(maze, "near", "--rules", str(elsewhere)).status == 1
    beside.write_text("[margin]\npass_rate = 0.1\n")
    nobody = gate(maze, "near", "--min", "reward=0.1")
    assert (
        nobody.status == 2 and "of configs/eval/maze.decide.toml needs a baseline" in nobody.error["message"]
    )
    beside.write_text("[margin]\npass_rate = 3\npas_rate = 0.1\n")
    wrong = gate(maze, "near")
    assert (wrong.status, wrong.error["code"]) == (1, "VALIDATION")
    assert [issue["line"] for issue in wrong.error["details"]["issues"]] == [2, 3]


def test_rules_a_manifest_leads_to_outside_of_the_workspace_are_nobodys(maze: Maze) -> None:
    (maze.scratch).mkdir(exist_ok=True)
    (maze.scratch / "evil.decide.toml").write_text("[min]\nreward = 0\n")
    manifest = maze.workspace.evals_dir / "near" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(CONFIG, "../scratch/evil.toml"))
    assert "at least one rule" in gate(maze, "near").error["message"]


@pytest.mark.parametrize(
    ("unclear", "status", "word"), [("pass", 0, "success"), ("fail", 1, "failed"), (None, 3, "unclear")]
)
def test_who_must_may_say_what_unclear_ends_as(
    maze: Maze, unclear: str | None, status: int, word: str
) -> None:
    options = () if unclear is None else ("--unclear", unclear)
    outcome = gate(maze, "near", "--against", "base", "--margin", "pass_rate=0.02", *options)
    assert (outcome.status, outcome.json["status"]) == (status, word)
    assert "more rows: $" in outcome.json["resource"]["rules"][0]["settles"]
    assert outcome.json["resource"]["verdict"] == "unclear"
    assert gate(maze, "worse", "--against", "base", "--margin", "pass_rate=0.02", *options).status == 1


def test_nothing_lets_through_what_is_not_finished_or_has_no_number(maze: Maze) -> None:
    run = write(maze, "part", EVEN, seed=9)
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-3]))
    rule = ("--against", "base", "--margin", "pass_rate=0.5")
    empty = write(maze, "empty", EVEN, seed=10)
    (empty / "events.jsonl").write_bytes(b"")
    for unfinished in (("empty", *rule), ("base", "--against", "empty", *rule[2:])):
        outcome = gate(maze, *unfinished)
        assert (outcome.status, outcome.json["resource"]["verdict"]) == (3, "unclear"), outcome.err
    for options in ((), ("--unclear", "pass")):
        outcome = gate(maze, "part", *rule, *options)
        assert (outcome.status, outcome.json["resource"]["verdict"]) == (3, "unclear")
    sliced = ["--max", "infrastructure=0.1", "--slice", "difficulty", "--unclear", "pass"]
    assert gate(maze, "equal", *sliced).status == 3


def test_the_files_have_the_numbers_of_the_terminal(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    maze.scratch.mkdir(exist_ok=True)
    markdown, junit, summary = (maze.scratch / name for name in ("gate.md", "gate.xml", "summary.md"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    rules = [
        "--against",
        "base",
        "--margin",
        "pass_rate=0.05",
        "--min",
        "pass_rate=0.2",
        "--min",
        "reward=0.1",
    ]
    plain = gate(maze, "worse", *rules, "--markdown", str(markdown), "--junit", str(junit), mode="--plain")
    page = markdown.read_text()
    assert page.startswith(f"<!-- osmosis:eval.gate:{CONFIG} -->\n")
    assert summary.read_text() == page + "\n"
    shown = gate(maze, "worse", *rules).json["resource"]["rules"][0]
    assert " | {value:.3f} | {at_least:.3f} | {at_most:.3f} | ".format(**shown) in page
    cases = ElementTree.parse(junit).getroot().findall("testsuite/testcase")
    assert [(case.get("name"), [part.tag for part in case]) for case in cases] == [
        ("pass_rate >= 20%", ["skipped"]),
        ("reward >= 0.1", ["system-out"]),
        ("pass_rate >= baseline - 5 points", ["failure"]),
    ]
    assert plain.status == 1
    unwritable = gate(maze, "worse", *rules, "--junit", str(maze.scratch))
    assert (unwritable.status, unwritable.out) == (1, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--margin", "pass_rate=0.03"), "needs a baseline"),
        (("--against", "base", "--min", "reward=0"), "no rule uses the baseline"),
        (("--against", "base", "--margin", "pass_rate=-0.1"), "0 or more, got -0.1"),
        (("--against", "base", "--margin", "pass_rate=3"), "write 3 points as 0.03"),
        (("--against", "base", "--margin", "latency=20"), "write 10% as 0.1"),
        (("--against", "base", "--margin", "infrastructure=0.1"), "is not compared with a baseline"),
        (("--min", "reward=0", "--confidence", "95"), "between 0.5 and 1"),
        (("--min", "reward=0", "--confidence", "0.4"), "between 0.5 and 1"),
        (("--min", "reward=0", "--reward-range", "1,1"), "is not a range"),
        (("--min", "reward=0", "--unclear", "maybe"), "'maybe'"),
        (("--rules", "nothing.toml"), "file not found: `nothing.toml`"),
    ],
)
def test_what_cannot_be_asked_is_a_wrong_command_line(
    maze: Maze, options: tuple[str, ...], said: str
) -> None:
    outcome = gate(maze, "equal", *options)
    assert (outcome.status, outcome.error["code"]) == (2, "VALIDATION")
    assert said in outcome.error["message"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--against", "equal", "--margin", "reward=0.1"), "is compared with itself"),
        (("--min", "reward=0", "--slice", "dificulty"), "did you mean"),
        (("--min", "reward=0", "--slice", "user_prompt"), "more than 50 values"),
        (("--against", "graded", "--margin", "reward=0.1"), "graded by different rules"),
    ],
)
def test_what_may_not_be_compared_is_an_error_that_says_why(
    maze: Maze, options: tuple[str, ...], said: str
) -> None:
    write_journalled_run(
        maze.workspace.evals_dir / "graded", EVEN, inputs={"seed": 7}, grader_digest="8" * 64
    )
    outcome = gate(maze, "equal", *options)
    assert outcome.status == 1
    assert said in f"{outcome.error['message']} {outcome.error.get('hint')}"


def test_of_a_hosted_run_the_counts_are_held_against_a_baseline(maze: Maze) -> None:
    maze.get("/eval-runs/amber-otter-42").respond(
        json={**DETAIL, "eval_run": {**OWN, "status": "finished"}, "results": RESULTS}
    )
    maze.get("/eval-runs/er_8/metrics").respond(json=METRICS)
    rules = ("--margin", "pass_rate=0.9", "--margin", "reward=0.1", "--max", "tokens=5")
    outcome = gate(maze, "platform:amber-otter-42", "--against", "base", *rules)
    assert outcome.status == 3, outcome.err
    tokens, rate, reward = outcome.json["resource"]["rules"]
    assert (rate["verdict"], rate["number"]["method"]) == ("pass", "newcombe")
    assert (reward["verdict"], tokens["verdict"]) == ("unclear", "unclear")
    assert any("only counts are known" in warning for warning in outcome.json["resource"]["warnings"])
    sliced = gate(maze, "platform:amber-otter-42", "--min", "pass_rate=0.1", "--slice", "difficulty")
    assert (sliced.status, sliced.out) == (1, "")


def test_more_attempts_than_there_are_decide_nothing(maze: Maze) -> None:
    outcome = gate(maze, "equal", "--against", "base", "--margin", "pass^8=0.5")
    (rule,) = outcome.json["resource"]["rules"]
    assert (outcome.status, rule["reason"]) == (3, "no row has 8 attempts with a score in both runs.")


def test_rewards_beyond_pass_and_fail_are_bounded_by_the_range_that_is_written(maze: Maze) -> None:
    scored = [[0.2, 0.4, 0.6, 0.8] for _ in range(ROWS)]
    gaps = [[0.3, 0.5, 0.7, None] for _ in range(ROWS)]
    write(maze, "scored", scored, seed=21)
    write(maze, "gaps", gaps, seed=22)  # type: ignore[arg-type]
    rules = maze.scratch / "x.decide.toml"
    rules.parent.mkdir(exist_ok=True)
    rules.write_text('[decide]\nagainst = "scored"\nreward_range = [0, 1]\n[margin]\nreward = 0.1\n')
    (rule,) = gate(maze, "gaps", "--rules", str(rules)).json["resource"]["rules"]
    assert (rule["verdict"], "with the 60 unscored attempts counted" in rule["reason"]) == ("unclear", True)
    assert (rule["unscored"], rule["settles"]) == (60, "score the 60 unscored attempts")
    rules.write_text('[decide]\nagainst = "scored"\nreward_range = [0, 1]\n[margin]\nreward = 1\n')
    refused = gate(maze, "gaps", "--rules", str(rules))
    assert refused.status == 1 and "accepts every run" in str(refused.error)
    margin = ("--against", "scored", "--margin", "reward=0.1")
    assert gate(maze, "gaps", *margin, "--reward-range", "0,1").status == 3
    assert gate(maze, "gaps", *margin, "--reward-range", "1,0").status == 2
    beyond = gate(maze, "gaps", *margin, "--reward-range", "0,0.5")
    assert (beyond.status, "which is not between 0 and 0.5" in beyond.error["message"]) == (1, True)
    wide = gate(maze, "gaps", "--against", "scored", "--margin", "reward=0.5", "--reward-range", "0.2,0.7")
    assert wide.status == 2 and "accepts every run" in wide.error["message"]


# What fails


def test_several_limits_are_adjusted_for_failing_and_one_alone_is_not(maze: Maze) -> None:
    alone = gate(maze, "worse", "--min", "pass_rate=0.1").json["resource"]["rules"][0]
    barely = f"pass_rate={alone['at_most'] + 0.002}"
    assert gate(maze, "worse", "--min", barely).status == 1
    fine = ("--min", "pass@2=0.1", "--max", "latency=60", "--max", "unscored=0.2")
    among = gate(maze, "worse", "--min", barely, *fine)
    assert (among.status, among.json["resource"]["rules"][0]["verdict"]) == (3, "unclear")
    assert "not significant among 3 rules" in among.json["resource"]["rules"][0]["reason"]
    margins = ["--against", "base", "--margin", "pass@2=0.9", "--margin", "pass^2=0.9"]
    margin = gate(maze, "worse", "--min", barely, *margins)
    assert margin.json["resource"]["rules"][0]["verdict"] == "unclear"
    # A limit of 0 is about this run's own attempts, so it is no matter of chance.
    assert gate(maze, "worse", "--min", barely, "--max", "unscored=0").status == 1
    assert gate(maze, "worse", "--min", "pass_rate=0.6", *fine).status == 1
