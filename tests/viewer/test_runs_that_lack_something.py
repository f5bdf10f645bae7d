"""Runs that were killed, failed throughout, or kept no conversations or previews: each has its pages and report."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.services.eval_runs.info import RunWatcher
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import report_run
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.report import RunReportOptions
from tests.evaluation.recorded_runs import write_run
from tests.viewer.browsing import page_text, visitor

if TYPE_CHECKING:
    from starlette.testclient import TestClient

NOT_KEPT = "The conversation was not kept"


@pytest.fixture
def evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    evals = tmp_path / ".osmosis" / "evals"
    write_run(evals / "partial", [[1.0], [""], [""], [""]])
    finished = write_run(evals / "finished", [[1.0], ["agent"], [None], [0.0]])
    (finished / "trajectories").mkdir()
    steps = [{"step_id": 1, "source": "user", "message": "write a note"}]
    conversation = {"schema_version": "ATIF-v1.7", "agent": {}, "steps": steps}
    (finished / "trajectories" / "row_0_run_0.json").write_text(json.dumps(conversation))
    return evals


@pytest.fixture
def pages(evals: Path, tmp_path: Path) -> Iterator[TestClient]:
    source = LocalSource(tmp_path, cache_dir=tmp_path / "cache")
    yield visitor(source)
    source.close()


def reported(run: Path, file: Path) -> str:
    """Return the report of a run."""
    report_run(str(run), ReportFile(file), RunReportOptions())
    return file.read_text()


def test_a_run_without_previews_is_shown(evals: Path, pages: TestClient, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "config", ["[evaluation]\npass_threshold = 0.5\n", "pass_threshold = 0.5\n"], ids=["eval run", "eval -m"]
)
@pytest.mark.parametrize("numbers", [None, '{"summary": [1'], ids=["gone", "torn"])
def test_without_the_file_of_its_numbers_a_run_passes_what_its_config_says(
    evals: Path, pages: TestClient, config: str, numbers: str | None
) -> None:
    run = write_run(evals / "run", [[0.75, 0.25], [0.75, 0.25]])
    (run / "config.toml").write_text(config)
    if numbers is not None:
        (run / "metrics.json").write_text(numbers)
    page = page_text(pages.get("/evals/run"))
    assert "50.0 % of 4 scored samples pass" in page and "reward &gt;= 0.5" in page
    assert "2 samples." in page_text(pages.get("/evals/run/samples?outcome=passed"))
    assert RunWatcher(run).look().progress.passed == 2, "`eval watch` counts the same"


@pytest.mark.parametrize("config", ["", "pass_threshold = nan", "[evaluation", "evaluation = 3"])
def test_a_config_that_says_nothing_of_what_passes_leaves_it_at_one(
    evals: Path, pages: TestClient, config: str
) -> None:
    run = write_run(evals / "run", [[1.0, 0.75]])
    (run / "config.toml").write_text(config)
    assert "50.0 % of 2 scored samples pass" in page_text(pages.get("/evals/run"))


def test_of_results_that_can_not_be_read_nobody_says_that_none_has_a_score(
    evals: Path, pages: TestClient, tmp_path: Path
) -> None:
    run = write_run(evals / "damaged", [[1.0, 0.0], [1.0, 0.0]])
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join([*lines[:2], "no record\n", *lines[3:]]))
    for shown in (page_text(pages.get("/evals/damaged")), reported(run, tmp_path / "report.html")):
        assert "No sample has a score" not in shown and "Its results can not be read." in shown
    manifest = write_run(evals / "torn", [[1.0]]) / "manifest.json"
    manifest.write_text('{"a"')
    assert "No sample has a score" not in page_text(pages.get("/evals/torn"))
    # Of one that has none yet it is so.
    write_run(evals / "begun", [[""]])
    assert "No sample has a score: 0 of 1 planned scored." in page_text(pages.get("/evals/begun"))


def test_results_that_a_journal_has_lost_since_its_numbers_were_written_are_said_to_be_missing(
    evals: Path, pages: TestClient
) -> None:
    journal = evals / "finished" / "events.jsonl"
    whole = journal.read_bytes()
    metrics = read_local_results(evals / "finished").metrics
    RunDirectory(evals / "finished").write_results({}, metrics, journal_bytes=len(whole))
    assert "missing" not in page_text(pages.get("/evals/finished"))
    journal.write_bytes(whole[:-40])
    for below in ("", "/samples"):
        assert "40 bytes less than when the run last ended" in page_text(pages.get(f"/evals/finished{below}"))
    journal.unlink()
    assert "events.jsonl` is not there." in page_text(pages.get("/evals/finished/samples"))
    page = page_text(pages.get("/evals/finished"))
    assert "events.jsonl` is not there." in page
    assert "of 2 scored samples pass" in page and "those of the run&#39;s last end" in page
