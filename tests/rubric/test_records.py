"""Records from JSON Lines: both forms, and a line number for whatever is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.rubric.records import (
    MAX_LINE_BYTES,
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


def test_an_empty_list_of_messages_leaves_the_solution(data: Path) -> None:
    (record,) = read(write(data, {"messages": [], "solution_str": "this"}))
    assert record.solution_str == "this"


def test_a_record_is_known_by_id_then_conversation_then_position(data: Path) -> None:
    lines = [{"id": 7, "conversation_id": "c"}, {"conversation_id": "c"}, {}]
    write(data, *[{**line, "solution_str": "s"} for line in lines])
    assert [record.label for record in read(data)] == ["7", "c", "record[3]"]
    assert [record.label for record in read(data, RecordRules(wrap_metadata=True))] == ["c", "c", "record[3]"]


def test_fields_of_another_type_count_as_absent(data: Path) -> None:
    odd = {
        "solution_str": "s",
        "ground_truth": 5,
        "original_input": ["x"],
        "metadata": "m",
        "human_score": None,
    }
    (record,) = read(write(data, odd))
    assert (record.ground_truth, record.original_input, record.metadata, record.human_score) == (None,) * 4


def test_the_original_input_may_come_from_extra_info(data: Path) -> None:
    (record,) = read(write(data, {"solution_str": "s", "extra_info": {"original_input": "asked"}}))
    assert record.original_input == "asked"


def test_the_classic_command_wraps_metadata_and_leaves_that_of_extra_info(data: Path) -> None:
    line = {"solution_str": "s", "metadata": {"a": 1}, "extra_info": {"metadata": {"b": 2}, "other": 3}}
    write(data, line)
    assert read(data)[0].metadata == {"a": 1}
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


def test_blank_lines_are_no_records_but_count_as_lines(data: Path) -> None:
    write(data, "", {"solution_str": "a"}, "  ", {"solution_str": "b"})
    assert [(record.index, record.line) for record in read(data)] == [(1, 2), (2, 4)]


def test_a_byte_order_mark_is_passed_over(data: Path) -> None:
    data.write_bytes(b'\xef\xbb\xbf{"solution_str": "s"}\n')
    assert read(data)[0].solution_str == "s"


def test_long_integers_keep_their_digits(data: Path) -> None:
    (record,) = read(write(data, '{"solution_str": "s", "metadata": {"n": 123456789012345678901234567890}}'))
    assert record.metadata == {"n": 123456789012345678901234567890}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"solution_str": ', "Invalid JSON on line 2 of"),
        ('{"solution_str": NaN}', "Invalid JSON on line 2 of"),
        ("[1]", "Expected JSON object on line 2 of"),
        ('{"id": "x"}', "must include 'messages' (list) or 'solution_str' (string)."),
        ('{"solution_str": "  "}', "Line 2 of"),
        ('{"rubric_id": "r", "id": "x"}', "Record 'x' must include a non-empty 'solution_str' string."),
        ('{"messages": [{"role": "user", "content": "q"}]}', "no assistant message with text"),
        ('{"solution_str": "s", "score_min": "low"}', "Line 2 of"),
        ('{"solution_str": "s", "score_max": true}', "'score_max' must be a number, not a boolean"),
        ('{"solution_str": "s", "human_score": "good"}', "'human_score' must be a number, true or false"),
    ],
)
def test_a_bad_line_is_named(data: Path, line: str, problem: str) -> None:
    write(data, {"solution_str": "fine"}, line)
    message = refusal(data)
    assert problem in message and "\n" not in message
    assert "ine 2 of" in message


def test_an_empty_file_holds_no_records(data: Path) -> None:
    data.write_text("\n \n")
    assert refusal(data) == f"No JSON records found in '{data}'."


def test_binary_files_are_told_from_text(data: Path) -> None:
    data.write_bytes(b"\x1f\x8b\x08" + bytes(range(256)) * 100)
    assert "Line 1 of" in refusal(data) and "not UTF-8 text (byte 0x8b at position 1" in refusal(data)
    data.write_bytes(b"\xff" * (MAX_LINE_BYTES + 10))
    assert "not UTF-8 text" in refusal(data)


def test_a_record_of_ten_megabytes_is_refused_before_it_is_sent_anywhere(data: Path) -> None:
    write(data, {"solution_str": "fine"}, {"solution_str": "x" * 10_000_000})
    assert refusal(data) == f"Line 2 of '{data}' is longer than 8 MiB, more than any judge reads."


def test_a_long_line_cut_within_a_character_is_still_text(data: Path) -> None:
    data.write_text('{"solution_str": "' + "€" * 3_000_000 + '"}\n', encoding="utf-8")
    assert "longer than 8 MiB" in refusal(data)


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        read(tmp_path / "absent.jsonl")
    assert "is a directory" in refusal(tmp_path)


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


def test_a_human_score_outside_the_scale_is_a_mistake(data: Path) -> None:
    write(data, {"solution_str": "s"}, {"solution_str": "s", "human_score": 7})
    with pytest.raises(
        OsmosisError, match=r"Line 2 of .* 'human_score' 7 is outside the scale of 0 to 1"
    ) as caught:
        scan(data)
    assert caught.value.hint is not None and "--score-max" in caught.value.hint


def test_bounds_that_a_record_swaps_are_found_with_its_line(data: Path) -> None:
    write(data, {"solution_str": "s"}, {"solution_str": "s", "score_min": 2})
    with pytest.raises(
        OsmosisError, match=r"Line 2 of .* 'score_max' \(1\) must be greater than 'score_min' \(2\)"
    ):
        scan(data)


def test_a_file_that_changes_while_it_is_judged_is_noticed(data: Path) -> None:
    index = scan(write(data, {"solution_str": "s"}))
    write(data, {"solution_str": "s"}, {"solution_str": "t"})
    os.utime(data, ns=(1, 1))
    with pytest.raises(OsmosisError, match="was changed while its records were being judged"):
        list(index.records())
