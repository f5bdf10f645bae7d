"""Records from JSON Lines: both forms, and a line number for whatever is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.records import ALL_RECORDS, RecordIndex, RecordRules, RubricRecord, iter_records


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path: Path, rules: RecordRules = ALL_RECORDS) -> list[RubricRecord]:
    return list(iter_records(path, rules))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


TURNS = [
    {"role": "assistant", "content": "first"},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": None, "tool_calls": []},
]
EXTRA = {"metadata": {"a": 1}, "extra_info": {"metadata": {"b": 2}, "original_input": "q"}}


@pytest.mark.parametrize(
    ("line", "classic", "expected"),
    [
        ({"messages": TURNS, "solution_str": "not this"}, False, {"solution_str": "one\ntwo"}),
        ({"id": 7, "conversation_id": "c"}, False, {"label": "7"}),
        ({"id": 7, "conversation_id": "c"}, True, {"label": "c"}),
        ({"conversation_id": "c"}, False, {"label": "c"}),
        ({}, True, {"label": "record[1]"}),
        # Fields of another type count as absent.
        (
            {"ground_truth": 5, "original_input": ["x"], "metadata": "m"},
            False,
            {"ground_truth": None, "original_input": None, "metadata": None},
        ),
        (EXTRA, False, {"metadata": {"a": 1}, "original_input": "q"}),
        (EXTRA, True, {"metadata": {"b": 2, "dataset_metadata": {"a": 1}}, "original_input": "q"}),
    ],
)
def test_a_line_is_read_by_the_rules_of_its_command(
    data: Path, line: dict[str, Any], classic: bool, expected: dict[str, Any]
) -> None:
    (record,) = read(write(data, {"solution_str": "s", **line}), RecordRules(classic=classic))
    assert {name: getattr(record, name) for name in expected} == expected


def test_a_byte_order_mark_is_passed_over_and_long_integers_keep_their_digits(data: Path) -> None:
    data.write_bytes(
        b'\xef\xbb\xbf\n{"solution_str": "s", "metadata": {"n": 123456789012345678901234567890}}\n'
    )
    (record,) = read(data)
    assert (record.line, record.metadata) == (2, {"n": 123456789012345678901234567890})


def test_a_long_line_cut_within_a_character_is_still_text(data: Path) -> None:
    data.write_text('{"solution_str": "' + "€" * 3_000_000 + '"}\n', encoding="utf-8")
    with pytest.raises(OsmosisError, match="longer than 8 MiB"):
        read(data)


# -- the index -----------------------------------------------------------------------------


def scan(path: Path) -> RecordIndex:
    return RecordIndex(path, RecordRules(), (0.0, 1.0))


def test_the_index_keeps_labels_lengths_bounds_and_people(data: Path) -> None:
    write(
        data,
        {"id": "ä", "solution_str": "four", "human_score": 0.5},
        {"solution_str": "s", "score_min": 1, "score_max": 5, "label": 4},
        {"solution_str": "s", "label": True},
        {"solution_str": "s", "label": "a class"},
        {"solution_str": "s", "label": 7},
    )
    index = scan(data)
    assert index.labels == ["ä", *(f"record[{place}]" for place in range(2, 6))]
    assert list(index.lengths) == [4, 1, 1, 1, 1]
    assert list(zip(index.lows, index.highs, strict=True)) == [(0, 1), (1, 5), (0, 1), (0, 1), (0, 1)]
    assert list(index.human)[:3] == [0.5, 4.0, 1.0]
    # A number outside the scale is a class, as other tools use the field.
    assert index.human[3] != index.human[3] and index.human[4] != index.human[4]
    assert index.ignored_labels == 1


def test_records_that_a_judge_cannot_tell_apart_are_copies(data: Path) -> None:
    write(
        data,
        {"id": "a", "solution_str": "s", "metadata": {"x": 1, "y": 2}},
        {"id": "b", "solution_str": "s"},
        {"id": "c", "solution_str": "s", "metadata": {"y": 2, "x": 1}, "human_score": 0.5},
        {"id": "d", "solution_str": "s", "score_max": 5},
    )
    index = scan(data)
    assert list(index.copy_of) == [0, 1, 0, 3]
    assert index.has_copies


def test_a_file_that_changes_while_it_is_judged_is_noticed(data: Path) -> None:
    index = scan(write(data, {"solution_str": "s"}))
    write(data, {"solution_str": "s"}, {"solution_str": "t"})
    os.utime(data, ns=(1, 1))
    with pytest.raises(OsmosisError, match="was changed during the session"):
        list(index.records())
