"""The docs say of config keys what their declaration says, and of memory what the estimator says."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.imports_much
def test_what_the_docs_say_of_config_keys_is_what_the_code_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["make_config_tables.py", "--check"])
    written = runpy.run_path(str(REPOSITORY / "scripts" / "make_config_tables.py"))
    assert written["main"]() == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "page, tables",
    [
        ("eval-configs.md", ["decide", "evaluation", "execution", "experiment"]),
        ("training.md", ["advanced", "checkpoints", "memory", "sampling", "training"]),
    ],
)
def test_every_table_is_there(page: str, tables: list[str]) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    named = re.findall(r"<!-- table: ([a-z-]+) -->", text)
    assert sorted(named) == tables
    assert text.count("<!-- end of table -->") == len(named)


def test_the_page_has_every_format_of_tool_calls_and_its_mark() -> None:
    from osmosis_ai.inference.tool_calls import FORMAT_NAMES
    from osmosis_ai.inference.tool_format_detection import MARKS

    page = (REPOSITORY / "docs" / "training.md").read_text()
    rows = re.findall(
        r"(?m)^\| `([a-z0-9_]+)` \| .+ \| `(\S+)` \| [^|]+ \|$", page.partition("### Tool calls")[2]
    )
    assert [name for name, _ in rows] == list(FORMAT_NAMES)
    assert {(mark.replace("\\|", "|"), name) for name, mark in rows} == set(MARKS)
