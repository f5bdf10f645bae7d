"""`osmosis eval plan`: how much has to be run, and what is said where nobody can tell."""

from __future__ import annotations

import re

import pytest

from tests.cli.eval_replies import METRICS, offer_run
from tests.cli.maze import Maze
from tests.cli.outcome import Outcome
from tests.datasets.builders import jsonl, prompt_rows
from tests.decisions.builders import write_journalled_run

CONFIG = """\
[experiment]
rollout = "walks"
entrypoint = "main.py"
model_path = "{model}"
dataset = "walks"

[evaluation]
n = 4
batch_size = 8

[secrets]
required = []
"""
HARD, FAIR, EASY = [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]


@pytest.fixture
def maze(maze: Maze) -> Maze:
    """With a config whose dataset has 120 rows, and a run on 30 of them."""
    configure(maze)
    write_journalled_run(maze.workspace.evals_dir / "pilot", [HARD, FAIR, EASY] * 10)
    return maze


def configure(maze: Maze, model: str = "osmosis/tiny", rows: int = 120) -> None:
    root = maze.workspace.root
    (root / "rollouts/walks").mkdir(parents=True, exist_ok=True)
    (root / "rollouts/walks/main.py").write_text("")
    (root / "rollouts/walks/pyproject.toml").write_text('[project]\nname = "walks"\nversion = "0"\n')
    (root / "configs/eval/walks.toml").write_text(CONFIG.format(model=model))
    (root / "data").mkdir(exist_ok=True)
    (root / "data/walks.jsonl").write_text(jsonl(prompt_rows(rows)))


def plan(maze: Maze, *words: str) -> Outcome:
    return maze.osmosis("eval", "plan", "configs/eval/walks.toml", *words)


def test_pilot(maze: Maze) -> None:
    # 120 attempts in 30 s, whatever their own durations and the config's batch_size are.
    (maze.workspace.evals_dir / "pilot/metrics.json").write_text('{"eval_run": {"duration_ms": 30000}}')
    outcome = plan(maze, "--pilot", "pilot", "--detect", "0.2", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    envelope = outcome.json
    found = envelope["resource"]
    assert (envelope["operation"], found["rows"], found["n"]) == ("eval.plan", 120, 4)
    assert found["spread"]["basis"] == "one run" and found["spread"]["samples"] == 120
    assert found["attempt"] == {"cost_usd": 0.01, "per_second": 4.0}
    own, cheapest = found["config_design"], found["cheapest"]
    assert (own["cost_usd"], own["duration_s"]) == (pytest.approx(4.8), 120.0)
    assert cheapest["sees"]["value"] <= 0.2 and cheapest["cost_usd"] < own["cost_usd"]
    points = f"{100 * own['sees']['value']:.1f} points"
    assert envelope["message"] == (
        f"configs/eval/walks.toml (120 rows x 4) detects {points} or more with 80% power, "
        f"and 20 points with {100 * own['power']:.0f}%."
    )
    assert "at the speed of pilot: 4 attempts per second" in " ".join(
        plan(maze, "--pilot", "pilot").out.split()
    )
    (maze.workspace.evals_dir / "pilot/metrics.json").unlink()
    assert "Time" not in plan(maze, "--pilot", "pilot").out


def test_default_screen_has_five_designs(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    words = ("--pilot", "pilot", "--detect", "0.2", "--plain")
    short, full = plan(maze, *words).out, plan(maze, *words, "--verbose").out
    rows = [line for line in short.splitlines() if line.count("\t") > 5][1:]
    assert len(rows) == 5 and len(full.splitlines()) > len(short.splitlines())
    assert len([row for row in rows if row.endswith(("\tconfig", "\tcheapest"))]) == 2


def test_pilot_and_baseline(maze: Maze) -> None:
    write_journalled_run(maze.workspace.evals_dir / "base", [HARD, HARD, FAIR] * 10, inputs={"seed": 1})
    alone = plan(maze, "--pilot", "pilot", "--json").resource
    both = plan(maze, "--pilot", "pilot", "--against", "base", "--json").resource
    assert (both["pilot"], both["against"], both["spread"]["basis"]) == ("pilot", "base", "two runs")
    assert both["config_design"]["sees"]["value"] < alone["config_design"]["sees"]["value"]
    assert any("all 30 rows are in both runs" in note for note in both["notes"])
    gaps: list[list[float | None]] = [*([HARD] * 29), [None, *HARD[1:]]]
    write_journalled_run(maze.workspace.evals_dir / "gaps", gaps, inputs={"seed": 2})
    with_gaps = plan(maze, "--pilot", "pilot", "--against", "gaps", "--json").resource
    assert "gaps: 1 of 120 attempts have no score and are omitted." in with_gaps["notes"]
    baseline = plan(maze, "--against", "base", "--json").resource
    assert (baseline["pilot"], baseline["spread"]["basis"]) == ("base", "one run")
    assert baseline["notes"][0].startswith("base (--against) is the pilot; ")


def test_assumptions(maze: Maze) -> None:
    found = plan(maze, "--pass-rate", "0.6", "--icc", "0.3", "--rows-at-most", "200", "--json").resource
    own = found["config_design"]["sees"]
    assert own["low"] < own["value"] < own["high"]
    assert (found["spread"]["basis"], found["attempt"]["cost_usd"]) == ("assumed", 0.0)
    assert max(design["rows"] for design in found["designs"]) == 200
    assert any("a pass rate of 0.6 and an ICC of 0.3" in note for note in found["notes"])
    assert "Range" in plan(maze).out
    assert plan(maze, "--icc", "1").status == 0


def test_unknown_price(maze: Maze) -> None:
    configure(maze, model="openai/gpt-5-mini")
    assert "unknown" in plan(maze).out
    refused = plan(maze, "--max-cost", "20", "--json")
    assert refused.status == 1
    assert "--max-cost needs what an attempt with openai/gpt-5-mini costs" in refused.error["message"]


def test_rewards(maze: Maze) -> None:
    write_journalled_run(
        maze.workspace.evals_dir / "graded", [[2.0, 4.0, 3.0, 3.0], [7.0, 9.0, 8.0, 8.0]] * 10
    )
    words = ("--metric", "reward", "--pilot", "graded")
    assert "or more" in plan(maze, *words, "--detect", "1.5").out
    (maze.workspace.root / "configs/eval/walks.decide.toml").write_text(
        "[decide]\nconfidence = 0.9\nreward_range = [0, 10]\n"
    )
    assert plan(maze, *words, "--json").resource["confidence"] == 0.9
    refused = plan(maze, *words, "--detect", "11")
    assert refused.status == 2 and "a reward can change by 10 at most" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--detect", "3"), "can change by 1 at most: write 3 points as 0.03"),
        (("--confidence", "95"), "--confidence must be between 0.5 and 1"),
        (("--pass-rate", "60"), "write 60% as 0.6"),
        (("--rows-at-most", "1"), "must be at least 2"),
        (("--max-cost", "1e308"), "--max-cost must be an amount of US dollars, from 0 to 1e+12"),
        (("--metric", "reward"), "--metric reward needs a --pilot"),
        (("--pilot", "pilot", "--icc", "0.3"), "are assumptions for a plan without a run"),
    ],
)
def test_usage_errors(maze: Maze, words: tuple[str, ...], said: str) -> None:
    outcome = plan(maze, *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert said in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ([[1.0, 0.0]], "one row with a score"),
        ([[None, None]] * 12, "no attempt with a score"),
        ([[1.0, 1.0]] * 12, "--pass-rate 0.95 --icc 0.3"),
    ],
)
def test_pilot_without_variance(maze: Maze, rewards: list[list[float | None]], said: str) -> None:
    write_journalled_run(maze.workspace.evals_dir / "odd", rewards)
    error = plan(maze, "--pilot", "odd", "--json").error
    assert said in f"{error['message']} {error['hint']}" and "--pass-rate" in error["hint"]


def test_refusals(maze: Maze) -> None:
    write_journalled_run(maze.workspace.evals_dir / "huge", [[1e200, -1e200], [0.0, 1.0]] * 10)
    error = plan(maze, "--metric", "reward", "--pilot", "huge", "--json").error
    assert "too large" in error["message"]

    write_journalled_run(
        maze.workspace.evals_dir / "other", [FAIR, HARD], digests=[f"{row:032x}" for row in (900, 901)]
    )
    apart = plan(maze, "--pilot", "pilot", "--against", "other", "--json")
    assert apart.status == 1
    assert (
        apart.error["message"] == maze.osmosis("eval", "compare", "other", "pilot", "--json").error["message"]
    )
    assert "leave out --against" in apart.error["hint"]
    itself = plan(maze, "--pilot", "pilot", "--against", "pilot", "--json")
    assert itself.status == 1 and "compared with itself" in itself.error["message"]


def test_platform_run_with_counts(maze: Maze) -> None:
    offer_run(maze, {**METRICS, "status": "finished"})
    error = plan(maze, "--pilot", "amber-otter-42", "--json").error
    assert "the platform reports counts of amber-otter-42, not attempts" in error["message"]
    assert error["hint"].startswith("plan with its pass rate: --pass-rate 0.50")


def test_dataset_only_on_the_platform(maze: Maze) -> None:
    (maze.workspace.root / "data/walks.jsonl").unlink()
    maze.get("/datasets/walks").respond(
        json={"id": "ds_31", "file_name": "walks", "status": "uploaded", "row_count": 900}
    )
    assert plan(maze, "--json").resource["dataset_rows"] == 900
    maze.get("/datasets/walks").respond(404, json={"error": "no such dataset"})
    found = plan(maze, "--json").resource
    assert (found["dataset_rows"], found["config_design"]) == (None, None)
    assert any("how many rows the dataset walks has is not known here" in note for note in found["notes"])


def test_designs_that_do_not_suffice(maze: Maze) -> None:
    """Without --detect, a usual difference of three points is planned for; JSON has no goal that was not given."""
    planned = plan(maze, "--json").resource
    assert planned["detect"] is None and planned["cheapest"] is None
    _own, usual, _more = planned["sentences"]
    assert re.fullmatch(
        r"No number of attempts on 120 rows detects 3 points; 1,\d{3} rows with n = 4 would\.", usual
    )
    (cheapest,) = [
        sentence
        for sentence in plan(maze, "--rows-at-most", "9000", "--json").resource["sentences"]
        if sentence.startswith("Cheapest design for 3 points: ")
    ]
    table = plan(maze, "--rows-at-most", "9000", "--plain").out
    assert cheapest in table and "\tcheapest\n" in table


def test_attempts_that_do_not_help(maze: Maze) -> None:
    """If attempts at a row do not differ, only rows help."""
    more = plan(maze, "--icc", "1", "--rows-at-most", "500").out
    assert re.search(
        r"Twice the rows would detect [\d.]+ points, twice the attempts would detect no smaller", more
    )
