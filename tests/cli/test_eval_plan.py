"""`osmosis eval plan`: how much has to be run, and what is said where nobody can tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.maze import Maze, Outcome
from tests.datasets.builders import jsonl, prompt_rows
from tests.evaluation.recorded_runs import passing, write_run

CONFIG = """
[experiment]
rollout = "walks"
entrypoint = "main.py"
model_path = "{model}"
dataset = "walks"

[evaluation]
limit = 10
n = 4
"""


@pytest.fixture
def maze(maze: Maze) -> Iterator[Maze]:
    yield maze
