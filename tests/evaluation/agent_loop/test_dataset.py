from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.agent_loop.dataset import (
    REQUIRED_COLUMNS,
    DatasetReader,
    dataset_row_to_request,
    loop_row,
)
from osmosis_ai.evaluation.agent_loop.errors import DatasetParseError, DatasetValidationError
from tests.datasets.builders import write, write_rows


def question(number: int, **more: Any) -> dict[str, Any]:
    return {"system_prompt": "Be brief.", "user_prompt": f"{number}?", "ground_truth": str(number), **more}


@pytest.mark.parametrize("extension", ["jsonl", "json", "parquet"])
def test_the_same_rows_come_out_of_every_format_and_further_columns_stay_as_they_are(
    tmp_path: Path, extension: str
) -> None:
    rows = [question(number, Level=number, tags=["a", "ü"]) for number in range(50)]
    path = write_rows(tmp_path, extension, rows).rename(tmp_path / f"rows.{extension.upper()}")
    reader = DatasetReader(str(path))
    assert len(reader) == 50
    assert reader.read() == rows
    assert reader.read(limit=2, offset=47) == rows[47:49]
    assert reader.read(offset=60) == []


def test_known_columns_are_found_in_any_case_and_ground_truth_is_optional(tmp_path: Path) -> None:
    lines = [
        '{"System_Prompt": "s", "USER_PROMPT": "u", "Ground_Truth": "g", "Answer": 1}',
        "",
        '{"system_prompt": "s", "user_prompt": "u"}',
        '{"system_prompt": "s", "user_prompt": "u", "ground_truth": null, "only_here": true}',
    ]
    rows = DatasetReader(write(tmp_path, "a.jsonl", "\n".join(lines))).read()
    assert rows == [
        {"system_prompt": "s", "user_prompt": "u", "ground_truth": "g", "Answer": 1},
        {"system_prompt": "s", "user_prompt": "u", "ground_truth": None},
        {"system_prompt": "s", "user_prompt": "u", "ground_truth": None, "only_here": True},
    ]
    assert set(REQUIRED_COLUMNS) == {"system_prompt", "user_prompt"}


def test_a_file_without_lines_has_no_rows(tmp_path: Path) -> None:
    for text in ("", "\n \n"):
        reader = DatasetReader(write(tmp_path, "a.jsonl", text))
        assert (len(reader), reader.read()) == (0, [])
    assert DatasetReader(write(tmp_path, "a.json", "[]")).read() == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "x", "Unsupported file format"),
        ("a.csv", "x", "Unsupported file format"),
        (
            "a.jsonl",
            '{"user_prompt": "u", "system_prompt": "s"}\n{oops}\n',
            "Invalid JSONL in {path}: line 2",
        ),
        ("a.jsonl", b'{"user_prompt": "u", "system_prompt": "s"}\n\xff\n', "line 2: not UTF-8"),
        ("a.json", b'["\xff"]', "not UTF-8"),
        ("a.json", '[{"user_prompt": ', "Invalid JSON"),
        ("a.json", '{"user_prompt": "u"}', "array of objects"),
        ("a.json", "", "the file is empty"),
        ("a.parquet", "no parquet", "Invalid Parquet in {path}: not a Parquet file"),
    ],
)
def test_a_file_that_is_none_of_its_format_is_refused_with_the_place(
    tmp_path: Path, name: str, content: str | bytes, words: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(DatasetParseError) as caught:
        DatasetReader(path).read()
    assert words.format(path=path) in caught.value.message


def test_a_missing_file_is_one_for_those_who_catch_either_error(tmp_path: Path) -> None:
    for error in (FileNotFoundError, NotFoundError):
        with pytest.raises(error, match=r"Dataset file not found: .*none\.jsonl is not there"):
            DatasetReader(tmp_path / "none.jsonl")
    with pytest.raises(NotFoundError, match="is a directory"):
        DatasetReader(tmp_path)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([1], "Row 7: Expected object, found an array."),
        ({"user_prompt": "u"}, "Row 7: Missing required columns: system_prompt (found: user_prompt)."),
        ({}, "Row 7: Missing required columns: user_prompt, system_prompt (found: none)."),
        (question(1, user_prompt=None), "Row 7: 'user_prompt' cannot be null."),
        (question(1, system_prompt=" \n"), "Row 7: 'system_prompt' cannot be empty."),
        (question(1, user_prompt=3), "Row 7: 'user_prompt' must be a string, found a number."),
        (question(1, ground_truth=[4]), "Row 7: 'ground_truth' must be a string, found an array."),
        (question(1, level=float("inf")), "Row 7: 'level' is inf, which JSON cannot hold."),
    ],
)
def test_a_row_that_no_agent_can_take_is_named_by_its_place(record: object, words: str) -> None:
    with pytest.raises(DatasetValidationError) as caught:
        loop_row(record, 7)
    assert caught.value.message == words


def test_a_bad_row_harms_only_those_who_take_it(tmp_path: Path) -> None:
    rows: list[Any] = [{"nothing": 1}, question(1), "no object", question(3)]
    reader = DatasetReader(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))))
    assert reader.read(limit=1, offset=1) == [rows[1]]
    assert reader.read(offset=3) == [rows[3]]
    with pytest.raises(DatasetValidationError, match="Row 2: Expected object"):
        reader.read(offset=1)


# What is read at a time has a size of its own in each format; all rows together are 13 MB and more.
@pytest.mark.integration
@pytest.mark.parametrize(("extension", "megabytes"), [("jsonl", 2), ("json", 8), ("parquet", 6)])
def test_rows_stream_in_bounded_memory(tmp_path: Path, extension: str, megabytes: int) -> None:
    path = write_rows(tmp_path, extension, [question(1, text="x" * 200)] * 20_000)
    reader = DatasetReader(path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in reader.iter_rows()) == len(reader) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes << 20


def test_a_row_becomes_the_request_that_an_agent_gets() -> None:
    row = question(3, Level=2)
    request = dataset_row_to_request(row, 5)
    assert request.rollout_id == "local-5"
    assert request.server_url == "http://local-rollout.local"
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "3?"},
    ]
    assert request.metadata == {"ground_truth": "3", "row_index": 5, "Level": 2}
    assert (request.completion_params, request.max_turns, request.max_tokens_total) == ({}, 10, 4096)

    request = dataset_row_to_request(
        row,
        5,
        max_turns=2,
        max_tokens_total=9,
        completion_params={"temperature": 0.5},
        rollout_id="eval-5-run-1",
        metadata_overrides={"run_index": 1, "Level": 7},
    )
    assert request.rollout_id == "eval-5-run-1"
    assert request.metadata == {"ground_truth": "3", "row_index": 5, "Level": 7, "run_index": 1}
    assert (request.completion_params, request.max_turns) == ({"temperature": 0.5}, 2)


def test_typed_columns_of_parquet_come_as_json(tmp_path: Path) -> None:
    import datetime
    import decimal

    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "system_prompt": ["s"],
        "user_prompt": ["u"],
        "when": [datetime.datetime(2026, 1, 2, 3, 4)],
        "day": [datetime.date(2026, 1, 2)],
        "price": [decimal.Decimal("1.50")],
        "raw": [b"\xffa"],
        "nested": [{"days": [datetime.date(2026, 1, 3)]}],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    (row,) = DatasetReader(tmp_path / "rows.parquet").read()
    metadata = dataset_row_to_request(row, 0).metadata
    assert {name: metadata[name] for name in columns if name in metadata} == {
        "when": "2026-01-02T03:04:00",
        "day": "2026-01-02",
        "price": "1.50",
        "raw": "\\xffa",
        "nested": {"days": ["2026-01-03"]},
    }


def test_a_row_too_large_for_a_request_is_named() -> None:
    row = {"system_prompt": "s", "user_prompt": "u", "blob": "x" * 1_100_000}
    with pytest.raises(DatasetValidationError, match=r"^Row 4: .*exceeds maximum of 1048576 bytes"):
        dataset_row_to_request(row, 4)
