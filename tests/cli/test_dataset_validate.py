from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.cli.main import main
from tests.datasets.builders import jsonl, prompt_rows, write


@pytest.fixture(autouse=True)
def outside_any_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_valid_file_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "sums.jsonl", jsonl(prompt_rows(20)))
    assert main(["--plain", "dataset", "validate", "sums.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "File: sums.jsonl",
        "Size: 1.1 KB",
        "Rows: 20",
        "Mode: prompt",
        "Status: Valid jsonl file",
    ]
    assert err == ""


def test_scripts_get_the_whole_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "sums.jsonl", jsonl([{**row, "user_prompt": ""} for row in prompt_rows(5)]))
    assert main(["dataset", "validate", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    envelope = json.loads(out)
    assert envelope["schema_version"] == 1
    assert envelope["data"] == {
        "valid": True,
        "file": str(path),
        "file_name": "sums.jsonl",
        "extension": "jsonl",
        "file_size": path.stat().st_size,
        "row_count": 5,
        "mode": "prompt",
        "errors": [],
        "warnings": ["5 rows cannot be evaluated, the first at line 1: no value for 'user_prompt'"],
    }
    assert err == ""


def test_warnings_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "sums.jsonl", b"\xef\xbb\xbf" + jsonl(prompt_rows(5)).encode())
    assert main(["--plain", "dataset", "validate", "sums.jsonl"]) == 0
    assert "Warning: the file starts with a UTF-8 byte-order mark" in capsys.readouterr().out


def test_problems_are_listed_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "sums.csv", "user_prompt,ground_truth\na,1\nb\nc,2\nd,3\ne,4\n")
    assert main(["--plain", "dataset", "validate", "sums.csv"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Error: Validation failed: sums.csv\n  - line 3: expected 2 columns, found 1\n"


def test_problems_are_an_envelope_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "sums.jsonl", "")
    assert main(["dataset", "validate", "sums.jsonl", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    envelope = json.loads(err)
    assert envelope["command"] == "dataset validate"
    assert envelope["error"]["code"] == "VALIDATION"
    assert envelope["error"]["details"]["errors"] == ["the file is empty"]


def test_a_missing_file_is_named_by_its_absolute_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plain", "dataset", "validate", "none.csv"]) == 1
    assert capsys.readouterr().err == f"Error: File not found: {tmp_path}/none.csv\n"


def test_a_big_file_shows_its_progress_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.cli.datasets.PROGRESS_FROM_BYTES", 1000)
    write(tmp_path, "sums.jsonl", jsonl(prompt_rows(20_000)))
    assert main(["--plain", "dataset", "validate", "sums.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert "Validating" not in out
    assert err.splitlines()[-1].startswith("Validating: ") and err.splitlines()[-1].endswith("(100%)")
