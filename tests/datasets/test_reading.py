"""Rows of every format: reading, selection, normalisation and digests."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.datasets import (
    SUPPORTED_EXTENSIONS,
    DatasetRow,
    Selection,
    content_digest,
    count_records,
    iter_records,
    iter_rows,
    row_digest,
    sample_rows,
    select_rows,
)
from osmosis_ai.datasets.readers import MAX_RECORD_BYTES
from osmosis_ai.errors import OsmosisError
from tests.datasets.builders import Row, jsonl, prompt_rows, write, write_rows


def records(path: Path) -> list[dict[str, Any]]:
    found = list(iter_records(path))
    assert [index for index, _ in found] == list(range(len(found)))
    return [record for _, record in found]


def problem_of(path: Path) -> str:
    with pytest.raises(OsmosisError) as caught:
        list(iter_records(path))
    return caught.value.message


@pytest.mark.parametrize("start", [0, 1, 999, 1000, 2_345, 2_999, 3_000, 9_000])
@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_every_format_yields_the_same_rows_from_any_start(tmp_path: Path, extension: str, start: int) -> None:
    rows = [
        {"user_prompt": f"Ünïcode “{n}”,\nline {'x' * (n % 90)}", "ground_truth": f'"{2**70 + n}"'}
        for n in range(3000)
    ]
    path = write_rows(tmp_path, extension, rows)
    if extension == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(pq.read_table(path), path, row_group_size=1000)
    assert list(iter_records(path, start=start)) == list(enumerate(rows))[start:]
    assert count_records(path) == 3000


class TestJsonLines:
    def test_blank_lines_and_a_byte_order_mark_are_not_records(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.jsonl", b'\xef\xbb\xbf\n{"a": 1}\r\n  \n{"a": 2}\n\n{"a": 3}')
        assert records(path) == [{"a": 1}, {"a": 2}, {"a": 3}]
        assert count_records(path) == 3

    def test_every_digit_of_a_long_integer_is_kept(self, tmp_path: Path) -> None:
        number = 10**40 + 7
        row = f'{{"a": {number}, "b": [{{"c": -{number}}}]}}'
        expected = {"a": number, "b": [{"c": -number}]}
        assert records(write(tmp_path, "a.jsonl", f"{row}\n" * 2000))[-1] == expected
        assert records(write(tmp_path, "a.json", f"[{row}]")) == [expected]

    def test_deep_nesting_never_crashes(self, tmp_path: Path) -> None:
        deep = "[" * 900 + "]" * 900
        assert len(records(write(tmp_path, "a.jsonl", f'{{"a": {deep}}}\n' * 3))) == 3
        deeper = f'{{"a": [{10**30}, {"[" * 1000 + "]" * 1000}]}}\n'
        path = write(tmp_path, "b.jsonl", deeper)
        with contextlib.suppress(OsmosisError):  # how deep decoders go depends on the version
            assert records(path)[0]["a"][0] == 10**30

    @pytest.mark.parametrize(
        "line, problem",
        [
            ('{"a": 1', "not valid JSON: unexpected end of data (column 8)"),
            ('{"a": NaN}', "not valid JSON: NaN instead of null (column 7)"),
            ('{"é": [-Infinity]}', "not valid JSON: -Infinity instead of null (column 9)"),
            ('{"a": "\\ud800"}', "not valid JSON"),
            ('{"a": 1} {"a": 2}', "not valid JSON"),
            ('["a"]', "expected a JSON object, found an array"),
            ('"a"', "expected a JSON object, found a string"),
            ("7", "expected a JSON object, found a number"),
            ("null", "expected a JSON object, found null"),
            ("true", "expected a JSON object, found a boolean"),
            ('{"b": 1}', "columns differ from line 1: missing 'a'; extra 'b'"),
            ("{}", "columns differ from line 1: missing 'a'"),
        ],
    )
    def test_an_invalid_line_is_an_error_with_its_number(
        self, tmp_path: Path, line: str, problem: str
    ) -> None:
        for place in (2, 9000):
            lines = ['{"a": 1}'] * 10000
            lines[place - 1] = line
            message = problem_of(write(tmp_path, "a.jsonl", "\n".join(lines)))
            assert message.startswith(f"{tmp_path}/a.jsonl: line {place}: {problem}")

    @given(
        st.lists(
            st.one_of(
                st.just('{"a": 1}'), st.just('{"a": "\\u00e9"}'), st.text('{}[]",:a1 \r\t', max_size=12)
            ),
            max_size=12,
        )
    )
    def test_a_file_is_valid_exactly_if_each_line_is(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[str]
    ) -> None:
        path = write(tmp_path_factory.mktemp("lines"), "a.jsonl", "\n".join(['{"a": 0}', *lines]))
        try:
            expected = [json.loads(line) for line in ['{"a": 0}', *lines] if line.strip()]
        except ValueError:
            expected = []
        if expected and all(isinstance(value, dict) and value.keys() == {"a"} for value in expected):
            assert records(path) == expected
        else:
            assert "line " in problem_of(path)


class TestJsonArray:
    @pytest.mark.parametrize("indent", [None, 2])
    def test_elements_may_be_larger_than_a_block(self, tmp_path: Path, indent: int | None) -> None:
        rows = [{"a": "é" * length, "b": {"c": [length]}} for length in (1, 700_000, 3, 1_500_000, 2)]
        path = write(tmp_path, "a.json", json.dumps(rows, indent=indent, ensure_ascii=False))
        assert records(path) == rows
        assert count_records(path) == 5

    @given(st.integers(1, 60), st.booleans())
    def test_blocks_may_end_anywhere(
        self, tmp_path_factory: pytest.TempPathFactory, block: int, as_text: bool
    ) -> None:
        rows = [
            {"a": value, "b": -1e-5}
            for value in (True, False, None, 12.5, 10**20, "é😀", '"}, {"', [{"b": None}, {"c": []}], {})
        ]
        text = json.dumps(rows, ensure_ascii=as_text, indent=None if as_text else 1)
        path = write(tmp_path_factory.mktemp("blocks"), "a.json", text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("osmosis_ai.datasets.readers.BLOCK_BYTES", block)
            assert records(path) == rows

    def test_an_element_ends_where_its_value_does(self, tmp_path: Path) -> None:
        rows = [{"a": [{"b": "}, {"}, {"b": n}] * n} for n in range(1, 300)] + [
            {"a": '}, {"a": 1'},
            {"a": {}},
        ]
        assert records(write(tmp_path, "a.json", json.dumps(rows))) == rows

    @pytest.mark.parametrize(
        "text, problem",
        [
            ('{"a": 1}\n{"a": 2}\n', "line 1, column 1: expected an array of objects, found an object"),
            ("null", "line 1, column 1: expected an array of objects, found 'n'"),
            (" \n ", "line 2, column 2: expected an array of objects, found nothing"),
            ('[{"a": 1},\n {"a": }]', "line 2, column 8: not valid JSON: Expecting value (in row 2)"),
            ('[{"a": 1}\n', "line 2, column 1: expected ',' or ']' after row 1, found the end of the file"),
            ('[{"a": 1},\n', "line 2, column 1: not valid JSON: Expecting value (in row 2)"),
            ('[{"a": 1},\xa0{"a": 2}]', "line 1, column 11: not valid JSON: Expecting value (in row 2)"),
            ('[{"a": 1} {"a": 2}]', "line 1, column 11: expected ',' or ']' after row 1, found '{'"),
            ('[{"a": 1},]', "line 1, column 11: a comma before the closing ']'"),
            ('[{"a": 1}] x', "line 1, column 12: text after the closing ']'"),
            ('[{"a": 1}, 12]', "row 2: expected a JSON object, found a number"),
            ('[{"a": 1}, {"b": 1}]', "row 2: columns differ from row 1: missing 'a'; extra 'b'"),
            ("[{}, {}]", "row 1: the object is empty; it names no columns"),
            ('[{"a": NaN}]', "row 1: not valid JSON: NaN instead of null"),
            ('[{"a": 1e999}]', "row 1: not valid JSON: number is infinity when parsed as double"),
            ('[{"a": "\\uD800"}]', "row 1: not valid JSON: no low surrogate in string"),
            ("[" * 200_000, "line 1, column 2: row 1 is nested too deeply"),
            ('[{"a": "' + "x" * (3 * MAX_RECORD_BYTES), "row 1: longer than 16 MiB"),
        ],
    )
    def test_an_error_has_its_position(self, tmp_path: Path, text: str, problem: str) -> None:
        message = problem_of(write(tmp_path, "a.json", text))
        assert message.startswith(f"{tmp_path}/a.json: {problem}")


def test_csv_fields_may_contain_lines_quotes_and_long_text(tmp_path: Path) -> None:
    rows = [{"a": 'x\n"y", z', "b": "q" * 500_000}, {"a": "", "b": "2"}]
    path = write_rows(tmp_path, "csv", rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert records(path) == rows


@pytest.mark.parametrize(
    "name, content, problem",
    [
        ("a.csv", b'a,b\n"x\ny",1\nonly\n', "line 4: expected 2 columns, found 1"),
        ("a.csv", b'a,b\n1,2\n"open,3\n4,5\n', "line 3: not valid CSV"),
        ("a.csv", b"a,b\n1,\xe9\n", "line 2: not UTF-8: byte 0xe9 at position 6"),
        ("a.csv", b"a,b,a\n1,2,3\n", "line 1: the header names 'a' more than once"),
        ("a.csv", b"\n\n", "line 1: expected a header with the names of the columns, found nothing"),
        ("a.json", b'[\n{"a": "\xe9"}]', "line 2: not UTF-8: byte 0xe9 at position 9"),
        (
            "a.jsonl",
            '{"a": "é"}\r\n'.encode() * 30_000 + b'{"a": "\xe9',
            "line 30001: not UTF-8: byte 0xe9 at position 390007 of the file; save the file as UTF-8.",
        ),
        (
            "a.jsonl",
            b'{"a": 1}\n\n{"a": "' + b"x" * (MAX_RECORD_BYTES + 1) + b'"}',
            "line 3: longer than 16 MiB, the limit of one row",
        ),
        ("a.parquet", b"PAR1 no PAR1 is not enough", "not a Parquet file"),
    ],
)
def test_an_unreadable_file_is_an_error_with_its_position(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    message = problem_of(write(tmp_path, name, content))
    assert message.startswith(f"{tmp_path}/{name}: {problem}") and not message.endswith("..")


def test_a_damaged_parquet_file_is_an_error(tmp_path: Path) -> None:
    whole = write_rows(tmp_path, "parquet", prompt_rows(2000)).read_bytes()
    assert "not a Parquet file" in problem_of(write(tmp_path, "a.parquet", whole[:-20]))
    damaged = whole[:4] + b"\xff" * 196 + whole[200:]
    assert "row 1: cannot be read" in problem_of(write(tmp_path, "a.parquet", damaged))


def row_of(directory: Path, record: Row) -> DatasetRow:
    [row] = iter_rows(write(directory, "a.jsonl", jsonl([record])))
    return row


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
def test_the_label_is_ground_truth_otherwise_label_as_text(
    tmp_path: Path, record: dict[str, Any], label: str
) -> None:
    assert row_of(tmp_path, {"user_prompt": "q", **record}).label == label


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
def test_metadata_is_an_object_or_its_json_text(
    tmp_path: Path, metadata: object, expected: dict[str, Any] | None
) -> None:
    assert row_of(tmp_path, {"user_prompt": "q", "metadata": metadata}).metadata == expected


@pytest.mark.parametrize(
    "record, problem",
    [
        ({"user_prompt": "", "ground_truth": "a"}, "no value for 'user_prompt'"),
        ({"user_prompt": "q", "ground_truth": None}, "no value for 'ground_truth'"),
        ({"question": "q"}, "missing 'user_prompt', 'ground_truth' (found 'question')"),
        ({"user_prompt": "q"}, "missing 'ground_truth' (found 'user_prompt')"),
        ({"user_prompt": "", "metadata": {}}, "the row has neither a 'user_prompt' nor 'metadata'"),
        ({"metadata": "[1]"}, "'metadata' must be a JSON object, found an array"),
        ({"metadata": 3}, "'metadata' must be a JSON object, found a number"),
        ({"metadata": "{x"}, "'metadata' is not valid JSON"),
    ],
)
def test_an_unusable_row_is_an_error(tmp_path: Path, record: dict[str, Any], problem: str) -> None:
    path = write(tmp_path, "a.jsonl", jsonl([record]))
    with pytest.raises(OsmosisError) as caught:
        list(iter_rows(path))
    assert caught.value.message.startswith(f"{path}: line 1: {problem}")


def test_rows_before_an_invalid_one_are_yielded(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl([{"user_prompt": "q", "ground_truth": "a"}]) + "oops\n")
    rows = iter_rows(path)
    assert next(rows).label == "a"
    with pytest.raises(OsmosisError, match="line 2: not valid JSON"):
        next(rows)


@pytest.mark.parametrize("limit, taken", [(0, 10), (3, 3), (10, 10), (99, 10)])
def test_a_limit_selects_the_first_rows(limit: int, taken: int) -> None:
    assert select_rows(10, limit=limit, rows=None).indices == range(taken)


def test_rows_override_the_limit_and_are_sorted_and_distinct() -> None:
    selection = select_rows(30, limit=1, rows=" 7, 3,10-12,11 - 14 ,7")
    assert list(selection) == [3, 7, 10, 11, 12, 13, 14]
    assert selection.describe() == "3,7,10-14"
    assert selection.total_rows == 30


@pytest.mark.parametrize(
    "rows, problem",
    [
        *(
            (rows, "such as '3,7,10-20'")
            for rows in ("", "a", "1,,2", "1-", "-1", "1-2-3", "1.5", "٣", "9" * 5000)
        ),
        ("1,9-3", "'9-3' in rows '1,9-3' ends before it starts"),
        ("30", "row 30 in rows '30' is out of range: the file has rows 0-29"),
        ("0-999999999999999999", "out of range"),
    ],
)
def test_invalid_rows_are_an_error(rows: str, problem: str) -> None:
    with pytest.raises(OsmosisError, match=problem):
        select_rows(30, limit=None, rows=rows)
    with pytest.raises(OsmosisError, match="the file has no rows"):
        select_rows(0, limit=None, rows="30")


@given(st.sets(st.integers(0, 200), min_size=1))
def test_a_description_selects_the_same_rows_again(rows: set[int]) -> None:
    text = Selection(tuple(sorted(rows)), 201).describe()
    again = select_rows(201, limit=None, rows=text)
    assert list(again) == sorted(rows)
    assert again.describe() == text


@pytest.mark.parametrize("total, drawn", [(1, 1), (4, 1), (15, 2), (200, 20), (0, 0)])
def test_a_tenth_of_the_rows_is_at_least_one(total: int, drawn: int) -> None:
    assert len(sample_rows(total, fraction=0.1, seed=0)) == drawn


def test_a_seed_draws_the_same_rows_on_every_machine() -> None:
    assert sample_rows(200, fraction=0.05, seed=0).indices == (10, 66, 77, 98, 103, 107, 122, 124, 130, 194)
    assert sample_rows(200, fraction=0.05, seed=1) != sample_rows(200, fraction=0.05, seed=0)


@given(st.integers(1, 500), st.floats(0.001, 1), st.integers())
def test_drawn_rows_are_sorted_distinct_and_in_the_file(total: int, fraction: float, seed: int) -> None:
    rows = list(sample_rows(total, fraction=fraction, seed=seed))
    assert rows == sorted(set(rows))
    assert rows[0] >= 0 and rows[-1] < total


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan"), float("inf")])
def test_a_fraction_outside_zero_to_one_is_an_error(fraction: float) -> None:
    with pytest.raises(OsmosisError, match="above 0 and at most 1"):
        sample_rows(10, fraction=fraction, seed=0)


ROWS: list[Row] = [
    {
        "system_prompt": "Be brief.",
        "user_prompt": "Wie viel ist 6 × 7? 🙂 \u2028 “quoted”, comma,\nnew line\ttab",
        "ground_truth": "42",
        "metadata": {"level": 3, "weight": 0.1, "tags": ["a", "b"], "who": {"name": "Zoë", "id": 2**53 + 1}},
    },
    {
        "system_prompt": "",
        "user_prompt": "e\u0301 is not é",
        "ground_truth": "",
        "metadata": {"level": 4, "weight": 2.0, "tags": [], "who": {"name": "", "id": -1}},
    },
]


def digests(path: Path) -> list[str]:
    return [row_digest(row) for row in iter_rows(path)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        [{"user_prompt": 2, "ground_truth": 4}, {"user_prompt": 7, "ground_truth": -1}],
        [{"user_prompt": "half", "ground_truth": 0.5}],
    ],
)
def test_the_same_row_has_the_same_digest_in_every_format(tmp_path: Path, rows: list[Row]) -> None:
    found = {name: digests(write_rows(tmp_path, name, rows)) for name in SUPPORTED_EXTENSIONS}
    assert found["csv"] == found["json"] == found["jsonl"] == found["parquet"]
    assert len(set(found["csv"])) == len(rows)
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in found["csv"])


def test_the_nulls_and_floats_of_parquet_change_no_digest(tmp_path: Path) -> None:
    # Its column is one struct for all rows: keys that a row lacks become nulls, and 1 beside 0.5 becomes 1.0.
    rows: list[Row] = [
        {"user_prompt": "a", "metadata": {"x": 1, "deep": {"p": True}}},
        {"user_prompt": "b", "metadata": {"x": 0.5, "other": [1, None]}},
        {"user_prompt": "c", "metadata": {"deep": {"q": "z"}, "other": []}},
    ]
    assert digests(write_rows(tmp_path, "parquet", rows)) == digests(write_rows(tmp_path, "jsonl", rows))


def test_a_digest_ignores_order_position_and_other_columns(tmp_path: Path) -> None:
    one = '{"user_prompt":"p","ground_truth":"g","metadata":{"a":1,"b":{"c":2,"d":null}}}\n'
    more = '{"id":"x","metadata":{"b":{"c":2},"a":1.0},"label":"z","ground_truth":"g","user_prompt":"q"}\n'
    [expected] = digests(write(tmp_path, "one.jsonl", one))
    found = digests(write(tmp_path, "more.jsonl", more + more.replace('"q"', '"p"')))
    assert found[1] == expected != found[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"system_prompt": "Be long."},
        {"user_prompt": "6 x 8"},
        {"ground_truth": "43"},
        {"metadata": {"level": "3"}},
        {"metadata": {"level": True}},
        {"metadata": {"level": 3, "more": 0}},
        {"metadata": {"Level": 3}},
        {"metadata": None},
    ],
)
def test_a_digest_covers_what_agents_and_graders_receive(tmp_path: Path, changed: dict[str, Any]) -> None:
    row = {"system_prompt": "s", "user_prompt": "6 x 7", "ground_truth": "42", "metadata": {"level": 3}}
    path = write(tmp_path, "rows.jsonl", json.dumps(row) + "\n" + json.dumps({**row, **changed}) + "\n")
    first, second = digests(path)
    assert first != second


def test_the_digest_of_a_row_never_changes(tmp_path: Path) -> None:
    # Results keep it for good: another value here breaks every comparison with an older run.
    path = write(
        tmp_path, "rows.jsonl", '{"user_prompt": "6 × 7", "ground_truth": "42", "metadata": {"b": 2.0}}\n'
    )
    # The SHA-256 of {"ground_truth":"42","messages":[{"content":"6 × 7","role":"user"}],"metadata":{"b":2}}
    assert digests(path) == ["08b85b950c949b9adf54d22d3194b7c6"]


@pytest.mark.parametrize("absent", [None, {}, {"a": None}, {"a": {"b": None}}, {"a": float("nan")}])
def test_missing_values_have_the_digest_of_null(absent: object) -> None:
    assert content_digest(absent) == content_digest(None)
    assert content_digest([absent]) == content_digest([None])
    assert content_digest([]) != content_digest(None)
