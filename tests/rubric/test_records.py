"""Records from JSON Lines: both forms, and a line number for whatever is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rubric.records import (
    RecordIndex,
    RecordRules,
    RubricRecord,
    iter_records,
)


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path: Path, rules: RecordRules | None = None) -> list[RubricRecord]:
    return list(iter_records(path, rules))


def refusal(path: Path, rules: RecordRules | None = None) -> str:
    with pytest.raises(OsmosisError) as caught:
        read(path, rules)
    return caught.value.message


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def test_the_last_assistant_turn_with_text_is_judged(data: Path) -> None:
    turns = [
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    (record,) = read(write(data, {"messages": turns, "solution_str": "not this"}))
    assert record.solution_str == "one\ntwo"


def test_a_record_is_known_by_id_then_conversation_then_position(data: Path) -> None:
    lines = [{"id": 7, "conversation_id": "c"}, {"conversation_id": "c"}, {}]
    write(data, *[{**line, "solution_str": "s"} for line in lines])
    assert [record.label for record in read(data)] == ["7", "c", "record[3]"]
    assert [record.label for record in read(data, RecordRules(wrap_metadata=True))] == ["c", "c", "record[3]"]


def test_fields_of_another_type_count_as_absent(data: Path) -> None:
    odd = {"solution_str": "s", "ground_truth": 5, "original_input": ["x"], "metadata": "m"}
    (record,) = read(write(data, odd))
    assert (record.ground_truth, record.original_input, record.metadata) == (None,) * 3


def test_the_classic_command_wraps_metadata_and_leaves_that_of_extra_info(data: Path) -> None:
    line = {
        "solution_str": "s",
        "metadata": {"a": 1},
        "extra_info": {"metadata": {"b": 2}, "original_input": "q"},
    }
    write(data, line)
    assert (read(data)[0].metadata, read(data)[0].original_input) == ({"a": 1}, "q")
    assert read(data, RecordRules(wrap_metadata=True))[0].metadata == {"b": 2, "dataset_metadata": {"a": 1}}


def test_records_of_other_rubrics_are_skipped_whatever_the_case(data: Path) -> None:
    named = [{"rubric_id": "Mine"}, {"rubric_id": "other"}, {}, {"rubric_id": " mine "}]
    write(data, *[{**line, "solution_str": str(place)} for place, line in enumerate(named)])
    kept = [record.solution_str for record in read(data, RecordRules("mine"))]
    tagged = [record.solution_str for record in read(data, RecordRules("mine", tagged_only=True))]
    assert (kept, tagged) == (["0", "2", "3"], ["0", "3"])
    assert refusal(data, RecordRules("absent", tagged_only=True)) == (
        f"No records in '{data}' reference rubric 'absent'."
    )


def test_a_byte_order_mark_is_passed_over_and_long_integers_keep_their_digits(data: Path) -> None:
    data.write_bytes(
        b'\xef\xbb\xbf\n{"solution_str": "s", "metadata": {"n": 123456789012345678901234567890}}\n'
    )
    (record,) = read(data)
    assert (record.line, record.metadata) == (2, {"n": 123456789012345678901234567890})


def test_a_long_line_cut_within_a_character_is_still_text(data: Path) -> None:
    data.write_text('{"solution_str": "' + "€" * 3_000_000 + '"}\n', encoding="utf-8")
    assert "longer than 8 MiB" in refusal(data)


# -- the index -----------------------------------------------------------------------------


def scan(path: Path, low: float = 0.0, high: float = 1.0) -> RecordIndex:
    return RecordIndex.scan(path, RecordRules(), (low, high))


def test_the_index_keeps_labels_lengths_bounds_and_people(data: Path) -> None:
    write(
        data,
        {"id": "ä", "solution_str": "four", "human_score": 0.5},
        {"solution_str": "s", "score_min": 1, "score_max": 5, "label": 4},
        {"solution_str": "s", "label": True},
        {"solution_str": "s", "label": "a class"},
    )
    index = scan(data)
    assert list(index.labels) == ["ä", "record[2]", "record[3]", "record[4]"]
    assert list(index.lengths) == [4, 1, 1, 1]
    assert list(zip(index.lows, index.highs, strict=True)) == [(0, 1), (1, 5), (0, 1), (0, 1)]
    assert list(index.human)[:3] == [0.5, 4.0, 1.0]
    assert index.human[3] != index.human[3]


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


def test_a_label_outside_the_scale_is_a_class_and_no_score(data: Path) -> None:
    index = scan(write(data, {"solution_str": "s", "label": 7}))
    assert index.ignored_labels == 1 and index.human[0] != index.human[0]


def test_a_file_that_changes_while_it_is_judged_is_noticed(data: Path) -> None:
    index = scan(write(data, {"solution_str": "s"}))
    write(data, {"solution_str": "s"}, {"solution_str": "t"})
    os.utime(data, ns=(1, 1))
    with pytest.raises(OsmosisError, match="was changed while its records were being judged"):
        list(index.records())
