"""`osmosis dataset import` and `validate`."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from tests.cli.conftest import Cli
from tests.cli.outcome import Outcome
from tests.datasets.builders import jsonl, prompt_rows, write

QUESTIONS = ("--map", "prompt=question,ground_truth=answer")


@pytest.fixture(autouse=True)
def outside_any_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parquet(path: str, **columns: Any) -> None:
    write_table(pa.table(columns), path)


def run_import(cli: Cli, file: str, *options: str) -> Outcome:
    return cli("dataset", "import", file, "--output", "rows.jsonl", "--yes", "--json", *options)


def imported(cli: Cli, file: str, *options: str) -> list[dict[str, Any]]:
    outcome = run_import(cli, file, "--overwrite", *options)
    assert outcome.status == 0, outcome.err
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


def report(cli: Cli, file: str) -> dict[str, Any]:
    """Return the report of a validation, which may fail."""
    outcome = cli("dataset", "validate", file, "--json")
    return dict(outcome.error["details"]) if outcome.status else outcome.data


def turns(*messages: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in messages]


SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "question and answer": ({"question": "2+2?", "answer": 4}, {"user_prompt": "2+2?", "ground_truth": "4"}),
    "names in capitals": ({"Problem": "2+2?", "Answer": "4"}, {"user_prompt": "2+2?", "ground_truth": "4"}),
    "our own": (
        {"user_prompt": "2+2?", "label": "4", "system_prompt": "Be short."},
        {"system_prompt": "Be short.", "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "chat with an answer": (
        {"messages": turns(("system", "Be short."), ("user", "2+2?"), ("assistant", "4"))},
        {"system_prompt": "Be short.", "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "chat beside an answer": (
        {"input": turns(("user", [{"type": "text", "text": "2+2?"}])), "ideal": "4"},
        {"system_prompt": None, "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "chat as text": (
        {"prompt": json.dumps(turns(("user", "2+2?"))), "target": "4"},
        {"system_prompt": None, "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "conversations of from and value": (
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"system_prompt": None, "user_prompt": "2+2?", "ground_truth": "4"},
    ),
    "a task and its input": (
        {"instruction": "Add.", "input": "2 2", "output": "4"},
        {"user_prompt": "Add.\n\n2 2", "ground_truth": "4"},
    ),
    "an answer inside an object": (
        {
            "data_source": "sums",
            "prompt": turns(("user", "2+2?")),
            "reward_model": {"style": "rule", "ground_truth": 10**29 + 1},
            "extra_info": {"index": 1, "nothing": {}},
        },
        {
            "system_prompt": None,
            "user_prompt": "2+2?",
            "ground_truth": "100000000000000000000000000001",
            "metadata": {"index": 1, "nothing": None},
        },
    ),
}


@pytest.mark.parametrize(("record", "expected"), SHAPES.values(), ids=SHAPES)
def test_known_shapes(cli: Cli, record: Any, expected: dict[str, Any]) -> None:
    write(Path(), "a.jsonl", jsonl([record] * 4))
    assert imported(cli, "a.jsonl") == [expected] * 4
    assert report(cli, "rows.jsonl")["valid"]


def test_file_formats(cli: Cli) -> None:
    records = [{"question": f"{i}+1?", "answer": i + 1} for i in range(4)]
    write(Path(), "a.csv", "question,answer\n" + "".join(f"{r['question']},{r['answer']}\n" for r in records))
    write(Path(), "b.json", json.dumps(records))
    write_table(pa.Table.from_pylist(records), "c.parquet")
    for name in ("a.csv", "b.json", "c.parquet"):
        outcome = cli("dataset", "import", name, *QUESTIONS, "--plain")
        assert f"Imported 4 rows into {name[0]}.jsonl" in outcome.out
        rows = [json.loads(line) for line in Path(f"{name[0]}.jsonl").read_text().splitlines()]
        assert rows == [{"user_prompt": f"{i}+1?", "ground_truth": str(i + 1)} for i in range(4)]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("prompt=nowhere", "no column 'nowhere' (found 'question', 'answer')"),
        (
            "promt=question",
            "`promt` is not a field of a dataset (prompt, ground_truth, system, metadata); did you mean `prompt`?",
        ),
        ("prompt=question,user_prompt=answer", "`prompt` is mapped twice"),
    ],
)
def test_invalid_mapping(cli: Cli, mapping: str, message: str) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}] * 4))
    assert message in run_import(cli, "qa.jsonl", "--map", mapping).error["message"]
    assert not Path("rows.jsonl").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": None, "answer": "4"}, "no value for 'prompt' (from 'question')"),
        (["2+2?", "4"], "expected a JSON object, found an array"),
        (None, "expected a JSON object, found null"),
        (
            {"question": turns(("user", "a"), ("assistant", "b"), ("user", "c")), "answer": "4"},
            "the conversation has 3 turns (user, assistant, user) before its end",
        ),
        (
            {"question": turns(("user", [{"type": "image_url", "image_url": {"url": "x"}}]))},
            "the user's turn holds more than text",
        ),
    ],
    ids=["no prompt", "array", "null", "turns", "image"],
)
def test_invalid_rows(cli: Cli, row: Any, message: str) -> None:
    good = {"question": "2+2?", "answer": "4"}
    write(Path(), "qa.jsonl", jsonl([good, row, good, good, good]))
    assert f"line 2: {message}" in run_import(cli, "qa.jsonl").error["message"]
    assert not Path("rows.jsonl").exists()
    skipped = run_import(cli, "qa.jsonl", "--skip-invalid")
    assert "1 row left out" in skipped.err
    assert (skipped.resource["row_count"], skipped.resource["skipped"]) == (4, 1)


def test_missing_numbers_bytes_and_depth(cli: Cli) -> None:
    parquet("a.parquet", question=list("abc"), answer=[1.5, math.nan, 2.5], raw=[b"ok", b"ok", b"\xff"])
    rows = imported(cli, "a.parquet", *QUESTIONS, "--map", "metadata=raw", "--skip-invalid")
    assert [row["ground_truth"] for row in rows] == ["1.5", None] and rows[0]["metadata"] == {"raw": "ok"}
    raw = run_import(cli, "a.parquet", *QUESTIONS, "--map", "metadata=raw", "--skip-invalid", "--overwrite")
    assert "row 3: bytes that are not UTF-8 text" in raw.err
    missing = run_import(cli, "a.parquet", *QUESTIONS, "--overwrite")
    assert "row 2: no value for 'ground_truth' (from 'answer')" in missing.error["message"]

    deep = '{"question": "q", "answer": "a", "tree": ' + '{"a": ' * 900 + "1" + "}" * 900 + "}\n"
    write(Path(), "deep.jsonl", deep)
    error = run_import(cli, "deep.jsonl", "--map", "metadata=tree", "--overwrite").error
    assert "line 1: nested too deeply" in error["message"]


def test_existing_output(cli: Cli) -> None:
    write(Path(), "qa.jsonl", jsonl([{"question": "2+2?", "answer": "4"}] * 4))
    write(Path(), "rows.jsonl", "mine\n")
    for output, message in {
        "rows.jsonl": "use '--overwrite'",
        "qa.jsonl": "Output file is the source",
        "rows.csv": "must end in .jsonl",
    }.items():
        refused = cli("dataset", "import", "qa.jsonl", "--yes", "--output", output, "--plain")
        assert refused.status == 1 and message in refused.err
    assert Path("rows.jsonl").read_text() == "mine\n"
    assert len(imported(cli, "qa.jsonl")) == 4


WRITTEN = [
    *("3.14159265358979323846", "1.10", "1e5", "-0", "0", "-0.0"),
    *("12345678901234567890123", "true", "[1.10, false]"),
]


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv"])
def test_numbers_are_unchanged(cli: Cli, tmp_path: Path, extension: str) -> None:
    lines = [f'{{"question": "q", "answer": {written}}}' for written in WRITTEN]
    text = {
        "jsonl": "\n".join(lines),
        "json": f"[{', '.join(lines)}]",
        "csv": "question,answer\n" + "".join(f'q,"{written}"\n' for written in WRITTEN),
    }[extension]
    write(tmp_path, f"a.{extension}", text)
    assert [row["ground_truth"] for row in imported(cli, f"a.{extension}")] == WRITTEN


def test_nested_numbers_are_unchanged(cli: Cli, tmp_path: Path) -> None:
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
def test_binary_numbers_in_shortest_form(
    cli: Cli, values: list[Any], kind: pa.DataType, written: list[str]
) -> None:
    parquet("a.parquet", user_prompt=["q"] * len(values), answer=pa.array(values, kind))
    mapping = ("--map", "ground_truth=answer")
    assert [row["ground_truth"] for row in imported(cli, "a.parquet", *mapping)] == written


def test_integers_turned_into_floats(cli: Cli, tmp_path: Path) -> None:
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
def test_nan_is_missing(cli: Cli, tmp_path: Path, missing: str) -> None:
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
def test_other_delimiter(cli: Cli, tmp_path: Path, delimiter: str, quote: str) -> None:
    row = delimiter.join(f"{quote}{name}{quote}" for name in ("user_prompt", "ground_truth"))
    write(tmp_path, "a.csv", f"{row}\n" * 5)
    assert report(cli, "a.csv")["errors"] == [f"line 1: columns are separated by {delimiter!r}, expected ','"]
    assert f"separated by {delimiter!r}" in cli("dataset", "import", "a.csv", "--yes").err


@pytest.mark.parametrize("file", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_git_lfs_pointer(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    write(tmp_path, file, pointer)
    for outcome in (
        cli("dataset", "validate", file),
        cli("dataset", "import", file, "--yes"),
        cli("eval", "rubric", "--data", file, "--rubric", "Is it polite?", "--model", "openai/judge"),
    ):
        assert outcome.status == 1
        assert "is a Git LFS pointer" in outcome.err and "git lfs pull" in outcome.err


@pytest.mark.parametrize("extension", ["jsonl", "json"])
@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_non_json_constants(cli: Cli, tmp_path: Path, extension: str, constant: str) -> None:
    good = '{"user_prompt": "é", "ground_truth": 1.5}'
    bad = good.replace("1.5", constant)
    lines = [bad, good, bad, good, bad]
    write(tmp_path, f"a.{extension}", "\n".join(lines) if extension == "jsonl" else f"[{','.join(lines)}]")
    errors = report(cli, f"a.{extension}")["errors"]
    assert [f"not valid JSON: {constant} instead of null" in each for each in errors[:3]] == [True] * 3
    assert f"{constant} instead of null" in run_import(cli, f"a.{extension}").error["message"]
    resource = run_import(cli, f"a.{extension}", "--skip-invalid").resource
    assert (resource["row_count"], resource["skipped"]) == (2, 3)


def test_null_rows(cli: Cli, tmp_path: Path) -> None:
    good = {"user_prompt": "a", "ground_truth": "b"}
    write(tmp_path, "a.json", json.dumps([None, good, good, None, good, good]))
    found = report(cli, "a.json")
    assert found["errors"] == [f"row {row}: expected a JSON object, found null" for row in (1, 4)]
    assert (found["row_count"], found["valid"]) == (4, False)
    resource = run_import(cli, "a.json", "--skip-invalid").resource
    assert (resource["row_count"], resource["skipped"]) == (4, 2)


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv"])
def test_repeated_keys(cli: Cli, tmp_path: Path, extension: str) -> None:
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


@pytest.mark.parametrize(("value", "found"), [(Decimal("1.50"), "a Decimal"), (float("nan"), "nan")])
def test_metadata_that_json_cannot_hold(cli: Cli, value: object, found: str) -> None:
    values = [{"n": 1, "price": value}] * 4
    parquet("a.parquet", user_prompt=list("abcd"), ground_truth=list("abcd"), metadata=values)
    assert report(cli, "a.parquet")["errors"][0] == (
        f"row 1: 'metadata.price' is {found}, which JSON cannot hold"
    )


def test_valid_file_has_no_warning(cli: Cli, tmp_path: Path) -> None:
    rows = [{**row, "metadata": {"a": [{"b": 'x": y'}], "c": 1.5}} for row in prompt_rows(5)]
    write(tmp_path, "a.jsonl", jsonl(rows))
    assert report(cli, "a.jsonl")["warnings"] == []
