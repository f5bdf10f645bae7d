from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.dataset_columns import read_prompts, read_slice_values


def dataset(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_column_and_a_key_of_the_metadata_cut_into_slices(tmp_path: Path) -> None:
    file = dataset(
        tmp_path / "rows.jsonl",
        [
            {"user_prompt": "a", "level": 1, "metadata": {"topic": "sum"}},
            {"user_prompt": "b", "level": 2, "metadata": {"topic": None}},
            {"user_prompt": "c", "level": 1, "metadata": {"topic": "product", "rare": True}},
        ],
    )
    places = np.array([2, 1])
    assert read_slice_values(file, "level", places) == ["1", "2"]
    assert read_slice_values(file, "topic", places) == ["product", None]


def test_a_misspelt_column_gets_a_suggestion(tmp_path: Path) -> None:
    file = dataset(
        tmp_path / "rows.jsonl",
        [{"user_prompt": "a", "ground_truth": "b", "metadata": {"difficulty": "hard"}}],
    )
    with pytest.raises(OsmosisError, match="has no column 'dificulty'") as caught:
        read_slice_values(file, "dificulty", np.array([0]))
    assert caught.value.hint == "did you mean 'difficulty'?"


def test_a_column_with_over_50_values_is_no_slice(tmp_path: Path) -> None:
    rows = [{"user_prompt": f"{row}", "ground_truth": "x", "few": row % 50} for row in range(51)]
    file = dataset(tmp_path / "rows.jsonl", rows)
    assert len(set(read_slice_values(file, "few", np.arange(51)))) == 50
    with pytest.raises(OsmosisError, match="'user_prompt' has more than 50 values"):
        read_slice_values(file, "user_prompt", np.arange(51))


def test_prompts_are_the_same_whatever_answer_is_expected(tmp_path: Path) -> None:
    first = dataset(tmp_path / "a.jsonl", [{"user_prompt": "a", "ground_truth": "1"}])
    other = dataset(
        tmp_path / "b.jsonl",
        [{"user_prompt": "b", "ground_truth": "1"}, {"user_prompt": "a", "ground_truth": "2"}],
    )
    assert read_prompts(first, np.array([0]))[0] == read_prompts(other, np.array([1]))[1]
