from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.workspace.secrets_file import read_secrets_file


def read(tmp_path: Path, content: str | bytes) -> dict[str, str]:
    file = tmp_path / "keys.env"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_secrets_file(str(file))


@pytest.mark.parametrize(
    "line, value",
    [
        ("KEY=value", "value"),
        ("  KEY = value  ", "value"),
        ("export KEY=value", "value"),
        ("KEY='a b'", "a b"),
        ('KEY="a b"', "a b"),
        ('KEY="it\'s"', "it's"),
        ("KEY=''", ""),
        ("KEY=", ""),
        ("KEY=a=b==", "a=b=="),
        ("KEY=a # b", "a # b"),
        ("KEY=a\"b'", "a\"b'"),
        ("KEY=é$HOME", "é$HOME"),
        ("KEY=value\r", "value"),
    ],
)
def test_a_line_is_a_name_and_a_value(tmp_path: Path, line: str, value: str) -> None:
    assert read(tmp_path, line + "\n") == {"KEY": value}


def test_comments_and_blank_lines_are_skipped_and_the_last_value_counts(tmp_path: Path) -> None:
    content = "\ufeff# keys\n\nA=1\n   # B=2\nA=3\nC=4"
    assert read(tmp_path, content) == {"A": "3", "C": "4"}


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "=hunter2",
        "1KEY=hunter2",
        "A KEY=hunter2",
        "KEY='hunter2",
        "KEY=\"hunter2'",
        "KEY='",
        "K\0=hunter2",
    ],
)
def test_a_bad_line_is_told_by_its_number_alone(tmp_path: Path, line: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        read(tmp_path, f"# first\nGOOD=1\n{line}\n")
    assert caught.value.message.startswith("Line 3 of ")
    assert caught.value.details == {"line": 3}
    assert "hunter2" not in str(caught.value.message)


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"KEY=value\nbad line\n")))
    with pytest.raises(OsmosisError, match="Line 2 of standard input"):
        read_secrets_file("-")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"KEY=value\n")))
    assert read_secrets_file("-") == {"KEY": "value"}


def test_a_file_that_cannot_be_read_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="Secrets file not found"):
        read_secrets_file(str(tmp_path / "none.env"))
    with pytest.raises(OsmosisError, match="Cannot read secrets file"):
        read_secrets_file(str(tmp_path))
    with pytest.raises(OsmosisError, match="not UTF-8"):
        read(tmp_path, b"KEY=\xff")
