"""Reports of evaluations, comparisons, training runs and rubric results."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.decisions.compare import CompareOptions, compare_runs
from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import open_viewer, report_run
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.reports import (
    RunReportOptions,
    write_comparison_report,
    write_judging_report,
    write_run_report,
    write_training_report,
)
from osmosis_ai.viewer.source import FailureCount, RunDetail, RunQuery, SampleQuery
from tests.cli.eval_world import CONFIG, World
from tests.cli.trained_runs import trained_here
from tests.evaluation.builders import record
from tests.full_disk import files_of_at_most
from tests.standin_model import Reply, StandInModel
from tests.viewer.browsing import page_text, visitor
from tests.viewer.builders import a_document, learned, tiles_of, trajectory, two_runs
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.source_contract import listed
from tests.workspace.builders import MINIMAL_EVAL

HOSTILE = "</details><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\u202e"


def source(rows: int = 4, text: str = HOSTILE) -> FakeSource:
    """Return a run whose last row has no score and whose row 1 did not pass."""
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
    said = trajectory({"source": "user", "message": "canary?"}, {"source": "agent", "message": text})
    conversations = {("calm-fern-1", row, 0): said for row in range(rows)}
    return FakeSource([entry], {"calm-fern-1": detail}, {"calm-fern-1": samples}, conversations=conversations)


def output_of(write: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return what a function writes to a file."""
    file = io.BytesIO()
    write(file, *arguments, **options)
    return file.getvalue().decode()


def report(of: FakeSource, **options: object) -> str:
    return output_of(write_run_report, of, "calm-fern-1", RunReportOptions(**options))  # type: ignore[arg-type]


def test_order_and_size_limit() -> None:
    page = report(source())
    order = re.findall(r'<details class="more" id="(\d+\.\d+)"', page)
    assert order == ["3.0", "1.0", "0.0", "2.0"]
    small = report(source(), most_bytes=2500)
    assert (
        "are left out because of the size limit" in small and 'id="3.0"' in small and 'id="2.0"' not in small
    )
    assert report(source(), most_bytes=0, everything=True).count('<details class="more" id=') == 4
    one = report(source(rows=1))
    assert "1 conversation is here." in one and "1 attempt." in one


def test_reports_without_text() -> None:
    page = report(source(), text=False)
    assert "canary" not in page and "evil.example" not in page
    assert "4 attempts." in page and 'agent<span class="interval">crash</span>' in page

    bare = [training(text=False), judging(text=False)]
    for page in bare:
        assert "canary" not in page and "alert(1)" not in page
    assert "0.430–0.810" in bare[0] and "Mean score 0.500" in bare[1]
    assert bare[1].count('<details class="more" id="record-') == 30


def test_report_of_a_downloaded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    directory, file = tmp_path / "amber-otter-42", tmp_path / "report.html"
    (directory / "trajectories").mkdir(parents=True)
    facts = {"id": "er_8", "name": "amber-otter-42", "status": "finished", "model_name": "osmosis/tiny"}
    (directory / "metrics.json").write_text(
        json.dumps({"eval_run": facts, "summary": {"pass_threshold": 0.5}})
    )
    with pytest.raises(OsmosisError, match="Report needs exactly one run"):
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
    assert tiles_of(page)["Scored"].startswith("1 ")
    assert "The answer is six." in page and "er_8" in page and "osmosis/tiny" in page
    # With its journal, what the list does not say is there, too.
    notes = record(0, notes="as it should", judge_calls=1).to_line()
    (directory / "events.jsonl").write_bytes(notes)
    report_run(str(directory), ReportFile(file, overwrite=True), RunReportOptions())
    assert "as it should" in file.read_text()
    assert sorted(path.name for path in directory.rglob("*")) == sorted([*before, "events.jsonl"])
    with pytest.raises(OsmosisError, match="is a platform's run; its pages are there"):
        open_viewer(str(directory), host="127.0.0.1", port=0)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["pipe", "directory", "link to a file", "link to nothing", "full disk"])
def test_existing_file_in_place_of_a_report(tmp_path: Path, what: str, overwrite: bool) -> None:
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
    refused = "exists" if before and not overwrite else "cannot be written"
    assert written or ("is a directory" if what == "directory" else refused) in said
    # A link is replaced where that is asked for; what it leads to never is.
    assert written == (what.startswith("link") and overwrite)
    assert other.read_text() == "precious"
    assert [each.name for each in place.parent.iterdir()] == ([] if what == "full disk" else [place.name])
    if before is not None and not written:
        assert place.lstat().st_mode == before


TITLE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>"


def comparison(name: str = "new", *, text: bool = True) -> str:
    runs = [two_runs().samples_of["old"], replace(two_runs().samples_of["new"], name=name)]
    found = compare_runs(runs[0], runs[1:], CompareOptions(rows_shown=50))
    return output_of(write_comparison_report, found, runs, text=text)


def training(*, text: bool = True) -> str:
    run = a_run("keen-owl-2", "training", model="osmosis/tiny", error=f"canary {TITLE}")
    detail = RunDetail(
        run,
        config_effective={"training": {"lr": 0.001, "note": "canary"}},
        facts=[("Directory", "/home/fern/walks"), ("Steps", "12 of 12")],
        commands=["osmosis train resume"],
    )
    return output_of(write_training_report, detail, learned(), text=text)


def judging(*, text: bool = True) -> str:
    document = a_document(30)
    for judged in document["records"]:
        judged["texts"] = {"Judged text": f"canary {TITLE}"}
        for call in judged["judgements"]:
            call["explanation"] = f"canary: the answer is right, but says so at length. {TITLE}"
    detail = RunDetail(
        a_run("answers", "rubric"),
        summary_numbers=document,
        config_written="canary",
        facts=[("Data", "/home/fern/d.jsonl"), ("File", "/home/fern/out.json")],
    )
    return output_of(write_judging_report, detail, text=text)


@pytest.mark.parametrize(
    "made",
    [lambda: report(source()), lambda: comparison(TITLE), training, judging],
    ids=["eval", "compare", "train", "rubric"],
)
def test_reports_are_self_contained(made: Callable[[], str]) -> None:
    page = made()
    for lacking in ("<script", "<img", "<form", "style=", "\u202e"):
        assert lacking not in page
    assert re.search(r"content=\"default-src &#39;none&#39;; style-src &#39;sha256-", page)
    assert "&lt;script&gt;alert(1)" in page
    linked = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    places = set(re.findall(r'id="([^"]*)"', page))
    assert linked and all(address.startswith("#") and address[1:] in places for address in linked)
    assert page.count("<h1>") == 1 and page.rstrip().endswith("</html>")


def test_reports_do_not_describe_the_machine() -> None:
    page = training()
    assert "d.jsonl" in judging() and "/home/fern" not in judging()
    assert "0.625" in tiles_of(page)["Validation reward"] and "training.lr" in page
    assert "/home/fern" not in page and "train resume" not in page and "12 of 12" in page


def test_reports_of_training_and_rubric_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    trained_here(tmp_path / "runs" / "walks")
    result, odd = tmp_path / "judged" / "answers.json", tmp_path / "odd.json"
    result.parent.mkdir()
    result.write_text(json.dumps({"generated_at": "2026-10-02T07:00:00+00:00", **a_document(30)}))
    odd.write_text("{}")
    (tmp_path / "torn.json").write_text(result.read_text()[:2_000])
    for number, (reference, said) in enumerate(
        [
            ("runs/walks", "<span>Validation reward</span><b>0.500</b>"),
            ("runs", "<span>Validation reward</span><b>0.500</b>"),
            ("judged/answers.json", "Mean score 0.500"),
            ("judged", "Mean score 0.500"),
        ]
    ):
        file = tmp_path / "out" / f"{number}.html"
        name, content = report_run(reference, ReportFile(file), RunReportOptions())
        assert (name, content) == ("walks" if number < 2 else "answers", None)
        assert said in file.read_text()
    for reference, why in (
        (".", "one run"),
        ("odd.json", "odd.json is not a run, a directory with runs or a rubric result"),
        ("torn.json", "torn.json` is not a readable result of a judging session"),
    ):
        with pytest.raises(OsmosisError, match=why):
            report_run(reference, ReportFile(tmp_path / "out" / "no.html"), RunReportOptions())
    assert not (tmp_path / "out" / "no.html").exists()


CANARY = "canary-5f2d9c81a7"
HIDDEN = "[REDACTED]"


@pytest.mark.e2e
async def test_no_page_index_or_report_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is in the dataset, a reply of the model, and an error of the agent."""
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "index"))
    async with StandInModel(lambda _: Reply(f"the model knows {CANARY}")) as model:
        world = World(tmp_path, model)
        (world.workspace.root / CONFIG).write_text(MINIMAL_EVAL.replace("[]", '["AGENT_KEY"]'))
        (world.workspace.root / ".env").write_text(f"AGENT_KEY={CANARY}\n")
        world.rows(["raise", f"the user has {CANARY}"])
        summary = (await world.run("--name", "run")).resource
        assert (summary["succeeded"], summary["failed"]) == (1, 1)
        directory = world.workspace.evals_dir / "run"

    cache = tmp_path / "index"
    source = LocalSource(directory, cache_dir=cache)
    samples = listed(source, "run", SampleQuery())
    assert [sample.input for sample in samples] == ["raise", f"the user has {HIDDEN}"]
    client = visitor(source)
    pages = [
        page_text(client.get(f"/evals/run{path}"))
        for path in ("", "/log", "/samples", "/samples/0.0", "/samples/1.0")
    ]
    source.runs(RunQuery(), limit=5)
    source.close()
    assert f"the model knows {HIDDEN}" in pages[-1] and f"key={HIDDEN}" in pages[-2]

    file = tmp_path / "report.html"
    _, content = report_run(str(directory), ReportFile(file), RunReportOptions())
    report = file.read_text()
    assert content is not None and content.conversations
    for said in (f"the model knows {HIDDEN}", f"the user has {HIDDEN}", f"key={HIDDEN}"):
        assert said in report
    assert not [page for page in (*pages, report) if CANARY in page]
    assert CANARY.encode() not in _bytes_below(cache)


def _bytes_below(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
