"""`--markdown` and `--junit`: whole files or none, and a step's summary."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from osmosis_ai.cli.output.reports import (
    STEP_SUMMARY,
    DecisionDocument,
    DecisionFiles,
    JunitCase,
    junit_of,
    markdown_of,
)
from osmosis_ai.errors import OsmosisError

DOCUMENT = DecisionDocument(title="osmosis eval gate", marker="eval.gate:tiny", verdict="pass: it is good.")
CASES = [
    JunitCase("pass_rate >= 0.8", "pass", "at least 0.83"),
    JunitCase("reward >= 1", "fail", "at most 0.9"),
    JunitCase("unscored <= 0.1", "unclear", "about 140 more rows"),
]


def test_a_rule_is_a_test_case() -> None:
    suite = ElementTree.fromstring(junit_of("osmosis eval gate", CASES)).find("testsuite")
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "1"]
    passed, failed, unclear = suite.findall("testcase")
    assert (
        passed.get("name") == "pass_rate >= 0.8" and passed.find("failure") is passed.find("skipped") is None
    )
    failure = failed.find("failure")
    assert failure is not None and failure.get("message") == "at most 0.9"
    skipped = unclear.find("skipped")
    assert skipped is not None and skipped.get("message") == "about 140 more rows"


def test_hostile_text_is_well_formed_xml() -> None:
    text = "</testcase><evil a=\"'>&amp;]]>\x00\x1b[31m\ud800\ufffe\U0001f600"
    root = ElementTree.fromstring(junit_of(text, [JunitCase(text, "fail", text)]))
    assert [element.tag for element in root.iter()] == ["testsuites", "testsuite", "testcase", "failure"]
    assert next(root.iter("failure")).get("message") == "</testcase><evil a=\"'>&amp;]]>[31m\U0001f600"


def test_files_are_written_and_a_steps_summary_is_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv(STEP_SUMMARY, str(summary))
    files = DecisionFiles(markdown=tmp_path / "new" / "comment.md", junit=tmp_path / "report.xml").check()
    files.write(DOCUMENT, CASES)
    comment = (tmp_path / "new" / "comment.md").read_text("utf-8")
    assert comment == markdown_of(DOCUMENT)
    assert summary.read_text("utf-8") == f"before\n{comment}\n"
    assert (tmp_path / "report.xml").read_bytes() == junit_of("osmosis eval gate", CASES)


def test_a_summary_that_cannot_be_written_is_only_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STEP_SUMMARY, str(tmp_path))
    DecisionFiles(markdown=tmp_path / "comment.md").write(DOCUMENT)
    assert (tmp_path / "comment.md").exists()
    assert "GITHUB_STEP_SUMMARY) cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["markdown", "junit"])
def test_a_file_that_cannot_be_written_is_known_before_the_work(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OsmosisError, match=f"cannot write `--{option} .*`: it is a directory"):
        DecisionFiles(**{option: tmp_path}).check()
    with pytest.raises(OsmosisError, match=f"cannot write `--{option} .*`: (Not a directory|File exists)"):
        DecisionFiles(**{option: tmp_path / "file" / "x"}).check()
