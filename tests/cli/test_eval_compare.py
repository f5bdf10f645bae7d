"""`osmosis eval compare`: the same numbers wherever they are read, and what odd runs and words get."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.eval_replies import offer_run
from tests.cli.maze import Maze
from tests.cli.outcome import Outcome
from tests.decisions.builders import write_journalled_run
from tests.viewer.builders import tiles_of

HARD = [0, 1, 2, 3, 4, 2] * 5
BETTER = [1, 2, 3, 4, 4, 3] * 5


def passes(counts: Sequence[int], n: int = 4) -> list[list[float | None]]:
    return [[1.0] * count + [0.0] * (n - count) for count in counts]


def record(maze: Maze, name: str, rewards: Sequence[Sequence[float | None]], **inputs: Any) -> Path:
    model = {"model_path": f"openai/{name}", **inputs}
    return write_journalled_run(maze.workspace.evals_dir / name, rewards, inputs=model)


@pytest.fixture
def maze(maze: Maze) -> Maze:
    """With a baseline ``fern`` and a candidate ``moss``, which is better, on 30 rows."""
    record(maze, "fern", passes(HARD))
    record(maze, "moss", passes(BETTER))
    return maze


def compare(maze: Maze, *words: str, mode: str = "--plain") -> Outcome:
    return maze.osmosis("eval", "compare", *words, mode)


def resource(maze: Maze, *words: str) -> dict[str, Any]:
    outcome = compare(maze, *words, mode="--json")
    assert (outcome.status, outcome.json["operation"]) == (0, "eval.compare")
    found: dict[str, Any] = outcome.resource
    return found


def table_of(plain: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a plain table by their first cell."""
    lines = plain[plain.index(f"{title}:\n") :].splitlines()[2:]
    return {line.split("\t")[0]: line.split("\t")[1:] for line in lines if "\t" in line}


def test_same_numbers_in_every_output(maze: Maze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plain = compare(maze, "fern", "moss", "--markdown", str(tmp_path / "comment.md"))
    rows = table_of(plain.out, "moss against fern")
    shown = html.unescape((tmp_path / "comment.md").read_text("utf-8")).replace("\u200b", "")
    rich = maze.osmosis("eval", "compare", "fern", "moss").out
    found = resource(maze, "fern", "moss")["candidates"][0]
    assert found["sentence"] in plain.out and found["sentence"] in shown
    assert found["sentence"] in " ".join(rich.split())
    assert len(rows) >= len(found["metrics"]) == 10
    for metric in found["metrics"]:
        name = metric["metric"] + (" (decides)" if metric["metric"] == "pass_rate" else "")
        cells = rows[name]
        assert f"| {name} | {' | '.join(cells)} |" in shown
        assert re.search(r"│ " + re.escape(name) + r"\s+│\s+" + r"\s+│\s+".join(map(re.escape, cells)), rich)
        if metric["metric"] in ("pass_rate", "pass@2", "pass@4", "pass^2", "pass^4", "unscored"):
            change = metric["difference"]
            assert cells == [
                f"{100 * metric['baseline']['value']:.1f}%",
                f"{100 * metric['candidate']['value']:.1f}%",
                f"{'+' if change['value'] > 0 else ''}{100 * change['value']:.1f} points",
                f"{100 * change['low']:.1f} to {100 * change['high']:.1f}",
                f"{change['p']:.3f}" if change["p"] >= 0.0005 else "< 0.001",
                str(change["rows"]),
            ]


def test_default_screen_fits(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    short, full = (
        maze.osmosis("eval", "compare", "fern", "moss", *more).out for more in ((), ("--verbose",))
    )
    assert short.startswith("moss is better than fern by ") and len(short.splitlines()) <= 40
    assert "Different inputs: model." in short
    for title in ("What differs", "What the runs took"):
        assert title in full and title not in short


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--metric", "pass_rat"],
            "there is no metric 'pass_rat' to compare runs by; did you mean 'pass_rate'?",
        ),
        (["--confidence", "0.9999999999999999"], "must be between 0.5 and 1, at most 0.999999"),
        (["--reward-range", "-1e308,1e308"], "'-1e308,1e308' is not a range"),
        (["--reward-range", "nan,1"], "'nan,1' is not a range"),
    ],
)
def test_usage_errors(maze: Maze, words: list[str], said: str) -> None:
    outcome = compare(maze, "fern", "moss", *words)
    assert (outcome.status, outcome.out) == (2, "") and said in outcome.err


def test_refusals(maze: Maze, tmp_path: Path) -> None:
    assert compare(maze, "fern", "mos").status == 0, "the beginning of a name is one"
    for words, said, hint in (
        (("fern", "fern"), "the run fern is compared with itself", "name another run"),
        (("local:fern", "local:mosss"), "Run 'mosss' not found.", "did you mean moss?"),
        (
            ("fern", "moss", "--reward-range", "0,0.5"),
            "has a reward of 1, which is not between 0 and 0.5",
            "--reward-range",
        ),
    ):
        outcome = compare(maze, *words)
        assert (outcome.status, outcome.out) == (1, "")
        assert said in outcome.err and hint in outcome.err and "Traceback" not in outcome.err
        assert outcome.err.startswith("Error: ") and outcome.err.count("\n") == 2


def test_line_break_in_run_name(maze: Maze, tmp_path: Path) -> None:
    """A CI system reads commands from lines; a directory may be called anything."""
    evil = write_journalled_run(
        tmp_path / "x\n::error::pwned", passes(BETTER), inputs={"model_path": "y"}, name="x"
    )
    for words in (
        ("compare", "fern", str(evil)),
        ("gate", str(evil), "--against", "fern", "--margin", "reward=0.9"),
    ):
        for mode in ("", "--plain"):
            outcome = maze.osmosis("eval", *words, *filter(None, [mode]))
            assert outcome.status == 0 and "\n::" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1.0]], [[0.0]]),
        ([[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]]),
        ([[None, None]] * 12, [[1.0, 0.0]] * 12),
        ([[0.5]] * 12, [[0.5]] * 12),
        ([[1.0]] * 12, [[1.0]] * 12),
    ],
)
def test_inconclusive_comparisons(
    maze: Maze, a: list[list[float | None]], b: list[list[float | None]]
) -> None:
    record(maze, "odd", a)
    record(maze, "other", b)
    for mode in ("", "--plain", "--json"):
        outcome = maze.osmosis("eval", "compare", "odd", "other", *filter(None, [mode]))
        assert outcome.status == 0, outcome
        assert re.search("No significant difference|cannot be compared", " ".join(outcome.out.split()))


def test_different_graders_and_identical_samples(maze: Maze) -> None:
    for name, grader in (("old", "1" * 64), ("new", "2" * 64)):
        write_journalled_run(
            maze.workspace.evals_dir / name, passes(HARD), inputs={"model_path": name}, grader_digest=grader
        )
    refused = compare(maze, "old", "new")
    assert refused.status == 1 and "were graded by different rules" in refused.err
    allowed = compare(maze, "old", "new", "--allow-different-grader")
    assert allowed.status == 0 and allowed.out.count("(graded differently: ") == 1
    assert ", graded differently: " in allowed.out.splitlines()[0]
    assert resource(maze, "old", "new", "--allow-different-grader")["candidates"][0]["label"] is not None

    record(maze, "twin", passes(BETTER), model_path="openai/fern")
    refused = compare(maze, "fern", "twin")
    assert refused.status == 1 and "have the same attempts: seed 0" in refused.err
    assert compare(maze, "fern", "twin", "--allow-same").status == 0


@pytest.mark.parametrize(("changed", "same"), [(1, 119), (30, None)])
def test_note_about_shared_seed(maze: Maze, changed: int, same: int | None) -> None:
    counts = [count + (place < changed) for place, count in enumerate([0, 1, 2, 3, 2] * 6)]
    code = {"rollout": {"name": "math", "entrypoint": "main.py", "source_digest": "6" * 64}}
    record(maze, "old", passes([0, 1, 2, 3, 2] * 6), model_path="openai/fern")
    record(maze, "new", passes(counts), model_path="openai/fern", **code)
    note = f"old and new share seed 0, and {same} of 120 attempts have the same reward: "
    outcome = compare(maze, "old", "new")
    assert outcome.status == 0
    assert note in outcome.out if same else "share seed" not in outcome.out
    notes = resource(maze, "old", "new")["candidates"][0]["notes"]
    assert any("share seed 0" in each for each in notes) == (same is not None)
    # More attempts on each row share those that both runs made.
    record(maze, "longer", [[*row, 1.0] for row in passes(counts)], model_path="openai/fern", **code)
    assert ("of 120 attempts" in compare(maze, "old", "longer").out) == (same is not None)


def test_hosted_run_with_counts(maze: Maze) -> None:
    offer_run(maze, own={"revision": 2})
    outcome = compare(maze, "fern", "platform:amber-otter-42")
    assert outcome.status == 0, outcome.err
    assert "amber-otter-42 (revision 2, on the platform)" in outcome.out
    assert ", unpaired" in outcome.out and "amber-otter-42 has only counts, without rows" in outcome.out
    (rate,) = resource(maze, "fern", "platform:amber-otter-42")["candidates"][0]["metrics"]
    assert (rate["metric"], rate["difference"]["method"]) == ("pass_rate", "newcombe")
    assert rate["baseline"]["method"] == "wilson" and rate["baseline"]["rows"] == 30
    refused = compare(maze, "fern", "platform:amber-otter-42", "--metric", "reward")
    assert refused.status == 0 and "cannot be compared: the reward is not known in both runs" in refused.out


def cells_of(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's table of numbers by their first cell, without how an interval was made."""
    table = page[page.index('aria-label="All metrics"') :].partition("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[2:]]
    plain = [[html.unescape(re.sub(r"( <span.*?</span>|<.*?>)", "", cell)) for cell in row] for row in rows]
    return {name: cells for name, *cells in plain}


def test_report_has_the_same_numbers(maze: Maze, tmp_path: Path) -> None:
    report = tmp_path / "moss.html"
    assert maze.osmosis("view", "moss", "--report", str(report)).status == 0
    terminal = maze.osmosis("eval", "info", "moss", "--plain", "--verbose").out
    data = maze.osmosis("eval", "info", "moss", "--json").data
    compared = resource(maze, "fern", "moss")["candidates"][0]["metrics"]

    page = html.unescape(report.read_text("utf-8"))
    shown = cells_of(page)
    assert {name: cells for name, cells in table_of(terminal, "Results").items() if name in shown} == shown
    headline = data["headline"]
    rate = next(cells for name, cells in shown.items() if name.startswith("Pass rate"))
    interval = f"{100 * headline['low']:.1f}–{100 * headline['high']:.1f}%"
    assert rate[:2] == [f"{100 * headline['pass_rate']:.1f}%", interval]
    tiles = tiles_of(page)
    assert tiles["Pass rate"] == f"{rate[0]} 95% CI {interval}" and tiles["Scored"] == "120 of 120 planned"
    values = {metric["metric"]: metric["candidate"]["value"] for metric in compared}
    assert values["pass_rate"] == pytest.approx(headline["pass_rate"], abs=1e-12)
    for name in ("pass@2", "pass@4", "pass^2", "pass^4"):
        assert shown[name][0] == f"{100 * values[name]:.1f}%"
    assert shown["Reward"][0] == f"{values['reward']:.3f}"
