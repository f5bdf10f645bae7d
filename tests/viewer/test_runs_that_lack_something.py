"""Runs that were killed, failed throughout, kept no conversations or are of 0.3.10: each has its pages and report."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import report_run
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.report import RunReportOptions
from tests.evaluation.recorded_runs import write_run
from tests.evaluation.test_runs_of_0_3_10 import RUNS
from tests.viewer.browsing import page_text, visitor

if TYPE_CHECKING:
    from starlette.testclient import TestClient

NOT_KEPT = "The conversation was not kept"


@pytest.fixture
def evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    return Path(shutil.copytree(RUNS / "evals", tmp_path / ".osmosis" / "evals"))


@pytest.fixture
def pages(evals: Path, tmp_path: Path) -> Iterator[TestClient]:
    source = LocalSource(tmp_path, cache_dir=tmp_path / "cache")
    yield visitor(source)
    source.close()


def reported(run: Path, file: Path) -> str:
    """Return the report of a run."""
    report_run(str(run), ReportFile(file), RunReportOptions())
    return file.read_text()


def test_a_run_of_0_3_10_is_shown_with_what_was_recorded_then(
    evals: Path, pages: TestClient, tmp_path: Path
) -> None:
    runs = page_text(pages.get("/evals"))
    assert "/evals/finished" in runs and "/evals/partial" in runs
    assert "of 2 scored samples pass" in page_text(pages.get("/evals/finished"))
    samples = page_text(pages.get("/evals/finished/samples"))
    assert "4 samples." in samples and "not recorded" in samples, "it kept no previews"
    conversation = page_text(pages.get("/evals/finished/samples/0.0"))
    assert "write a note" in conversation and NOT_KEPT not in conversation
    assert "1 of 4 planned" in page_text(pages.get("/evals/partial"))
    assert "write a note" in reported(evals / "finished", tmp_path / "report.html")


def test_a_run_without_trajectories_keeps_its_numbers_and_says_what_is_not_there(
    evals: Path, pages: TestClient, tmp_path: Path
) -> None:
    shutil.rmtree(evals / "finished" / "trajectories")
    assert "of 2 scored samples pass" in page_text(pages.get("/evals/finished"))
    sample = page_text(pages.get("/evals/finished/samples/0.0"))
    assert NOT_KEPT in sample and "write a note" not in sample
    assert "4 samples." in reported(evals / "finished", tmp_path / "report.html")


def test_a_run_whose_samples_all_failed_tells_of_no_rate_but_of_what_failed(
    evals: Path, pages: TestClient, tmp_path: Path
) -> None:
    write_run(evals / "lost", [["agent", "grader"], ["agent", "agent"]])
    page = page_text(pages.get("/evals/lost"))
    assert "0 of 4 planned" in page and "samples pass" not in page
    assert "4: 3 agent, 1 grader" in page
    unscored = page_text(pages.get("/evals/lost/samples?outcome=unscored"))
    assert "4 samples." in unscored and "/evals/lost/samples/1.1" in unscored
    # Failed are those that were scored and do not pass.
    assert "/evals/lost/samples/" not in page_text(pages.get("/evals/lost/samples?outcome=failed"))
    assert "3 agent, 1 grader" in page_text(pages.get("/evals"))
    report = reported(evals / "lost", tmp_path / "report.html")
    assert "4: 3 agent, 1 grader" in report and "samples pass" not in report


def test_a_run_of_a_newer_release_is_said_to_be_one_once_and_nothing_of_its_samples(
    evals: Path, pages: TestClient, tmp_path: Path
) -> None:
    manifest = evals / "finished" / "manifest.json"
    manifest.write_text(re.sub('"schema_version": *1', '"schema_version": 9', manifest.read_text()))
    page = page_text(pages.get("/evals/finished"))
    assert page.count("has schema version 9") == page.count("a later release has made the run") == 1
    assert "No sample failed" not in page and "What failed" not in page
    # Of one that can be read it is known.
    assert "No sample failed" in page_text(pages.get("/evals/partial"))


def test_the_samples_of_a_damaged_journal_are_those_before_the_damage_and_the_list_says_so(
    evals: Path, pages: TestClient
) -> None:
    run = write_run(evals / "damaged", [[1.0, 0.0], [1.0, 0.0]])
    journal = run / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    for intact, said in ((2, "2 samples."), (0, "This run has no sample with a result.")):
        journal.write_text("".join([*lines[:intact], "no record\n", *lines[intact + 1 :]]))
        for words in ("", "?q=x&in=conversations"):
            page = page_text(pages.get(f"/evals/damaged/samples{words}"))
            assert page.count("is damaged at line") == 1 and "What stands before that is shown." in page
            assert words or said in page
    assert "damaged" not in page_text(pages.get("/evals/finished/samples"))


def test_a_run_that_was_killed_is_shown_up_to_the_line_that_it_was_writing(
    evals: Path, pages: TestClient, tmp_path: Path
) -> None:
    run = write_run(evals / "killed", [[1.0, 0.0], [1.0, ""]])
    with (run / "events.jsonl").open("ab") as journal:
        journal.write(b'{"row_index": 1, "run_in')
    assert not (run / "metrics.json").exists()
    page = page_text(pages.get("/evals/killed"))
    assert "incomplete" in page and "of 3 scored samples pass" in page and "3 of 4 planned" in page
    assert "damaged" not in page, "a line that was not ended is no damage"
    assert "3 samples." in page_text(pages.get("/evals/killed/samples"))
    missing = page_text(pages.get("/evals/killed/samples/1.1"), status=404)
    assert "has no sample of row 1, attempt 1" in missing
    assert "<p>Rows are numbered 0 to 1, attempts 0 to 1; this one has no result.</p>" in missing
    near = ["1.0", "0.1", "0.0"]
    assert re.findall(r'<a href="/evals/killed/samples/([0-9.]+)">Row', missing) == near
    assert '<a href="/evals/killed/samples/0.1">Row 0, attempt 1</a>' in missing
    assert '<a href="/evals/killed">Back to the run</a>' in missing and '<a href="/evals">' in missing
    # However large the number is, it is a sample that is not there.
    for row in ("9", "9" * 10, "9" * 40):
        missing = page_text(pages.get(f"/evals/killed/samples/{row}.0"), status=404)
        assert f"has no sample of row {row}, attempt 0" in missing and "samples/1.0" in missing
    assert "3 of 4 planned" in reported(run, tmp_path / "report.html")
