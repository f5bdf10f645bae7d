"""Values of datasets as other programs write them: numbers, missing values, types that JSON does not have."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from tests.cli.conftest import Cli
from tests.datasets.builders import jsonl, prompt_rows, write

WRITTEN = [
    "3.14159265358979323846",
    "1.10",
    "1e5",
    "-0",
    "0",
    "-0.0",
    "12345678901234567890123",
    "true",
    "[1.10, false]",
]
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture(autouse=True)
def outside_any_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parquet(path: str, **columns: Any) -> None:
    write_table(pa.table(columns), path)


def imported(cli: Cli, file: str, *more: str) -> list[dict[str, Any]]:
    outcome = cli("dataset", "import", file, *more, "--output", "rows.jsonl", "--overwrite", "--yes")
    assert outcome.status == 0, outcome.err
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


def report(cli: Cli, file: str) -> dict[str, Any]:
    outcome = cli("dataset", "validate", file, "--json")
    if outcome.status:
        found: dict[str, Any] = json.loads(outcome.err)["error"]["details"]
    else:
        found = json.loads(outcome.out)["data"]
    return found


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv"])
def test_an_import_keeps_numbers_as_they_are_written(cli: Cli, tmp_path: Path, extension: str) -> None:
    lines = [f'{{"question": "q", "answer": {written}}}' for written in WRITTEN]
    text = {
        "jsonl": "\n".join(lines),
        "json": f"[{', '.join(lines)}]",
        "csv": "question,answer\n" + "".join(f'q,"{written}"\n' for written in WRITTEN),
    }[extension]
    write(tmp_path, f"a.{extension}", text)
    assert [row["ground_truth"] for row in imported(cli, f"a.{extension}")] == WRITTEN


def test_an_import_keeps_numbers_inside_of_objects_and_of_text(cli: Cli, tmp_path: Path) -> None:
    inner = '{"ground_truth": 1.10, "weight": 0.50}'
    line = f'{{"prompt": "q", "reward_model": {inner}, "extra_info": {{"weight": 0.50}}}}\n'
    write(tmp_path, "a.jsonl", line + line.replace(inner, json.dumps(inner)))
    for row in imported(cli, "a.jsonl"):
        assert row == {"user_prompt": "q", "ground_truth": "1.10", "metadata": {"weight": 0.5}}


@pytest.mark.parametrize(
    ("values", "kind", "written"),
    [
        ([0.1, 1.0, 1e-5, 16777216.0], pa.float32(), ["0.1", "1.0", "1e-05", "16777216.0"]),
        ([0.1, 2.5], pa.float16(), ["0.1", "2.5"]),
        ([0.1, 1 / 3], pa.float64(), ["0.1", "0.3333333333333333"]),
        ([Decimal("1.10"), Decimal("0.00")], pa.decimal128(20, 2), ["1.10", "0.00"]),
        ([Decimal("1e-8")], pa.decimal128(20, 8), ["0.00000001"]),
        ([True, False], pa.bool_(), ["true", "false"]),
        ([{"a": [0.1]}], pa.struct([("a", pa.list_(pa.float32()))]), ['{"a": [0.1]}']),
    ],
)
def test_an_import_writes_the_shortest_form_of_binary_numbers(
    cli: Cli, values: list[Any], kind: pa.DataType, written: list[str]
) -> None:
    parquet("a.parquet", user_prompt=["q"] * len(values), answer=pa.array(values, kind))
    mapping = ("--map", "ground_truth=answer")
    assert [row["ground_truth"] for row in imported(cli, "a.parquet", *mapping)] == written


def test_integers_that_pandas_made_floats_are_a_warning_with_the_remedy(cli: Cli, tmp_path: Path) -> None:
    rows = "user_prompt,ground_truth\na,144.0\nb,\nc,12.0\nd,7.0\n"
    write(tmp_path, "a.csv", rows)
    parquet("a.parquet", user_prompt=list("abcd"), ground_truth=pa.array([144.0, float("nan"), 12.0, 7.0]))
    write(
        tmp_path,
        "a.jsonl",
        jsonl([{"metadata": {"n": n}, "label": n or None} for n in (144.0, 0.0, 1.0, 2.0)]),
    )
    for file, first, missing in (
        ("a.csv", "'144.0' on line 2", "line 3"),
        ("a.parquet", "'144.0' on row 1", "row 2"),
        ("a.jsonl", "'144.0' on line 1", "line 2"),
    ):
        found = report(cli, file)
        assert found["valid"]
        warning = found["warnings"][-1]
        assert first in warning and f"({missing})" in warning and ".astype('Int64')" in warning
    write(tmp_path, "whole.csv", rows.replace("b,", "b,1.0"))
    write(tmp_path, "mixed.csv", rows.replace("12.0", "12.5"))
    assert report(cli, "whole.csv")["warnings"] == []
    assert len(report(cli, "mixed.csv")["warnings"]) == 1


@pytest.mark.parametrize("missing", ["parquet", "NaN", "nan"])
def test_nan_is_a_missing_answer(cli: Cli, tmp_path: Path, missing: str) -> None:
    if missing == "parquet":
        parquet("a.parquet", user_prompt=list("abcd"), ground_truth=[0.5, 1.5, float("nan"), 3.5])
        file, place = "a.parquet", "row 3"
    else:
        write(tmp_path, "a.csv", f"user_prompt,ground_truth\na,0.5\nb,1.5\nc,{missing}\nd,3.5\n")
        file, place = "a.csv", "line 4"
    expected = f"1 row cannot be evaluated, the first at {place}: no value for 'ground_truth'"
    assert report(cli, file)["warnings"] == [expected]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_another_delimiter_is_named(cli: Cli, tmp_path: Path, delimiter: str, quote: str) -> None:
    row = delimiter.join(f"{quote}{name}{quote}" for name in ("user_prompt", "ground_truth"))
    write(tmp_path, "a.csv", f"{row}\n" * 5)
    assert report(cli, "a.csv")["errors"] == [f"line 1: columns are separated by {delimiter!r}, expected ','"]
    assert f"separated by {delimiter!r}" in cli("dataset", "import", "a.csv", "--yes").err


@pytest.mark.parametrize("file", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_a_git_lfs_pointer_is_named_with_the_command_that_gets_the_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    write(tmp_path, file, LFS_POINTER)
    for outcome in (
        cli("dataset", "validate", file),
        cli("dataset", "import", file, "--yes"),
        cli("eval", "rubric", "--data", file, "--rubric", "Is it polite?", "--model", "openai/judge"),
    ):
        assert outcome.status == 1
        assert "is a Git LFS pointer" in outcome.err and "git lfs pull" in outcome.err


@pytest.mark.parametrize("extension", ["jsonl", "json"])
@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_constant_that_json_does_not_have_is_named_and_its_row_can_be_left_out(
    cli: Cli, tmp_path: Path, extension: str, constant: str
) -> None:
    good = '{"user_prompt": "é", "ground_truth": 1.5}'
    bad = good.replace("1.5", constant)
    lines = [bad, good, bad, good, bad]
    write(tmp_path, f"a.{extension}", "\n".join(lines) if extension == "jsonl" else f"[{','.join(lines)}]")
    errors = report(cli, f"a.{extension}")["errors"]
    assert [f"not valid JSON: {constant} instead of null" in each for each in errors[:3]] == [True] * 3
    refused = cli("dataset", "import", f"a.{extension}", "--yes", "--output", "rows.jsonl")
    assert refused.status == 1 and f"{constant} instead of null" in refused.err

    words = (
        "dataset",
        "import",
        f"a.{extension}",
        "--yes",
        "--output",
        "rows.jsonl",
        "--skip-invalid",
        "--json",
    )
    resource = json.loads(cli(*words).out)["resource"]
    assert (resource["row_count"], resource["skipped"]) == (2, 3)


def test_an_import_that_leaves_missing_answers_out_warns_of_integers_as_floats(cli: Cli) -> None:
    parquet("a.parquet", user_prompt=list("abcd"), ground_truth=pa.array([144.0, float("nan"), 12.0, 7.0]))
    words = ("dataset", "import", "a.parquet", "--yes", "--output", "rows.jsonl", "--skip-invalid", "--json")
    warnings = json.loads(cli(*words).out)["warnings"]
    assert any("'144.0' on line 1" in each and "(row 2)" in each and "Int64" in each for each in warnings)


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv"])
def test_a_repeated_key_is_a_warning(cli: Cli, tmp_path: Path, extension: str) -> None:
    good = '{"user_prompt": "a \\": b", "ground_truth": "1", "metadata": {"a" : 1}}'
    twice = '{"user_prompt": "q", "ground_truth": "1", "metadata": {"a" :  1, "a" : 2}}'
    if extension == "csv":
        text = "metadata\n" + '"{""a"": 1}"\n' * 3 + '"{""a"": 1, ""a"": 2}"\n'
    elif extension == "jsonl":
        text = "\n".join([good] * 3 + [twice] * 2 + [good])
    else:
        text = f"[{', '.join([good] * 3 + [twice] * 2)}]"
    write(tmp_path, f"a.{extension}", text)
    found = report(cli, f"a.{extension}")
    count, place = ("1 row", "line 5") if extension == "csv" else ("2 rows", "line 4")
    if extension == "json":
        place = "row 4"
    assert found["valid"]
    assert found["warnings"] == [f"repeated keys in {count} (the last value counts), first at {place}: 'a'"]


def test_metadata_that_json_cannot_hold_is_an_error_with_its_place(cli: Cli) -> None:
    values = [{"n": 1, "price": Decimal("1.50")}] * 4
    parquet("a.parquet", user_prompt=list("abcd"), ground_truth=list("abcd"), metadata=values)
    assert (
        report(cli, "a.parquet")["errors"][0]
        == "row 1: 'metadata.price' is a Decimal, which JSON cannot hold"
    )


def test_a_good_file_has_no_warning(cli: Cli, tmp_path: Path) -> None:
    rows = [{**row, "metadata": {"a": [{"b": 'x": y'}], "c": 1.5}} for row in prompt_rows(5)]
    write(tmp_path, "a.jsonl", jsonl(rows))
    assert report(cli, "a.jsonl")["warnings"] == []
