"""Rows that `osmosis eval run` refuses before it starts anything."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from tests.cli.conftest import Cli
from tests.evaluation.rollouts import write_rollout
from tests.workspace.builders import MINIMAL_EVAL, make_workspace

CONFIG = "configs/eval/multiply.toml"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = make_workspace(tmp_path / "workspace")
    (found.root / CONFIG).write_text(MINIMAL_EVAL)
    write_rollout(found.rollouts_dir / "multiply")
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    return found.root


def refusal(cli: Cli, workspace: Path, **columns: Any) -> str:
    """Return why the rows are refused, of which nothing is left behind."""
    write_table(pa.table(columns), "rows.parquet")
    outcome = cli("--plain", "eval", "run", CONFIG, "--yes", "--dataset-file", "rows.parquet")
    assert (outcome.status, outcome.out) == (1, "")
    assert not list(workspace.glob(".osmosis/evals/[!.]*"))
    return outcome.err


def test_a_file_of_other_columns_is_refused_with_those_that_were_found(cli: Cli, workspace: Path) -> None:
    said = refusal(cli, workspace, question=["q"], answer=["a"])
    assert "missing 'user_prompt', 'ground_truth' (found 'question', 'answer')" in said


def test_nan_is_no_answer(cli: Cli, workspace: Path) -> None:
    said = refusal(cli, workspace, user_prompt=["a", "b"], ground_truth=[1.5, float("nan")])
    assert "row 2: no value for 'ground_truth'" in said


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Decimal("1.50"), "a Decimal"),
        (datetime.date(2026, 1, 2), "a date"),
        (datetime.datetime(2026, 1, 2), "a datetime"),
        (b"x", "binary data"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_metadata_that_json_cannot_hold_is_named_with_row_and_column(
    cli: Cli, workspace: Path, value: object, found: str
) -> None:
    metadata = [{"item": {"tags": [None]}}, {"item": {"tags": [value]}}]
    prompts = ["a", "b"]
    said = refusal(cli, workspace, user_prompt=prompts, ground_truth=prompts, metadata=metadata)
    assert f"row 2: 'metadata.item.tags[]' is {found}, which JSON cannot hold" in said
