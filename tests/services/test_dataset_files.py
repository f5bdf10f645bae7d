from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.dataset_files import validate_file
from tests.datasets.builders import jsonl, prompt_rows, write


def test_a_valid_file_gives_its_report(tmp_path: Path) -> None:
    report = validate_file(write(tmp_path, "a.jsonl", jsonl(prompt_rows(4))))
    assert (report.valid, report.row_count, report.mode) == (True, 4, "prompt")


def test_an_invalid_file_is_an_error_that_lists_what_is_wrong(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl(prompt_rows(4)) + "oops\n[]\n")
    with pytest.raises(OsmosisError) as caught:
        validate_file(path)
    error = caught.value
    assert error.code == "VALIDATION"
    assert error.message == (
        f"Validation failed: {path}\n"
        "  - line 5: not valid JSON: unexpected character, expected a JSON value (column 1)\n"
        "  - line 6: expected a JSON object, found an array"
    )
    assert error.details["file"] == str(path)
    assert len(error.details["errors"]) == 2
