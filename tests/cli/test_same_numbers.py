"""What a run came to is the same to the digit wherever it is read."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from osmosis_ai.files import cache_dir
from osmosis_ai.ui.numbers import duration
from osmosis_ai.viewer.local.source import LocalSource
from tests.cli.maze import Maze
from tests.cli.test_eval_compare import BETTER, HARD, passes, record, resource, table_of
from tests.viewer.browsing import page_text, visitor

Cells = dict[str, list[str]]


def cells_of(page: str) -> Cells:
    """Return the rows of a page's table of numbers by their first cell, without how an interval was made."""
    table = page[page.index('aria-label="Numbers"') :].partition("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[2:]]
    plain = [[html.unescape(re.sub(r"( <span.*?</span>|<.*?>)", "", cell)) for cell in row] for row in rows]
    return {name: cells for name, *cells in plain}


def test_page_terminal_json_report_and_comparison_say_the_same_numbers(maze: Maze, tmp_path: Path) -> None:
    record(maze, "fern", passes(HARD))
    record(maze, "moss", passes(BETTER))

    page = page_text(visitor(LocalSource(maze.workspace.root, cache_dir=cache_dir())).get("/evals/moss"))
    report = tmp_path / "moss.html"
    assert maze.osmosis("view", "moss", "--report", str(report)).status == 0
    terminal = maze.osmosis("eval", "info", "moss", "--plain").out
    data = maze.osmosis("eval", "info", "moss", "--json").json["data"]
    compared = resource(maze, "fern", "moss")["candidates"][0]["metrics"]

    shown = cells_of(page)
    assert shown == cells_of(report.read_text("utf-8"))
    assert {name: cells for name, cells in table_of(terminal, "Results").items() if name in shown} == shown
    latency = data["metrics"]["estimates"]["latency"]
    of_json = {
        "Latency of a rollout": latency["rollout_ms"],
        "  of it, in the model": latency["model_ms"],
        "  elsewhere (agent, tools, grader, queue)": latency["elsewhere_ms"],
    }
    assert latency["elsewhere_ms"]["n"] == latency["model_ms"]["n"] == 120
    for name, told in of_json.items():
        assert told["p50"] == (1000.0 if name.startswith("Latency") else 500.0)
        value, _, over = shown[name]
        spread = [f"{each} {duration(told[each] / 1000)}" for each in ("p50", "p90", "p95", "p99")]
        assert [value, *over.split(" · ")[:3]] == spread
        assert over.split(" · ")[3].startswith(f"over {told['n']} attempts that ")
    headline = data["headline"]
    rate = next(cells for name, cells in shown.items() if name.startswith("Pass rate"))
    interval = f"{100 * headline['low']:.1f} – {100 * headline['high']:.1f} %"
    assert rate[:2] == [f"{100 * headline['pass_rate']:.1f} %", interval]
    assert f"{rate[0]} of 120 scored samples pass ({interval}); 120 of 120 planned scored." in page
    values = {metric["metric"]: metric["candidate"]["value"] for metric in compared}
    assert values["pass_rate"] == pytest.approx(headline["pass_rate"], abs=1e-12)
    for name in ("pass@2", "pass@4", "pass^2", "pass^4"):
        assert shown[name][0] == f"{100 * values[name]:.1f} %"
    assert shown["Reward"][0] == f"{values['reward']:.3f}"
