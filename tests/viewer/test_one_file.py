"""Comparisons, training runs and judging sessions as one file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.comparison.engine import CompareOptions, compare_runs
from osmosis_ai.services.report_files import ReportFile
from osmosis_ai.services.viewing import report_run
from osmosis_ai.viewer.one_file import (
    write_comparison_report,
    write_judging_report,
    write_training_report,
)
from osmosis_ai.viewer.report import RunReportOptions
from osmosis_ai.viewer.source import RunDetail
from tests.cli.trained_runs import trained_here
from tests.viewer.fake_source import a_run
from tests.viewer.test_compare import two_runs
from tests.viewer.test_rubric_page import a_document
from tests.viewer.test_training_page import learned

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>"


def comparison(name: str = "new", *, text: bool = True) -> str:
    runs = [two_runs().samples_of["old"], replace(two_runs().samples_of["new"], name=name)]
    written = io.BytesIO()
    found = compare_runs(runs[0], runs[1:], CompareOptions(rows_shown=50))
    write_comparison_report(written, found, runs, text=text)
    return written.getvalue().decode()


def training(*, text: bool = True) -> str:
    run = a_run("keen-owl-2", "training", model="osmosis/tiny", error=f"canary {HOSTILE}")
    detail = RunDetail(
        run,
        config_effective={"training": {"lr": 0.001, "note": "canary"}},
        facts=[("Directory", "/home/fern/walks"), ("Steps", "12 of 12")],
        commands=["osmosis train resume"],
    )
    written = io.BytesIO()
    write_training_report(written, detail, learned(), text=text)
    return written.getvalue().decode()


def judging(*, text: bool = True, everything: bool = False) -> str:
    document = a_document(30)
    for record in document["records"]:
        for call in record["judgements"]:
            call["explanation"] = f"canary: the answer is right, but says so at length. {HOSTILE}"
    written = io.BytesIO()
    detail = RunDetail(a_run("answers", "rubric"), summary_numbers=document, config_written="canary")
    write_judging_report(written, detail, text=text, everything=everything)
    return written.getvalue().decode()


@pytest.mark.parametrize(
    "made", [lambda: comparison(HOSTILE), training, judging], ids=["compare", "train", "rubric"]
)
def test_each_needs_nothing_else_and_does_nothing(made: Callable[[], str]) -> None:
    page = made()
    assert "<script" not in page and "<img" not in page and "<form" not in page and "style=" not in page
    assert re.search(r"content=\"default-src &#39;none&#39;; style-src &#39;sha256-", page)
    assert "&lt;script&gt;alert(1)" in page
    linked = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    places = set(re.findall(r'id="([^"]*)"', page))
    assert linked and all(address.startswith("#") and address[1:] in places for address in linked)
    assert page.count("<h1>") == 1 and page.rstrip().endswith("</html>")


def test_a_comparison_has_the_sentence_and_the_numbers_of_the_command() -> None:
    runs = two_runs().samples_of
    found = compare_runs(runs["old"], [runs["new"]], CompareOptions(rows_shown=50))
    page = comparison()
    assert f'<p class="lead">{found.sentence}</p>' in page and "<h1>new against old</h1>" in page
    assert "Pass rate by row: 20 higher, 1 lower, 9 equal." in page and "leads to both" not in page
    assert "+63.3 points" in page and "<svg" in page


def test_a_training_run_has_its_curves_and_nothing_of_the_machine_it_was_on() -> None:
    page = training()
    assert "Validation reward 0.625 (0.430 – 0.810) after step 12" in page and "training.lr" in page
    assert "/home/fern" not in page and "train resume" not in page and "12 of 12" in page


def test_of_files_that_a_run_was_made_of_a_file_tells_the_names() -> None:
    from osmosis_ai.viewer.one_file import facts_to_send

    facts = [("Data", "/home/fern/d.jsonl"), ("Data, SHA-256", "ab" * 32), ("File", "/home/fern/out.json")]
    assert facts_to_send(facts) == [("Data", "d.jsonl"), ("Data, SHA-256", "ab" * 32)]


def test_without_text_there_are_numbers_and_nothing_that_anybody_said() -> None:
    bare = [training(text=False), judging(text=False)]
    for page in bare:
        assert "canary" not in page and "alert(1)" not in page
    assert "0.625 (0.430 – 0.810)" in bare[0] and "Mean score 0.500" in bare[1]
    assert bare[1].count('<details class="more" id="record-') == 30


def test_thirty_judged_records_are_less_than_300_kb() -> None:
    assert len(judging().encode()) < 300_000


def test_records_that_are_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.viewer.one_file.MOST_RECORDS", 20)
    page = judging()
    assert "10 are left out: --all has them" in page
    assert page.count('<details class="more" id="record-') == 20
    assert "left out: --all" not in judging(everything=True)


def test_view_writes_a_training_directory_and_a_judging_result_and_names_what_it_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            ("runs/walks", "Validation reward 0.500"),
            ("runs", "Validation reward 0.500"),
            ("judged/answers.json", "Mean score 0.500"),
            ("judged", "Mean score 0.500"),
        ]
    ):
        file = tmp_path / "out" / f"{number}.html"
        name, content = report_run(reference, ReportFile(file), RunReportOptions())
        assert (name, content) == ("walks" if number < 2 else "answers", None)
        assert said in file.read_text()
    limited = RunReportOptions(most_bytes=0, is_limited=True)
    for reference, kind in (("runs", "training run"), ("judged/answers.json", "rubric result")):
        with pytest.raises(
            OsmosisError, match=f"--max-mb limits .* is a {kind}: its report has none"
        ) as refused:
            report_run(reference, ReportFile(tmp_path / "out" / "no.html"), limited)
        assert "leave out --max-mb" in str(refused.value.hint)
    for reference, why in (
        (".", "one run"),
        ("odd.json", "odd.json is JSON, and no result of a judging session"),
        ("torn.json", "no result"),
    ):
        with pytest.raises(OsmosisError, match=why):
            report_run(reference, ReportFile(tmp_path / "out" / "no.html"), RunReportOptions())
    assert not (tmp_path / "out" / "no.html").exists()
