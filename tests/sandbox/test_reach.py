"""The table of docs/platform/isolation.md, cell by cell: each is what a malicious rollout really reached at that level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# By its words in the table, what the probe calls it.
TRIED = {
    "its own commit and artifacts": "own files",
    "its own secrets": "own secret",
    "its run's model and callbacks": "own model",
    "other runs, the data directory, the database's file, keys": "data directory",
    "the operator's home": "home",
    "the environment and memory of the platform and its workers": "parents",
    "the environment of other programs of the platform's user": "neighbours",
    "writing to what that user may: an interpreter, the SDK": "installation",
    "writing to the system and the kernel's settings": "system",
    "more processes than the run may have": "processes",
    "more memory than the run may have": "memory",
    "services on the machine's loopback, the network": "loopback",
    "abstract sockets": "abstract",
    "a cloud's metadata address": "metadata",
    "staying when the run has ended, in a session of its own": "staying",
}
LEVELS = ("sandbox", "no network", "no sandbox", "no sandbox as root")
# What a sandbox started by root reaches in addition.
ROOTS_OWN = {"processes"}


def table() -> dict[str, list[str]]:
    """Return the cells of the table, as the page has them."""
    lines = (REPOSITORY / "docs" / "platform" / "isolation.md").read_text().splitlines()
    first = next(
        number for number, line in enumerate(lines) if line.startswith("| within reach of a rollout")
    )
    rows = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    return rows


CELLS = [(row, level) for row in table() for level in LEVELS]


@pytest.fixture(scope="module")
def reached() -> dict[str, dict[str, bool]]:
    """What is reached at each level, tried once in a process that can have a network of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.reach"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, dict[str, bool]] = json.loads(ended.stdout)
    if "skip" in found:
        pytest.skip(str(found["skip"]))
    return found


def test_the_table_has_a_row_for_everything_that_is_tried() -> None:
    assert set(table()) == set(TRIED)
    assert {len(cells) for cells in table().values()} == {len(LEVELS)}


@pytest.mark.integration
@pytest.mark.parametrize(("row", "level"), CELLS, ids=[f"{TRIED.get(row)}, {level}" for row, level in CELLS])
def test_a_cell_is_what_was_reached(row: str, level: str, reached: dict[str, dict[str, bool]]) -> None:
    found = reached.get(level, {}).get(TRIED[row])
    if found is None:
        pytest.skip("only root can try it: as root, or in a network of its own")
    cell = table()[row][LEVELS.index(level)]
    assert cell.split()[0].rstrip(",;(") == ("yes" if found else "no"), cell


@pytest.mark.integration
@pytest.mark.parametrize("level", LEVELS[:2])
def test_a_sandbox_that_root_makes_differs_in_processes_alone(
    level: str, reached: dict[str, dict[str, bool]]
) -> None:
    roots = reached.get(f"{level} as root")
    if roots is None:
        pytest.skip("only root makes one")
    differs = {name for name, found in reached[level].items() if roots[name] != found}
    assert differs == ROOTS_OWN and roots["processes"]
