"""Reading from a row on remembers where rows begin, and never takes another file's rows for it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import OrderedDict
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_ai.datasets import find_row, iter_records, json_array, jsonl
from osmosis_ai.datasets import record_places as remembered
from osmosis_ai.datasets.formats import open_reader, raise_for
from osmosis_ai.datasets.reader import BLOCK_BYTES, BYTE_ORDER_MARK
from osmosis_ai.datasets.record_places import RecordPlace, RecordPlaces
from osmosis_ai.errors import OsmosisError

Rows = list[dict[str, str]]
FORMATS = ("csv", "json", "jsonl")


@pytest.fixture(autouse=True)
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with no place known, of files that are old enough, and have blocks and places in small files."""
    monkeypatch.setattr(remembered, "_known", OrderedDict())
    monkeypatch.setattr(remembered, "_SETTLED_NS", -(1 << 62))
    monkeypatch.setattr(remembered, "_BYTES_APART", 512)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 1024)
    monkeypatch.setattr(json_array, "BLOCK_BYTES", 4096)


def rows_of(count: int, answer: str = "a") -> Rows:
    """Return rows with everything in them that may mislead whoever counts bytes or lines."""
    odd = (
        "plain",
        "two\nlines",
        'a "quote"',
        "\r\nfour\n\nlines\r",
        "\ufeffmark",
        "ünï“code” 🜁",
        "], [{,",
        "",
    )
    return [{"user_prompt": f"{n} {odd[n % 8]}", "ground_truth": f"{answer}{n}"} for n in range(count)]


def content_of(extension: str, rows: Rows) -> bytes:
    """Return rows as a file has them, with blank lines and blanks between them."""
    if extension == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(rows[0])
        for number, row in enumerate(rows):
            writer.writerow(row.values())
            text.write("\n" * (number % 5 == 0))
        return text.getvalue().encode()
    lines = [json.dumps(row, ensure_ascii=number % 3 == 0) for number, row in enumerate(rows)]
    if extension == "jsonl":
        return "".join(line + "\n" * (1 + (n % 5 == 0)) for n, line in enumerate(lines)).encode()
    return ("[" + " ,\n\n ".join(lines) + "\n]\n").encode()


def write(directory: Path, extension: str, rows: Rows, *, before: bytes = b"", behind: bytes = b"") -> Path:
    path = directory / f"rows.{extension}"
    path.write_bytes(before + content_of(extension, rows) + behind)
    return path


def begins_at(path: Path, row: int) -> int:
    """Return how far the file was read or passed over when its first block had come."""
    told: list[int] = []
    reader = open_reader(path, report=raise_for(path), progress=told.append)
    next(reader.behind(row))
    return told[0]


@pytest.mark.parametrize("before", [b"", BYTE_ORDER_MARK], ids=["plain", "marked"])
@pytest.mark.parametrize("extension", FORMATS)
def test_the_rows_behind_a_known_place_are_the_file_s(tmp_path: Path, extension: str, before: bytes) -> None:
    rows = rows_of(600)
    path = write(tmp_path, extension, rows, before=before)
    for start in (0, 599, 1, 300, 600, 599, 7, 300, 900, 450, 451, 452):
        assert list(iter_records(path, start=start)) == list(enumerate(rows))[start:]
    assert len(remembered._known) == 1


@pytest.mark.parametrize("extension", FORMATS)
def test_any_order_of_starts_finds_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, extension: str
) -> None:
    rows = rows_of(200)
    path = write(tmp_path_factory.mktemp("any"), extension, rows)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 210), st.integers(1, 90)), max_size=8))
    def read(looks: list[tuple[int, int]]) -> None:
        remembered._known.clear()
        for start, count in looks:
            found = list(islice(iter_records(path, start=start), count))
            assert found == list(enumerate(rows))[start : start + count]

    read()


@pytest.mark.parametrize("extension", FORMATS)
def test_a_row_that_was_passed_once_is_found_without_reading_what_stands_before_it(
    tmp_path: Path, extension: str
) -> None:
    rows = [{"user_prompt": f"{n} " + "x" * 1000, "ground_truth": f"a{n}"} for n in range(5_000)]
    path = write(tmp_path, extension, rows)
    assert begins_at(path, 4_900) <= BLOCK_BYTES
    size = path.stat().st_size
    for row in (4_900, 4_899, 4_000, 4_001):
        assert begins_at(path, row) > size * row // 5_000 - BLOCK_BYTES // 16
        found = find_row(path, row, look_s=600)
        assert found is not None
        assert found.label == f"a{row}"


@pytest.mark.parametrize(
    ("extension", "behind", "problem"),
    [
        ("csv", b"1,2,3\n", "line {line}: expected 2 columns, found 3"),
        ("csv", b'q,"open\n', "line {line}: not valid CSV: unexpected end of data"),
        ("csv", b"q,\xff\n", "line {line}: not UTF-8"),
        ("jsonl", b'{"oops"}\n', "line {line}: not valid JSON"),
        ("jsonl", b'{"a": "\xff"}\n', "line {line}: not UTF-8"),
        ("json", b'\n ,{"ground_truth": "a"}]', "row 601: columns differ from row 1: missing 'user_prompt'"),
        ("json", b"\n   ,{oops}]", "line {line}, column 6: not valid JSON"),
        ("json", b"\n,]", "line {line}, column 2: a comma before the closing ']'"),
    ],
)
def test_what_is_wrong_behind_a_known_place_is_told_in_the_same_words(
    tmp_path: Path, extension: str, behind: bytes, problem: str
) -> None:
    content = content_of(extension, rows_of(600))
    content = content.removesuffix(b"\n]\n") if extension == "json" else content
    path = tmp_path / f"rows.{extension}"
    path.write_bytes(content + behind)  # the first line of what stands behind begins a line, or ends one
    line = (content + behind.rstrip(b"\n")).count(b"\n") + 1
    if extension == "csv":  # a carriage return alone ends a line, too, inside quotes
        line = len(content.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    expected = problem.format(line=line) if b"\xff" not in behind else "not UTF-8"
    words = []
    for _ in range(2):
        with pytest.raises(OsmosisError) as caught:
            list(iter_records(path, start=595))
        words.append(caught.value.message)
    assert expected in words[0]
    assert words[0] == words[1]
    assert next(iter(remembered._known.values())).before(590) is not None


@pytest.mark.parametrize("extension", FORMATS)
def test_a_file_that_was_replaced_is_another_one(tmp_path: Path, extension: str) -> None:
    path = write(tmp_path, extension, rows_of(600))
    was = path.stat()
    assert len(list(iter_records(path))) == 600
    # As long, as old, and of other rows: those before 300 are longer by a byte, those behind shorter.
    changed = rows_of(600)
    for number in range(300):
        changed[number]["ground_truth"] += "+"
        changed[number + 300]["ground_truth"] = changed[number + 300]["ground_truth"][1:]
    (tmp_path / "beside").mkdir()
    other = write(tmp_path / "beside", extension, changed)
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.replace(other, path)
    is_now = path.stat()
    assert (is_now.st_size, is_now.st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    assert list(iter_records(path, start=400)) == list(enumerate(changed))[400:]


@pytest.mark.parametrize("extension", FORMATS)
def test_a_file_that_was_rewritten_in_place_is_another_one(tmp_path: Path, extension: str) -> None:
    path = write(tmp_path, extension, rows_of(600))
    was = path.stat()
    assert len(list(iter_records(path))) == 600
    changed = rows_of(600)[::-1]
    path.write_bytes(content_of(extension, changed).ljust(was.st_size)[: was.st_size])
    # Its time is set back: that of its last change can not be. A clock tick lies between the two.
    while path.stat().st_ctime_ns == was.st_ctime_ns:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert next(iter_records(path, start=400)) == (400, changed[400])


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_a_file_that_grows_is_read_as_it_is_now(tmp_path: Path, extension: str) -> None:
    rows = rows_of(600)
    path = write(tmp_path, extension, rows[:500])
    assert list(iter_records(path, start=600)) == []
    content = content_of(extension, rows)
    head = path.read_bytes()
    assert content.startswith(head)
    reading = iter_records(path, start=100)
    assert next(reading) == (100, rows[100])
    with path.open("ab") as handle:
        handle.write(content[len(head) :])
    assert list(reading)[-1][0] in (499, 599)
    for start in (450, 599, 0):
        assert list(iter_records(path, start=start)) == list(enumerate(rows))[start:]


def test_nothing_is_remembered_of_a_file_that_was_written_a_moment_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_SETTLED_NS", 1 << 62)
    path = write(tmp_path, "csv", rows_of(600))
    assert len(list(iter_records(path))) == 600
    assert not remembered._known


def test_one_file_under_two_names_has_the_records_of_each(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(900)))
    table = tmp_path / "lines.csv"
    os.link(path, table)
    for start in (0, 800, 800, 400):
        # As a table the first line is its header.
        assert next(iter_records(path, start=start)) == (start, {"n": start})
        assert next(iter_records(table, start=start)) == (start, {'{"n": 0}': f'{{"n": {start + 1}}}'})


def test_places_and_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_PLACES", 8)
    places = RecordPlaces()
    for number in range(1, 10_000):
        places.keep(RecordPlace(number, number * 100, number))
        assert len(places._places) <= 8
    found = [places.before(rows) for rows in range(0, 10_000, 50)]
    assert found[0] is None
    assert all(
        place is None or place.rows <= rows for place, rows in zip(found, range(0, 10_000, 50), strict=True)
    )
    last = found[-1]
    assert last is not None
    assert last.rows > 7_000
    for number in range(40):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content_of("jsonl", rows_of(40)))
        assert len(list(iter_records(path))) == 40
    assert len(remembered._known) == remembered._MOST_FILES
