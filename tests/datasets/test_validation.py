"""The rules for datasets that the platform accepts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.datasets import SUPPORTED_EXTENSIONS, DatasetReport, validate_dataset, validation
from tests.datasets.builders import jsonl, prompt_rows, write, write_rows

GOOD = '{"user_prompt": "q", "ground_truth": "a"}\n'
NO_VALUE = "not valid JSON: unexpected character, expected a JSON value (column 1)"


def validate(directory: Path, content: str | bytes, name: str = "a.jsonl") -> DatasetReport:
    report = validate_dataset(write(directory, name, content))
    assert report.valid == (not report.errors)
    return report


def metadata_errors(directory: Path, *values: Any) -> list[str]:
    rows = [{"metadata": value} for value in (*values, *[{"a": 1}] * 4)]
    return validate(directory, jsonl(rows)).errors


@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_every_format_has_the_same_reports(tmp_path: Path, extension: str) -> None:
    path = write_rows(tmp_path, extension, prompt_rows(50))
    assert validate_dataset(path) == DatasetReport(
        file=str(path),
        file_name=f"rows.{extension}",
        extension=extension,
        file_size=path.stat().st_size,
        valid=True,
        row_count=50,
        mode="prompt",
    )
    few = validate_dataset(write_rows(tmp_path, extension, prompt_rows(3)))
    assert few.errors == [
        "found 3 rows; the platform requires at least 4 ('osmosis eval run --dataset-file' takes any number)"
    ]
    other = validate_dataset(write_rows(tmp_path, extension, [{"question": "q", "answer": "a"}] * 5))
    assert other.errors == ["missing columns 'user_prompt', 'ground_truth' (found 'question', 'answer')"]
    assert other.row_count == 5


@pytest.mark.parametrize(
    "name, content, errors",
    [
        ("a.jsonl", "", ["the file is empty"]),
        ("a.txt", "x", ["unsupported file extension '.txt'; supported: .csv, .jsonl, .json, .parquet"]),
        ("a", "x", ["the file has no extension; supported: .csv, .jsonl, .json, .parquet"]),
        (
            "a.jsonl",
            GOOD * 2 + "oops\n[]\n" + '{"user_prompt": "q"}\n' + GOOD,
            [
                f"line 3: {NO_VALUE}",
                "line 4: expected a JSON object, found an array",
                "line 5: columns differ from line 1: missing 'ground_truth'",
            ],
        ),
        (
            "a.csv",
            "user_prompt,ground_truth\na,1\nb\nc,3\nd,4,5\n",
            ["line 3: expected 2 columns, found 1", "line 5: expected 2 columns, found 3"],
        ),
        ("a.jsonl", GOOD + "x\n" * 5, [f"line {line}: {NO_VALUE}" for line in range(2, 7)]),
        (
            "a.jsonl",
            GOOD + "x\n" * 900,
            [*(f"line {line}: {NO_VALUE}" for line in range(2, 7)), "... (showing first 5 errors)"],
        ),
    ],
)
def test_the_first_errors_are_listed_with_their_positions(
    tmp_path: Path, name: str, content: str, errors: list[str]
) -> None:
    assert validate(tmp_path, content, name).errors == errors


def test_a_file_of_more_than_5_gib_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as handle:
        handle.truncate((5 << 30) + 1)
    assert validate_dataset(path).errors == ["the file has 5.0 GiB; the platform takes at most 5 GiB"]


def test_unusable_rows_are_a_warning(tmp_path: Path) -> None:
    report = validate(tmp_path, GOOD * 3 + '{"user_prompt": "", "ground_truth": null}\n' * 2)
    assert report.valid
    assert report.warnings == [
        "2 rows cannot be evaluated, the first at line 4: no value for 'user_prompt', 'ground_truth'"
    ]


@pytest.mark.parametrize(
    "value, error",
    [
        (None, "'metadata' must be a non-empty JSON object, found nothing"),
        ("", "'metadata' must be a non-empty JSON object, found nothing"),
        ("{}", "'metadata' must be a non-empty JSON object, found an empty object"),
        ([], "'metadata' must be a JSON object, found an array"),
        ({"b": {}}, "'metadata.b' is an empty object"),
        ({"b": [{"c": {}}]}, "'metadata.b[].c' is an empty object"),
        ({"b": 2**63}, "'metadata.b' is 9223372036854775808, beyond 64-bit integers"),
        ({"b": -(2**63) - 1}, "'metadata.b' is -9223372036854775809, beyond 64-bit integers"),
        ({"b": 10**50}, "'metadata.b' is an integer of 167 bits, beyond 64-bit integers"),
        ({"b": [1, "x"]}, "'metadata.b[]' is a string, but a number on line 1"),
        (
            json.loads('{"x": ' * 200 + "1" + "}" * 200),
            f"'metadata{'.x' * 101}' is nested deeper than 100 levels",
        ),
        ("level 3", "'metadata' is not valid JSON: unexpected character, expected a JSON value"),
    ],
)
def test_errors_of_metadata(tmp_path: Path, value: Any, error: str) -> None:
    assert metadata_errors(tmp_path, value) == [f"line 1: {error}"]


@pytest.mark.parametrize(
    "first, second, found",
    [
        (1, "x", "a string, but a number"),
        (1, True, "a boolean, but a number"),
        ("x", {"c": 1}, "an object, but a string"),
        ([1], 1, "a number, but an array"),
    ],
)
def test_two_types_of_one_key_are_an_error_with_both_lines(
    tmp_path: Path, first: Any, second: Any, found: str
) -> None:
    errors = metadata_errors(tmp_path, {"b": first}, {"b": second})
    assert errors == [f"line 2: 'metadata.b' is {found} on line 1"]


def test_metadata_as_json_text_has_the_same_rules(tmp_path: Path) -> None:
    error = "'metadata.a' is a number, but a string on line 1"
    expected = [f"line {line}: {error}" for line in range(2, 6)]
    assert metadata_errors(tmp_path, json.dumps({"a": "x"})) == expected


def test_the_number_of_keys_that_are_compared_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MOST_PATHS", 50)
    rows = [{"metadata": {f"key{n}": n}} for n in range(200)]
    report = validate(tmp_path, jsonl(rows))
    assert report.valid
    assert "distinct keys" in report.warnings[0]


def test_a_parquet_metadata_column_of_another_type_is_an_error(tmp_path: Path) -> None:
    report = validate_dataset(write_rows(tmp_path, "parquet", [{"metadata": 1}] * 5))
    assert report.errors == ["column 'metadata' must be a struct or a string, found int64"]


# Not `ru_maxrss`: a child starts with the peak of the process that forked it.
PEAK = """
import re, sys
from pathlib import Path
from osmosis_ai.datasets import validate_dataset
assert validate_dataset(Path(sys.argv[1])).valid
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_kilobytes(path: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("extension", SUPPORTED_EXTENSIONS)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, extension: str) -> None:
    rows = [{"user_prompt": f"{n}" * 1000, "ground_truth": str(n)} for n in range(12_000)]
    (tmp_path / "small").mkdir()
    small = write_rows(tmp_path / "small", extension, rows[:3000])
    large = write_rows(tmp_path, extension, rows)
    assert peak_kilobytes(large) - peak_kilobytes(small) < 20 << 10


ROOT = Path(__file__).resolve().parents[2]
NAMES = {"multiply": 200, "multiply_train": 2000}


def factors_of(name: str) -> set[tuple[int, ...]]:
    pairs = set()
    for line in (ROOT / "data" / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        a, b = sorted(int(digits) for digits in re.findall(r"\d+", row["user_prompt"]))
        assert row["ground_truth"] == str(a * b)
        pairs.add((a, b))
    return pairs


def test_the_sample_files_are_valid_datasets() -> None:
    for name, rows in NAMES.items():
        report = validate_dataset(ROOT / "data" / f"{name}.jsonl")
        assert (report.valid, report.row_count, report.warnings) == (True, rows, [])


def test_the_training_file_has_no_product_of_the_evaluation() -> None:
    evaluation, training = factors_of("multiply"), factors_of("multiply_train")
    assert (len(evaluation), len(training)) == (200, 2000)
    assert not evaluation & training
