"""An evaluation as one file."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import open_viewer, report_run
from osmosis_ai.viewer.pages import conversation as page_module
from osmosis_ai.viewer.report import RunReportOptions, write_run_report
from osmosis_ai.viewer.source import FailureCount, RunDetail
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import write_run
from tests.full_disk import files_of_at_most
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.workspace.builders import make_workspace

HOSTILE = "</details><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\u202e"


def said(text: str) -> bytes:
    return json.dumps(
        {"steps": [{"source": "user", "message": "canary?"}, {"source": "agent", "message": text}]}
    ).encode()


def source(rows: int = 4, text: str = HOSTILE) -> FakeSource:
    """Return a run whose last row has no score, and whose row 1 failed."""
    samples = [
        a_sample(row, passed=row != 1, reward=float(row != 1), input="canary in", output="canary out")
        for row in range(rows - 1)
    ]
    samples.append(a_sample(rows - 1, passed=None, status="failed", reward=None, error=f"canary {HOSTILE}"))
    entry = a_run("calm-fern-1")
    detail = RunDetail(
        entry,
        config_written="canary = 1",
        failures=[FailureCount("agent", "crash", 1, (rows - 1, 0), "canary")],
        commands=["osmosis eval run x"],
    )
    conversations = {("calm-fern-1", row, 0): said(text) for row in range(rows)}
    return FakeSource([entry], {"calm-fern-1": detail}, {"calm-fern-1": samples}, conversations=conversations)


def report(of: FakeSource, **options: object) -> str:
    written = io.BytesIO()
    write_run_report(written, of, "calm-fern-1", RunReportOptions(**options))  # type: ignore[arg-type]
    return written.getvalue().decode()


def test_it_needs_nothing_else_and_does_nothing() -> None:
    page = report(source())
    assert "<script" not in page and "<img" not in page and "\u202e" not in page and "style=" not in page
    assert re.search(r"content=\"default-src &#39;none&#39;; style-src &#39;sha256-", page)
    linked = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    assert linked and all(address.startswith("#") for address in linked)
    places = set(re.findall(r'id="([^"]*)"', page))
    assert {address[1:] for address in linked} <= places


def test_conversations_without_a_score_come_first_and_what_is_left_out_is_counted() -> None:
    page = report(source())
    order = re.findall(r'<details class="more" id="(\d+\.\d+)"', page)
    assert order == ["3.0", "1.0", "0.0", "2.0"]
    small = report(source(), most_bytes=2500)
    assert "are left out for their size" in small and 'id="3.0"' in small and 'id="2.0"' not in small
    assert report(source(), most_bytes=0, everything=True).count('<details class="more" id=') == 4
    one = report(source(rows=1))
    assert "1 conversation is here." in one and "1 sample." in one


def test_a_conversation_that_is_too_large_to_be_read_is_none_of_those_that_are_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = source()
    large = said("word " * 1_000)
    of.conversations = {**of.conversations, ("calm-fern-1", 0, 0): large}
    monkeypatch.setattr(page_module, "LARGEST_CONVERSATION_BYTES", len(large) - 1)
    page = report(of, everything=True)
    assert "it is not read" in page and "3 conversations are here; 1 is left out for its size" in page


def test_of_a_conversation_that_is_too_large_the_run_s_own_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    run, file = write_run(tmp_path / "calm-fern-1", [[1.0]]), tmp_path / "report.html"
    (run / "trajectories").mkdir()
    (run / "trajectories" / "row_0_run_0.json").write_bytes(said("word " * 1_000))
    monkeypatch.setattr(page_module, "LARGEST_CONVERSATION_BYTES", 100)
    report_run(str(run), ReportFile(file), RunReportOptions())
    page = file.read_text()
    assert "it is not read, the run&#39;s file `trajectories/row_0_run_0.json` has it." in page
    assert "a download" not in page


def test_terminal_sequences_are_removed_and_counted_in_conversations_and_in_the_table() -> None:
    told = "\x1b[31mred\x1b[0m\x1b]0;owned\x07\x1b[2J"
    of = source(rows=2, text=told)
    of.listed = {"calm-fern-1": [a_sample(0, input=told, output=told), a_sample(1)]}
    page = report(of)
    assert page.count("2 terminal sequences removed") == 4  # two messages, and two cells of the table
    assert "owned" not in page and "\u241b" not in page and "[31m" not in page


def test_without_text_it_holds_nothing_that_anybody_said() -> None:
    page = report(source(), text=False)
    assert "canary" not in page and "evil.example" not in page
    assert "4 samples." in page and '<th scope="row">agent, crash</th><td>1</td>' in page


def test_four_hundred_samples_are_less_than_a_megabyte() -> None:
    assert len(report(source(400, "An answer of some length. " * 8))) < 1_000_000


def test_a_file_that_is_there_stays_and_of_one_that_could_not_be_written_nothing_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_workspace(tmp_path / "here")
    write_run(workspace.evals_dir / "calm-fern-1", [[1.0, 0.0], [1.0, "agent"]])
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(workspace.root)
    file = tmp_path / "out" / "report.html"
    with pytest.raises(OsmosisError, match="one run"):
        report_run(None, ReportFile(file), RunReportOptions())
    with pytest.raises(NotFoundError):
        report_run("breezy", ReportFile(file), RunReportOptions())

    def disk_full(opened: io.BytesIO, *_: object) -> None:
        opened.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("osmosis_ai.viewer.report.write_run_report", disk_full)
        with pytest.raises(OsmosisError, match="No space left"):
            report_run("calm-fern-1", ReportFile(file), RunReportOptions())
    assert list(file.parent.iterdir()) == []
    _, content = report_run("calm-fern-1", ReportFile(file), RunReportOptions())
    assert content.samples == 4 and "of 3 scored samples pass" in file.read_text()
    with pytest.raises(ConflictError, match="exists"):
        report_run("calm-fern-1", ReportFile(file), RunReportOptions())
    report_run("calm-fern-1", ReportFile(file, overwrite=True), RunReportOptions(text=False))


def test_a_run_that_was_downloaded_from_a_platform_is_written_from_what_came_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    directory, file = tmp_path / "amber-otter-42", tmp_path / "report.html"
    (directory / "trajectories").mkdir(parents=True)
    facts = {"id": "er_8", "name": "amber-otter-42", "status": "finished", "model_name": "osmosis/tiny"}
    (directory / "metrics.json").write_text(
        json.dumps({"eval_run": facts, "summary": {"pass_threshold": 0.5}})
    )
    with pytest.raises(OsmosisError, match="a report is of one run"):
        report_run(str(directory), ReportFile(file), RunReportOptions())
    listed = {"row_index": 0, "run_index": 0, "rollout_id": "a", "status": "success", "reward": 0.5}
    failed = {**listed, "row_index": 1, "status": "failed", "reward": None, "error_type": "odd"}
    (directory / "summary.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (listed, failed)))
    said = {"steps": [{"source": "agent", "message": "The answer is six."}]}
    (directory / "trajectories" / "row_0_run_0.json").write_text(json.dumps(said))
    (directory / "trajectories" / "row_1_run_0.json").symlink_to("/etc/hostname")
    before = sorted(path.name for path in directory.rglob("*"))
    name, content = report_run(str(directory), ReportFile(file), RunReportOptions())
    page = file.read_text()
    assert content is not None
    # A conversation that is not there is not counted.
    assert (name, content.samples, content.conversations) == ("amber-otter-42", 2, 1)
    assert "of 1 scored sample" in page
    assert "The answer is six." in page and "er_8" in page and "osmosis/tiny" in page
    # With its journal, what the list does not say is there, too.
    notes = record(0, notes="as it should", judge_calls=1).to_line()
    (directory / "events.jsonl").write_bytes(sealed(notes, BEFORE_THE_FIRST)[0])
    report_run(str(directory), ReportFile(file, overwrite=True), RunReportOptions())
    assert "as it should" in file.read_text()
    assert sorted(path.name for path in directory.rglob("*")) == sorted([*before, "events.jsonl"])
    with pytest.raises(OsmosisError, match="downloaded from a platform"):
        open_viewer(str(directory), host="127.0.0.1", port=0)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["pipe", "directory", "link to a file", "link to nothing", "full disk"])
def test_what_stands_in_the_place_of_a_report_is_not_lost(tmp_path: Path, what: str, overwrite: bool) -> None:
    place, other = tmp_path / "out" / "<b>.html", tmp_path / "other"
    place.parent.mkdir()
    other.write_text("precious")
    if what == "pipe":
        os.mkfifo(place)
    elif what == "directory":
        place.mkdir()
    elif what.startswith("link"):
        place.symlink_to(other if what == "link to a file" else tmp_path / "nothing")
    before = place.lstat().st_mode if what != "full disk" else None
    written, said = False, ""
    try:
        with (
            ReportFile(place, overwrite=overwrite).opened() as file,
            files_of_at_most(4096) if what == "full disk" else nullcontext(),
        ):
            file.write(b"x" * 1_000_000)
        written = True
    except OsmosisError as error:
        said = error.message
    assert written or str(place) in said
    refused = "exists" if before and not overwrite else "can not be written"
    assert written or ("is a directory" if what == "directory" else refused) in said
    # A link is replaced where that is asked for; what it leads to never is.
    assert written == (what.startswith("link") and overwrite)
    assert other.read_text() == "precious"
    assert [each.name for each in place.parent.iterdir()] == ([] if what == "full disk" else [place.name])
    if before is not None and not written:
        assert place.lstat().st_mode == before
