from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.datasets import SUPPORTED_EXTENSIONS, DatasetRow, find_row, iter_rows
from osmosis_ai.datasets.reader import Record
from osmosis_ai.datasets.rows import normalise
from osmosis_ai.errors import OsmosisError
from tests.datasets.builders import jsonl, write, write_rows


def rows_of(directory: Path, rows: list[dict[str, Any]]) -> list[DatasetRow]:
    return list(iter_rows(write(directory, "a.jsonl", jsonl(rows))))


def problem_of(directory: Path, rows: list[dict[str, Any]]) -> str:
    with pytest.raises(OsmosisError) as caught:
        rows_of(directory, rows)
    return caught.value.message


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_a_row_becomes_messages_label_and_metadata(tmp_path: Path, extension: str) -> None:
    record = {
        "system_prompt": "Be brief.",
        "user_prompt": "2 + 2?",
        "ground_truth": "4",
        "metadata": {"level": 1, "tags": ["easy"]},
        "source": "made up",
    }
    [row] = iter_rows(write_rows(tmp_path, extension, [record]))
    assert row == DatasetRow(
        source_row_index=0,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}],
        label="4",
        metadata={"level": 1, "tags": ["easy"]},
    )


@pytest.mark.parametrize(
    "record, label",
    [
        ({"ground_truth": "a", "label": "b"}, "a"),
        ({"ground_truth": "", "label": "b"}, "b"),
        ({"ground_truth": None, "label": "b"}, "b"),
        ({"label": "b"}, "b"),
        ({"ground_truth": 0}, "0"),
        ({"ground_truth": 12345678901234567890123}, "12345678901234567890123"),
        ({"ground_truth": 1.5}, "1.5"),
        ({"ground_truth": True}, "true"),
        ({"ground_truth": {"ä": [1]}}, '{"ä": [1]}'),
    ],
)
def test_the_label_is_ground_truth_or_else_label_as_text(
    tmp_path: Path, record: dict[str, Any], label: str
) -> None:
    [row] = rows_of(tmp_path, [{"user_prompt": "q", **record}])
    assert row.label == label


@pytest.mark.parametrize(
    "metadata, expected",
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 100000000000000000000}', {"a": 10**20}),
        ({}, None),
        ("{}", None),
        (" ", None),
        (None, None),
    ],
)
def test_metadata_is_an_object_or_text_that_holds_one(
    tmp_path: Path, metadata: object, expected: dict[str, Any] | None
) -> None:
    [row] = rows_of(tmp_path, [{"user_prompt": "q", "metadata": metadata}])
    assert row.metadata == expected


def test_metadata_alone_is_a_row(tmp_path: Path) -> None:
    assert rows_of(tmp_path, [{"metadata": {"task": 7}}]) == [DatasetRow(0, [], None, {"task": 7})]


def test_one_row_is_enough(tmp_path: Path) -> None:
    assert len(rows_of(tmp_path, [{"user_prompt": "q", "ground_truth": "a"}])) == 1


@pytest.mark.parametrize(
    "record, problem",
    [
        ({"user_prompt": "", "ground_truth": "a"}, "line 2: no value for 'user_prompt'"),
        ({"user_prompt": "q", "ground_truth": None}, "line 2: no value for 'ground_truth'"),
    ],
)
def test_a_row_without_prompt_or_answer_is_an_error(
    tmp_path: Path, record: dict[str, Any], problem: str
) -> None:
    message = problem_of(tmp_path, [{"user_prompt": "q", "ground_truth": "a"}, record])
    assert message == f"{tmp_path}/a.jsonl: {problem}."


@pytest.mark.parametrize(
    "record, problem",
    [
        ({"question": "q"}, "missing 'user_prompt', 'ground_truth' (found 'question')"),
        ({"user_prompt": "q"}, "missing 'ground_truth' (found 'user_prompt')"),
        ({"user_prompt": "", "metadata": {}}, "the row has neither a 'user_prompt' nor 'metadata'"),
        ({"metadata": "[1]"}, "'metadata' must be a JSON object, found an array"),
        ({"metadata": 3}, "'metadata' must be a JSON object, found a number"),
        ({"metadata": "{x"}, "'metadata' is not valid JSON"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused(tmp_path: Path, record: dict[str, Any], problem: str) -> None:
    assert f"line 1: {problem}" in problem_of(tmp_path, [record])


def test_rows_before_a_bad_one_are_given(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl([{"user_prompt": "q", "ground_truth": "a"}]) + "oops\n")
    rows = iter_rows(path)
    assert next(rows).label == "a"
    with pytest.raises(OsmosisError, match="line 2: not valid JSON"):
        next(rows)


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_one_row_is_found_without_looking_at_those_before_it(
    tmp_path: Path, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"user_prompt": f"{number} + 1?", "ground_truth": str(number + 1)} for number in range(50)]
    path = write_rows(tmp_path, extension, records)
    expected = list(iter_rows(path))[41]
    made: list[int] = []

    def noted(index: int, record: Record, columns: Collection[str]) -> DatasetRow:
        made.append(index)
        return normalise(index, record, columns)

    monkeypatch.setattr("osmosis_ai.datasets.rows.normalise", noted)
    assert find_row(path, 41, look_s=60) == expected
    assert made == [41]
    assert find_row(path, 50, look_s=60) is None
    assert find_row(path, 41, look_s=-1) is None
