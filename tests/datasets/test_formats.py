from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.datasets import SUPPORTED_EXTENSIONS, count_records, iter_records
from osmosis_ai.datasets.reader import MAX_RECORD_BYTES, find_invalid_utf8
from osmosis_ai.errors import OsmosisError
from tests.datasets.builders import jsonl, prompt_rows, write, write_rows


def records(path: Path) -> list[dict[str, Any]]:
    found = list(iter_records(path))
    assert [index for index, _ in found] == list(range(len(found)))
    return [record for _, record in found]


def problem_of(path: Path) -> str:
    with pytest.raises(OsmosisError) as caught:
        list(iter_records(path))
    return caught.value.message


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_the_same_rows_come_out_of_every_format(tmp_path: Path, extension: str) -> None:
    rows = [{"user_prompt": f"Ünïcode “{n}”,\nand a line", "ground_truth": f'"{n}"'} for n in range(3000)]
    path = write_rows(tmp_path, extension, rows)
    assert records(path) == rows
    assert count_records(path) == 3000


@pytest.mark.parametrize("start", [1, 999, 1000, 2_345, 2_999, 3_000, 9_000])
@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_reading_begins_at_any_row(tmp_path: Path, extension: str, start: int) -> None:
    rows = [{"user_prompt": f"{n} " + "x" * (n % 90), "ground_truth": str(2**70 + n)} for n in range(3000)]
    path = write_rows(tmp_path, extension, rows)
    if extension == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(pq.read_table(path), path, row_group_size=1000)
    assert list(iter_records(path, start=start)) == list(enumerate(rows))[start:]


def test_lines_that_are_passed_over_are_counted_as_they_are_read_and_not_decoded(tmp_path: Path) -> None:
    lines = [f'{{"a": {2**70 + n}}}' + "\n" * (1 + n % 3) for n in range(9_000)]
    path = write(tmp_path, "a.jsonl", "not JSON\n" + "".join(lines) + "\n  \nbroken")
    found = iter_records(path, start=7_001)
    assert next(found) == (7_001, {"a": 2**70 + 7_000})
    with pytest.raises(OsmosisError, match=rf"line {path.read_bytes().count(10) + 1}: not valid JSON"):
        list(found)


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_the_extension_is_read_in_any_case(tmp_path: Path, extension: str) -> None:
    path = write_rows(tmp_path, extension, prompt_rows(2)).rename(tmp_path / f"rows.{extension.upper()}")
    assert records(path) == prompt_rows(2)


def test_a_missing_file_is_named_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem_of(Path("none.jsonl")) == f"File not found: {tmp_path}/none.jsonl"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in problem_of(tmp_path)


def test_an_empty_file_and_an_unknown_extension_are_refused(tmp_path: Path) -> None:
    assert problem_of(write(tmp_path, "a.jsonl", "")) == f"{tmp_path}/a.jsonl: the file is empty."
    message = problem_of(write(tmp_path, "a.txt", "x"))
    assert "unsupported file extension '.txt'; supported: .csv, .jsonl, .json, .parquet" in message


class TestJsonLines:
    def test_blank_lines_are_no_records(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.jsonl", '\n{"a": 1}\r\n  \n{"a": 2}\n\n{"a": 3}')
        assert records(path) == [{"a": 1}, {"a": 2}, {"a": 3}]
        assert count_records(path) == 3

    def test_a_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        assert records(write(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"a": 1}\n')) == [{"a": 1}]

    def test_keys_may_come_in_any_order(self, tmp_path: Path) -> None:
        lines = ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}'] * 5000
        assert len(records(write(tmp_path, "a.jsonl", "\n".join(lines)))) == 10000

    def test_every_digit_of_a_long_integer_is_kept(self, tmp_path: Path) -> None:
        number = 10**40 + 7
        path = write(tmp_path, "a.jsonl", f'{{"a": {number}, "b": [{{"c": -{number}}}]}}\n' * 2000)
        assert records(path)[-1] == {"a": number, "b": [{"c": -number}]}

    def test_deep_nesting_is_read_or_refused_but_never_a_crash(self, tmp_path: Path) -> None:
        deep = "[" * 900 + "]" * 900
        assert len(records(write(tmp_path, "a.jsonl", f'{{"a": {deep}}}\n' * 3))) == 3
        deeper = f'{{"a": [{10**30}, {"[" * 1000 + "]" * 1000}]}}\n'
        path = write(tmp_path, "b.jsonl", deeper)
        with contextlib.suppress(OsmosisError):  # how deep Python's decoder goes depends on its version
            assert records(path)[0]["a"][0] == 10**30

    @pytest.mark.parametrize(
        "line, problem",
        [
            ('{"a": 1', "not valid JSON: unexpected end of data (column 8)"),
            ('{"a": NaN}', "not valid JSON: NaN instead of null (column 7)"),
            ('{"é": [-Infinity]}', "not valid JSON: -Infinity instead of null (column 9)"),
            ('{"a": "\\ud800"}', "not valid JSON"),
            ('{"a": 1} {"a": 2}', "not valid JSON"),
            ('{"a": 1},{"a": 2}', "not valid JSON"),
            ("[1]", "expected a JSON object, found an array"),
            ('["a"]', "expected a JSON object, found an array"),
            ('"a"', "expected a JSON object, found a string"),
            ("7", "expected a JSON object, found a number"),
            ("null", "expected a JSON object, found null"),
            ("true", "expected a JSON object, found a boolean"),
            ('{"b": 1}', "columns differ from line 1: missing 'a'; extra 'b'"),
            ("{}", "columns differ from line 1: missing 'a'"),
        ],
    )
    @pytest.mark.parametrize("place", [2, 4, 9000])
    def test_a_bad_line_is_named(self, tmp_path: Path, line: str, problem: str, place: int) -> None:
        lines = ['{"a": 1}'] * 10000
        lines[place - 1] = line
        message = problem_of(write(tmp_path, "a.jsonl", "\n".join(lines)))
        assert message.startswith(f"{tmp_path}/a.jsonl: line {place}: {problem}")

    def test_an_object_broken_over_two_lines_is_not_one_record(self, tmp_path: Path) -> None:
        good = '{"a": [[1], [2]]}\n'
        broken = '{"a": [[1]\n[2]]}\n{"a": 1}, {"a": 2}\n'
        message = problem_of(write(tmp_path, "a.jsonl", good * 9000 + broken + good))
        assert "line 9001: not valid JSON" in message

    def test_a_byte_that_is_not_utf8_is_named_with_its_place(self, tmp_path: Path) -> None:
        good = b'{"a": "x"}\n'
        path = write(tmp_path, "a.jsonl", good * 7000 + b'{"a": "\xff"}\n' + good)
        assert problem_of(path) == (
            f"{path}: line 7001: not UTF-8: byte 0xff at position {7000 * len(good) + 7} of the file; "
            "save the file as UTF-8."
        )

    def test_a_file_without_line_ends_is_given_up_at_the_limit_of_a_row(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.jsonl", b'{"a": 1}\n\n{"a": "' + b"x" * (MAX_RECORD_BYTES + 1) + b'"}')
        assert "line 3: longer than 16 MiB, the limit of one row" in problem_of(path)

    def test_long_lines_are_read(self, tmp_path: Path) -> None:
        rows = [{"a": "x" * 300_000}, {"a": "y" * 5_000_000}, {"a": "z"}]
        assert records(write(tmp_path, "a.jsonl", jsonl(rows))) == rows

    @given(
        st.lists(
            st.one_of(
                st.just('{"a": 1}'),
                st.just('{"a": "\\u00e9"}'),
                st.text('{}[]",:a1 \r\t', max_size=12),
            ),
            max_size=12,
        )
    )
    def test_a_file_is_taken_exactly_when_each_line_is_good(
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
    def test_elements_may_cross_the_blocks_that_are_read(self, tmp_path: Path, indent: int | None) -> None:
        rows = [{"a": "é" * length, "b": {"c": [length]}} for length in (1, 700_000, 3, 1_500_000, 2)]
        path = write(tmp_path, "a.json", json.dumps(rows, indent=indent, ensure_ascii=False))
        assert records(path) == rows
        assert count_records(path) == 5

    def test_an_empty_array_has_no_records(self, tmp_path: Path) -> None:
        assert records(write(tmp_path, "a.json", " [ ] \n")) == []

    def test_every_digit_of_a_long_integer_is_kept(self, tmp_path: Path) -> None:
        assert records(write(tmp_path, "a.json", f'[{{"a": {10**30}}}]')) == [{"a": 10**30}]

    @pytest.mark.parametrize(
        "text, problem",
        [
            ('{"a": 1}\n{"a": 2}\n', "line 1, column 1: expected an array of objects, found an object"),
            ("null", "line 1, column 1: expected an array of objects, found 'n'"),
            (" \n ", "line 2, column 2: expected an array of objects, found nothing"),
            ('[{"a": 1},\n {"a": }]', "line 2, column 8: not valid JSON: Expecting value (in row 2)"),
            ('[{"a": 1}\n', "line 2, column 1: expected ',' or ']' after row 1, found the end of the file"),
            ('[{"a": 1} {"a": 2}]', "line 1, column 11: expected ',' or ']' after row 1, found '{'"),
            ('[{"a": 1},]', "line 1, column 11: a comma before the closing ']'"),
            ('[{"a": 1}] x', "line 1, column 12: text after the closing ']'"),
            ('[{"a": 1}, 12]', "row 2: expected a JSON object, found a number"),
            ('[{"a": 1}, {"b": 1}]', "row 2: columns differ from row 1: missing 'a'; extra 'b'"),
            ('[{"a": NaN}]', "row 1: not valid JSON: NaN instead of null"),
            ('[{"a": 1e999}]', "line 1, column 2: not valid JSON: the number 1e999 is too large (in row 1)"),
            ('[{"a": "\\uD800"}]', "line 1, column 2: not valid JSON"),
            ("[" * 200_000, "line 1, column 2: row 1 is nested too deeply"),
        ],
    )
    def test_the_place_of_a_problem_is_named(self, tmp_path: Path, text: str, problem: str) -> None:
        message = problem_of(write(tmp_path, "a.json", text))
        assert message.startswith(f"{tmp_path}/a.json: {problem}")

    def test_places_count_from_the_start_of_the_file(self, tmp_path: Path) -> None:
        good = json.dumps({"a": "x" * 1000})
        path = write(tmp_path, "a.json", "[\n" + f"{good},\n" * 5000 + "  oops]")
        assert "line 5002, column 3: not valid JSON" in problem_of(path)

    def test_a_byte_that_is_not_utf8_is_named_with_its_place(self, tmp_path: Path) -> None:
        assert "line 2: not UTF-8: byte 0xe9 at position 9" in problem_of(
            write(tmp_path, "a.json", b'[\n{"a": "\xe9"}]')
        )

    def test_an_element_beyond_the_limit_is_given_up(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.json", '[{"a": "' + "x" * (3 * MAX_RECORD_BYTES) + '"}]')
        assert "row 1: longer than 16 MiB" in problem_of(path)


class TestCsv:
    def test_fields_may_hold_lines_quotes_and_long_text(self, tmp_path: Path) -> None:
        rows = [{"a": 'x\n"y", z', "b": "q" * 500_000}, {"a": "", "b": "2"}]
        assert records(write_rows(tmp_path, "csv", rows)) == rows

    def test_a_byte_order_mark_is_no_part_of_the_first_name(self, tmp_path: Path) -> None:
        assert records(write(tmp_path, "a.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n")) == [{"a": "1", "b": "2"}]

    @pytest.mark.parametrize(
        "content, problem",
        [
            (b'a,b\n"x\ny",1\nonly\n', "line 4: expected 2 columns, found 1"),
            (b"a,b\n1,2,3\n", "line 2: expected 2 columns, found 3"),
            (b'a,b\n1,2\n"open,3\n4,5\n', "line 3: not valid CSV"),
            (b"a,b\n1,\xe9\n", "line 2: not UTF-8: byte 0xe9 at position 6"),
            (b"a,b,a\n1,2,3\n", "line 1: the header names 'a' more than once"),
            (b"\n\n", "line 1: expected a header with the names of the columns, found nothing"),
        ],
    )
    def test_the_line_of_a_problem_is_named(self, tmp_path: Path, content: bytes, problem: str) -> None:
        assert problem_of(write(tmp_path, "a.csv", content)).startswith(f"{tmp_path}/a.csv: {problem}")

    def test_a_quote_that_is_never_closed_is_explained(self, tmp_path: Path) -> None:
        assert "a quote that opens here is never closed" in problem_of(
            write(tmp_path, "a.csv", 'a,b\n1,"2\n3,4\n')
        )


class TestParquet:
    def test_what_is_no_parquet_file_is_refused(self, tmp_path: Path) -> None:
        problem = problem_of(write(tmp_path, "a.parquet", b"PAR1 no PAR1 is not enough"))
        assert "not a Parquet file" in problem and not problem.endswith("..")

    def test_a_truncated_file_is_refused(self, tmp_path: Path) -> None:
        whole = write_rows(tmp_path, "parquet", prompt_rows(100)).read_bytes()
        assert "not a Parquet file" in problem_of(write(tmp_path, "a.parquet", whole[:-20]))

    def test_damage_inside_is_named_by_the_row(self, tmp_path: Path) -> None:
        data = bytearray(write_rows(tmp_path, "parquet", prompt_rows(2000)).read_bytes())
        data[4:200] = b"\xff" * 196
        assert "row 1: cannot be read" in problem_of(write(tmp_path, "a.parquet", bytes(data)))


@given(st.binary(max_size=40), st.integers(1, 3))
def test_the_first_invalid_byte_is_where_python_finds_it(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block: int
) -> None:
    path = write(tmp_path_factory.mktemp("utf8"), "a", content)
    try:
        content.decode()
        expected = None
    except UnicodeDecodeError as error:
        at = error.start
        expected = (content.count(b"\n", 0, at) + 1, at, content[at])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("osmosis_ai.datasets.reader.BLOCK_BYTES", block)
        assert find_invalid_utf8(path) == expected
