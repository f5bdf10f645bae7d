"""Pages of run lists, evaluations, comparisons, training runs and rubric results."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from osmosis_ai.api.models.base import LogEntry
from osmosis_ai.api.models.training_runs import ValidatedRows
from osmosis_ai.decisions.compare import CompareOptions, compare_runs
from osmosis_ai.evaluation.metrics import RunScore
from osmosis_ai.training.runs.curves import CurveValue, TrainingCurves, ViewedCurve, viewed_curves
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import FailureCount, Histogram, RunDetail
from tests.datasets.builders import jsonl
from tests.decisions.builders import run_of
from tests.evaluation.builders import MeasuredResults
from tests.evaluation.recorded_runs import record
from tests.viewer.browsing import page_of, page_text, text_by_class, visitor
from tests.viewer.builders import SCRIPT, a_document, learned, tiles_of, trajectory, two_runs
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.source_contract import sample_record

if TYPE_CHECKING:
    from starlette.testclient import TestClient


HEADLINE = RunScore(pass_rate=0.418, low=0.372, high=0.463, scored=380, planned=400, failed=20)


def test_run_list_line() -> None:
    source = FakeSource(
        [a_run("calm-fern-1", headline=HEADLINE, reward=0.5, reward_low=0.4, reward_high=0.6)]
    )
    text = page_of(source, "/evals")
    assert 'href="/evals/calm-fern-1"' in text
    said = " ".join(text_by_class(text, "runs")[0].split())
    assert "41.8% (37.2–46.3%) 380 of 400 planned 20 0.500 (0.400–0.600)" in said


def test_lists_of_all_kinds() -> None:
    source = FakeSource([a_run("one"), a_run("two", "training"), a_run("three", "rubric")])
    pages = visitor(source)
    assert all(
        name in page_text(pages.get("/")) for name in ("/evals/one", "/training/two", "/rubrics/three")
    )
    assert "/training/two" not in page_text(pages.get("/evals"))
    assert "/rubrics/three" in page_text(pages.get("/rubrics"))

    text = page_of(FakeSource([a_run("one")]), "/fern/evals", root="/fern")
    assert 'href="/fern/evals/one"' in text
    assert 'href="/evals' not in text


def test_paging_keeps_filters() -> None:
    source = FakeSource([a_run(f"run-{number:03}") for number in range(120)])
    pages = visitor(source)
    text = page_text(pages.get("/evals?q=run&status=finished&sort=name&dir=asc"))
    assert "status=finished&amp;q=run&amp;sort=name&amp;dir=asc&amp;cursor=50" in text
    second = page_text(pages.get("/evals?status=finished&q=run&sort=name&dir=asc&cursor=50"))
    assert "run-050" in second and "run-049" not in second and "120 runs. Pass rates" in second


@pytest.mark.parametrize(
    "words",
    [
        "sort=colour",
        "dir=up",
        "since=soon",
        "status=weird",
        "since=2026-02-01&until=2026-01-01",
        "cursor=%00",
        "sort=name&sort=cost",
        "model=a&model=b",
        "q=" + "x" * 501,
        "&".join(["a=b"] * 101),
    ],
)
def test_invalid_list_parameters(words: str) -> None:
    page_of(FakeSource([a_run("one")]), f"/evals?{words}", status=400)


def test_names_are_escaped() -> None:
    name = "<script>alert(1)</script>{{ 7*7 }}\u202ex\x1b[31m' onerror=\"x"
    text = page_of(FakeSource([a_run(name, error=name, model=name)]), "/")
    assert "<script>" not in text and "{{ 7*7 }}" in text and "\u202e" not in text and "\x1b" not in text
    assert "&lt;script&gt;" in text


HOSTILE = "<script>alert(1)</script>{{ 7*7 }}<img src=x onerror=alert(1)>\u202e\x1b]8;;http://evil\x07"


@pytest.fixture(scope="module")
def pages() -> TestClient:
    """Return a client of a run of six rows whose attempts passed, did not pass or failed."""
    metrics = MeasuredResults(rows=6, n=2)
    outcomes = [[1.0, 0.0], [1.0, "agent"], [0.0, 0.0], ["provider", "provider"], [1.0, 1.0], [0.0, "agent"]]
    for row, attempts in enumerate(outcomes):
        for attempt, outcome in enumerate(attempts):
            metrics.set_result(record(row, attempt, outcome))
    found = metrics.summary()
    entry = a_run("calm-fern-1", headline=RunScore.of(found.estimates), config="configs/eval/rows.toml")
    before = a_run("calm-fern-0", headline=RunScore(pass_rate=0.5, scored=10, planned=10))
    detail = RunDetail(
        entry,
        found.estimates,
        found.summary,
        config_written='dataset = "rows"\n',
        config_effective={"evaluation": {"n": 2, "grader": HOSTILE}},
        facts=[("Seed", "7"), ("Isolation", "bubblewrap")],
        secret_names=["OPENAI_API_KEY"],
        failures=[
            FailureCount("agent", "crash", 2, (1, 1), HOSTILE),
            FailureCount("provider", None, 2, (3, 0)),
            FailureCount(None, "agent_error", 1, (5, 1)),
        ],
        rewards=Histogram([0.0, 0.5, 1.0], [4, 4]),
        previous=before,
        problems=["The journal ends in a torn line."],
        commands=["osmosis eval run configs/eval/rows.toml --name calm-fern-1 --retry-failed"],
    )
    samples = [
        a_sample(
            row,
            attempt,
            passed=None if isinstance(outcome, str) else outcome == 1.0,
            status="failed" if isinstance(outcome, str) else "success",
            reward=None if isinstance(outcome, str) else outcome,
            boundary=outcome if isinstance(outcome, str) else None,
            error=HOSTILE if isinstance(outcome, str) else None,
            input=f"question {row} {HOSTILE}",
            output="=1+1",
            tokens=1234,
        )
        for row, attempts in enumerate(outcomes)
        for attempt, outcome in enumerate(attempts)
    ]
    said = trajectory({"source": "agent", "message": "a secret wörd"})
    source = FakeSource(
        [entry, before, a_run("other", "training")],
        {"calm-fern-1": detail},
        {"calm-fern-1": samples},
        conversations={("calm-fern-1", 2, 1): said, ("calm-fern-1", 4, 0): b'{"steps": []}'},
        lines=[
            LogEntry(timestamp="2026-05-04T12:00:00Z", level="warning", message=f"line {n} {HOSTILE}")
            for n in range(300)
        ],
    )
    return visitor(source)


def test_run_page(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1"))
    shown = tiles_of(text)
    assert shown["Scored"] == "8 of 12 planned" and shown["Pass rate"].endswith("%")
    assert "Pass rate (reward &gt;= 1.0)" in text
    assert "mean over 5 rows, 8 scored attempts" in text
    assert "korn-graubard" in text
    assert "/evals/calm-fern-1/samples/1.1?outcome=failed&amp;boundary=agent&amp;category=crash" in text
    assert "/samples?outcome=failed&amp;boundary=unknown&amp;category=agent_error" in text
    assert "/evals/calm-fern-1/samples?row=0" in text
    assert "/compare?run=calm-fern-0&amp;run=calm-fern-1" in text
    assert "OPENAI_API_KEY" in text and "--retry-failed" in text and "evaluation.n" in text


@pytest.mark.parametrize(
    "path", ["", "/samples", "/samples?group=row", "/log", "/samples?q=w%C3%B6rd&in=conversations"]
)
def test_hostile_content_is_escaped(pages: TestClient, path: str) -> None:
    text = page_text(pages.get(f"/evals/calm-fern-1{path}"))
    body = text.partition("</head>")[2]
    assert "<script" not in body and "<img" not in body and "\u202e" not in text and "\x1b" not in text
    assert len(gzip.compress(text.encode())) < 100_000


def test_sample_filter_and_log_pages(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/samples?outcome=failed"))
    assert "/samples/1.1?outcome=failed" in text and "/samples/0.0" not in text
    assert "4 attempts." in text

    text = page_text(pages.get("/evals/calm-fern-1/log"))
    assert "line 299 " in text and "line 99 " not in text and "cursor=100" in text
    assert "line 99 " in page_text(pages.get("/evals/calm-fern-1/log?cursor=100"))


def test_conversation_search(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/samples?q=SECRET+W%C3%96RD&in=conversations"))
    assert (
        "Searched 2 conversations, from attempt 0.0 to 5.1" in text
        and "ignore this text" in text
        and 'href="/evals/calm-fern-1/samples/2.1"' in text
        and "/samples/4.0" not in text
    )
    assert "Search complete." in text
    assert "10 of 12 attempts have no conversation and were not searched." in text
    href = re.search(r'href="([^"]+\.jsonl[^"]+)"', text)
    assert href is not None
    lines = pages.get(href[1].replace("&amp;", "&")).text.splitlines()
    assert [(each["row"], each["attempt"]) for each in map(json.loads, lines)] == [(2, 1)]


@pytest.mark.parametrize(
    "words",
    [
        *("outcome=good", "outcome=passed&outcome=failed", "sort=reward&sort=row", "row=1&row=2"),
        *("finish=stop", "row=-1", "row=1e3", f"row={10**24}", "boundary=zz"),
        *("group=colour", "in=dreams", "min_reward=nan", "min_reward=2&max_reward=1", "max_cost=much"),
        *("sort=name", "cursor=x", "dir=1"),
    ],
)
def test_invalid_sample_filters(pages: TestClient, words: str) -> None:
    page_text(pages.get(f"/evals/calm-fern-1/samples?{words}"), status=400)
    if words != "cursor=x":
        page_text(pages.get(f"/evals/calm-fern-1/samples.csv?{words}"), status=400)


@pytest.mark.parametrize(
    "words", ["category=zz", "boundary=tool&category=zz", "boundary=unknown&category=zz"]
)
def test_cause_that_no_attempt_has(pages: TestClient, words: str) -> None:
    assert "No attempt matches" in page_text(pages.get(f"/evals/calm-fern-1/samples?{words}"))
    assert len(pages.get(f"/evals/calm-fern-1/samples.csv?{words}").text.splitlines()) == 1


def test_duration_is_filtered_and_sorted_by_one_name(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/samples?min_duration=0.5&sort=duration"))
    assert 'name="min_duration" value="0.5"' in text and 'name="sort" value="duration"' in text


def test_sample_exports(pages: TestClient) -> None:
    reply = pages.get("/evals/calm-fern-1/samples.csv?outcome=failed")
    assert (
        reply.headers["content-disposition"].startswith("attachment")
        and "sandbox" in reply.headers["content-security-policy"]
    )
    lines = list(csv.DictReader(io.StringIO(reply.text)))
    assert [f"{line['row']}.{line['attempt']}" for line in lines] == ["1.1", "3.0", "3.1", "5.1"]
    assert {line["output"] for line in lines} == {"'=1+1"}
    samples = [json.loads(line) for line in pages.get("/evals/calm-fern-1/samples.jsonl").text.splitlines()]
    assert len(samples) == 12 and samples[0]["output"] == "=1+1"


@pytest.mark.parametrize(
    ("said", "cell"),
    [
        ("\x1b]0;title\x07\x1b[31mred\x1b[0m", "␛]0;title␇␛[31mred␛[0m"),
        ("\x9b2J\x7f\0\u202eevil\u200b\ud800", "‹U+009B›2J‹U+007F›␀‹U+202E›evil‹U+200B›‹U+D800›"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\r=1+1", "␍=1+1"),
        ("\r\n=1+1", "'\n=1+1"),
        *((f"{sign}cmd|' /C calc'!A0", f"'{sign}cmd|' /C calc'!A0") for sign in "=+-@\t\n＝＋－＠"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("+1\n", "'+1\n"),
        ("-41.5", "-41.5"),
        ("+1", "+1"),
        ("1=1", "1=1"),
    ],
)
def test_csv_cells(said: str, cell: str) -> None:
    sample = a_sample(0, reward=-0.25, error=said)
    pages = visitor(FakeSource([a_run("one")], listed={"one": [sample]}))
    text = pages.get("/evals/one/samples.csv").content.decode()
    (line,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (line["error"], line["reward"]) == (cell, "-0.25")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202e]", text)
    exact = pages.get("/evals/one/samples.jsonl").content
    assert json.loads(exact)["error"] == said and exact.rstrip(b"\n").decode("ascii").isprintable()


def test_start_of_a_run_is_on_its_page() -> None:
    text = page_of(FakeSource([a_run("old")]), "/evals/old")
    assert ">Started<" in text and "2026-05-04 12:00 PM UTC" in text


def test_empty_run() -> None:
    source = FakeSource([a_run("new", status="pending", started_at=None, ended_at=None)])
    text = page_of(source, "/evals/new")
    assert "No attempt has a score yet." in text and 'data-live-source="/evals/new/changes"' in text
    # What the page shows needs not be told to it again.
    assert 'data-live-cursor="pending.0"' in text
    assert "No attempt has ended yet." in page_of(source, "/evals/new/samples")


def test_deleted_run() -> None:
    source = FakeSource([a_run("calm-fern-1"), a_run("calm-fern-2")], listed={"calm-fern-1": [a_sample(0)]})
    pages = visitor(source)
    page_text(pages.get("/evals/calm-fern-1/samples"))
    del source.entries[0]
    for path in ("", "/samples", "/samples/0.0", "/log", "/samples.csv"):
        assert "calm-fern-2" in page_text(pages.get(f"/evals/calm-fern-1{path}"), status=404)


def test_dataset_slices(tmp_path: Path) -> None:
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(
        jsonl([{"user_prompt": "x", "level": "hard" if row < 2 else "easy"} for row in range(4)])
    )
    run = run_of([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]], name="calm-fern-1")
    run = replace(run, open_dataset=lambda: dataset)
    pages = visitor(FakeSource([a_run("calm-fern-1")], samples_of={"calm-fern-1": run}))
    text = page_text(pages.get("/evals/calm-fern-1?slice=level"))
    assert "25.0%" in text and ">hard</th>" in text and ">easy</th>" in text
    refused = page_text(pages.get("/evals/calm-fern-1?slice=colour"), status=400)
    assert "has no column &#39;colour&#39;" in refused and "<option selected>colour</option>" in refused
    assert "has no column" not in page_text(pages.get("/evals/calm-fern-1?slice="))
    away = replace(run, open_dataset=None)
    pages = visitor(FakeSource([a_run("calm-fern-1")], samples_of={"calm-fern-1": away}))
    assert "slices are not available" in page_text(pages.get("/evals/calm-fern-1?slice=level"))


def test_comparison_equals_the_command() -> None:
    source = two_runs()
    source.samples_of["old"] = replace(source.samples_of["old"], notes=("old is a note about old.",))
    found = compare_runs(source.samples_of["old"], [source.samples_of["new"]], CompareOptions(rows_shown=50))
    text = page_of(source, "/compare?run=old&run=new")
    assert ">old is a note about old.<" in text
    assert f"<strong>{found.sentence}</strong>" in text
    assert "Pass rate by row: 20 higher, 1 lower, 9 equal." in text
    assert "+63.3 points" in text and "model-of-old" in text
    assert 'href="/compare?run=new&amp;run=old"' in text


def test_compared_row_links() -> None:
    pages = visitor(two_runs())
    digest = f"{0:064x}"
    assert f'href="/compare/row?run=old&amp;run=new&amp;row={digest}"' in page_text(
        pages.get("/compare?run=old&run=new")
    )
    reply = pages.get(f"/compare/row?run=old&run=new&row={digest}", follow_redirects=False)
    assert (reply.status_code, reply.headers["location"]) == (303, "/evals/old/samples/0.0?with=new%2F5.0")
    page_text(pages.get("/compare/row?run=old&run=new&row=none"), status=404)


def test_refused_comparison() -> None:
    source = two_runs()
    source.samples_of["new"] = replace(source.samples_of["new"], unfinished="20 of 30 samples are there.")
    pages = visitor(source)
    text = page_text(pages.get("/compare?run=old&run=new"))
    assert 'role="alert"' in text and "not finished" in text
    # The refusal leads to what allows it, which is described by the refusal; the other allowances would not help.
    assert 'id="refused"' in text and 'href="#allow-partial"' in text
    box = 'name="allow" value="partial" id="allow-partial" aria-describedby="refused"'
    assert box in text and text.count('aria-describedby="refused"') == 1
    assert 'role="alert"' not in page_text(pages.get("/compare?run=old&run=new&allow=partial"))


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", 200),
        ("run=old", 200),
        ("run=old&run=old", 200),
        ("run=old&run=none", 404),
        ("run=none&run=old", 404),
        ("run=old&run=compared_run", 400),
        ("run=compared_run&run=old", 400),
        ("run=old&run=new&allow=everything", 400),
        ("run=old&run=new&kind=eval", 200),
        ("run=evals/old&run=evals/new", 200),  # as the page that names the nearest runs writes them
        ("run=old&run=new&kind=evals", 400),
        ("&".join(f"run={name}" for name in range(11)), 400),
    ],
)
def test_invalid_comparisons(words: str, status: int) -> None:
    source = two_runs()
    source.entries.append(a_run("compared_run", "training"))
    page_of(source, f"/compare?{words}", status=status)


def compared_run(name: str, gain: float, batch: int) -> tuple[RunDetail, TrainingCurves]:
    """Return a training run whose reward rises by ``gain`` per step."""
    rewards = [CurveValue(step, 0.2 + gain * step + 0.01 * (step % 3)) for step in range(1, 13)]
    validation = [CurveValue(12, 0.2 + gain * 12, 0.1, 0.9, over=8, of=8)]
    curves = TrainingCurves(
        [
            ViewedCurve("rollout/raw_reward", "Training reward", rewards),
            ViewedCurve("eval/validation/reward", "Validation reward", validation),
        ],
        validation=ValidatedRows(step=12, rewards={f"row-{row}": 0.2 + gain * row for row in range(8)}),
    )
    return RunDetail(
        a_run(name, "training"), config_effective={"training": {"rollout_batch_size": batch}}
    ), curves


def test_training_comparison() -> None:
    made = {"slow": compared_run("slow", 0.01, 8), "fast": compared_run("fast", 0.05, 16)}
    source = FakeSource(
        [detail.summary for detail, _ in made.values()],
        {name: detail for name, (detail, _) in made.items()},
        curves_of={name: curves for name, (_, curves) in made.items()},
    )
    text = page_of(source, "/compare?run=slow&run=fast")
    assert (
        "fast is better than slow by 0.140 in the validation reward" in text and "8 rows at step 12" in text
    )
    assert "training.rollout_batch_size" in text and ">16<" in text
    assert text.count("<svg viewBox") >= 2 and "0.800" in text
    assert "under 90% scored" not in text


def a_source(curves: TrainingCurves, **known: object) -> FakeSource:
    """Return a source of one training run."""
    run = a_run("keen-owl-2", "training", model="osmosis/tiny", **known)
    return FakeSource(
        [run],
        {"keen-owl-2": RunDetail(run, config_effective={"training": {"lr": 0.001}})},
        curves_of={"keen-owl-2": curves},
        lines=[LogEntry(message="step 1 ended", level="info")],
    )


def test_training_curves_with_intervals() -> None:
    metrics = {
        "rollout/raw_reward": [(1, 0.25), (2, 0.5)],
        "rollout/reward_low": [(2, 0.375)],
        "rollout/reward_high": [(2, 0.625)],
        "eval/validation/reward": [(2, 0.75)],
        "eval/validation/reward_low": [(2, 0.5)],
        "eval/validation/reward_high": [(2, 1.0)],
    }
    training, validation = viewed_curves(metrics)
    assert training.points == [CurveValue(1, 0.25), CurveValue(2, 0.5, 0.375, 0.625)]
    assert validation.points == [CurveValue(2, 0.75, 0.5, 1.0)]
    page = page_of(a_source(TrainingCurves([training, validation])), "/training/keen-owl-2?smooth=0.5")
    assert "0.500 (0.375 to 0.625)" in page and "0.750 (0.500 to 1.000)" in page


def test_training_page() -> None:
    text = page_of(a_source(learned()), "/training/keen-owl-2")
    assert tiles_of(text)["Validation reward"] == "0.625 95% CI 0.430–0.810; 8 of 8 planned scored"
    assert "training.lr" in text and "step 1 ended" in text
    for heading in (
        "Training reward",
        "KL (nats per token)",
        "Entropy (nats per token)",
        "Time of a step (s)",
    ):
        assert f"<h3>{heading}</h3>" in text

    text = page_of(a_source(learned()), "/fern/training/keen-owl-2", root="/fern")
    assert "osmosis model undeploy keen-owl-2-step-3" in text and "20.0 KB" in text
    assert "osmosis model deploy keen-owl-2-step-12" in text
    assert "osmosis/tiny:keen-owl-2-step-12" in text


def test_live_page_parts() -> None:
    pages = visitor(a_source(learned(), status="running"))
    asked = {"X-Live-Part": "standing,curves,validation,adapters,log"}
    text = page_text(pages.get("/training/keen-owl-2", headers=asked))
    assert re.findall(r'data-live="(\w+)"', text) == ["standing", "curves", "validation", "adapters", "log"]
    assert "<html" not in text and "<h3>Training reward</h3>" in text
    page_text(pages.get("/training/keen-owl-2", headers={"X-Live-Part": "standing,nothing"}), status=404)


def validated_source(count: int = 4, step: int = 12) -> FakeSource:
    """Return a source of a training run with its newest validation; the first sample has no score."""
    source = a_source(learned())
    errors = {0: {"error": SCRIPT}}
    records = [
        sample_record(row, 0, row / 4, input=f"what is {row}?", output=SCRIPT, **errors.get(row, {}))
        for row in range(count)
    ]
    records.append(sample_record(0, 1, 1.0))
    samples = ValidationSamples.of(records, step=step, pass_threshold=0.75)
    source.validations = {"keen-owl-2": samples}
    said = [{"source": "user", "message": "what is 2?"}, {"source": "agent", "message": "no idea"}]
    source.conversations = {("keen-owl-2", 2, 0): trajectory(*said)}
    return source


def test_validation_list() -> None:
    text = page_of(validated_source(), "/fern/training/keen-owl-2", root="/fern")
    table = text.partition('<h2 id="validation">')[2].partition("</section>")[0]
    assert "After step 12: 5 attempts, unscored first, then by ascending reward." in table
    links = re.findall(r'href="/fern/training/keen-owl-2/validation/([^"]+)"', table)
    assert links == ["0.0", "1.0", "2.0", "3.0", "0.1"]
    outcomes = re.findall(r"class=\"outcome[^>]*>(passed|below threshold|failed)", table)
    assert outcomes == ["failed", "below threshold", "below threshold", "passed", "passed"]
    assert "&lt;script&gt;alert" in table and "<script>" not in table


def test_validation_conversation() -> None:
    pages = visitor(validated_source(), root="/fern")
    here = "/fern/training/keen-owl-2/validation/2.0"
    text = page_text(pages.get(here))
    assert "no idea" in text and "what is 2?" in text and ">Previous<" in text
    for link in (
        "/fern/training/keen-owl-2#validation",
        f"{here}/raw",
        "/fern/training/keen-owl-2/validation/3.0",
    ):
        assert f'href="{link}' in text, link
    assert "/evals/keen-owl-2" not in text and "No files from" not in text
    assert "No other run has this row" not in page_text(pages.get(f"{here.removesuffix('2.0')}0.1"))
    assert "no idea" in page_text(pages.get(f"{here}/raw"))
    assert pages.get(f"{here}/raw?as=messages").json()[1]["content"] == "no idea"
    beside = page_text(pages.get(f"{here}?with=3.0"))
    assert "No conversation was recorded." in beside and 'class="beside"' in beside
    for nothing in ("9.0", "2.1", "nonsense"):
        missing = page_text(pages.get(f"/fern/training/keen-owl-2/validation/{nothing}"), status=404)
        near = re.findall(r'<a href="/fern/training/keen-owl-2/validation/([0-9.]+)">Row', missing)
        assert (
            bool(near)
            == ('<a href="/fern/training/keen-owl-2">Back to the run' in missing)
            == ("." in nothing)
        )
        assert near[:1] == {"9.0": ["3.0"], "2.1": ["2.0"]}.get(nothing, [])


def test_missing_or_damaged_validation(tmp_path: Path) -> None:
    assert "Its conversations were not recorded." in page_of(a_source(learned()), "/training/keen-owl-2")
    directory = TrainingDirectory(tmp_path / "keen-owl-2")
    directory.checkpoints.mkdir(parents=True)
    directory.claim({"model": "osmosis/tiny"}, {})
    directory.metrics.touch()
    pages = visitor(LocalSource(tmp_path, cache_dir=tmp_path / "cache"))
    for damage in (
        b"",
        b"[]\n",
        b'{"step": 1, "total": 1, "pass_threshold": 1}\n{"row_index": -1}\n',
        b"\xff" * 99,
    ):
        directory.validation.write_bytes(damage)
        assert "is damaged" in page_text(pages.get("/training/keen-owl-2"))
        page_text(pages.get("/training/keen-owl-2/validation/0.0"), status=400)


def pages_of(document: dict[str, Any]) -> Any:
    """Return a client of the page of a rubric result."""
    run = a_run("answers", "rubric")
    return visitor(FakeSource([run], {"answers": RunDetail(run, summary_numbers=document)}))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return a_document()


def test_rubric_page(document: dict[str, Any]) -> None:
    pages = pages_of(document)
    text = page_text(pages.get("/rubrics/answers"))
    assert "Mean score 0.500 on a scale from" in text and "over 60 records." in text
    for heading in ("Judge agreement", "Repeatability", "Bias by length and order"):
        assert heading in text
    assert "Histograms of the scores of each judge" in text
    assert 'id="record-50"' in text and 'id="record-51"' not in text
    assert 'id="record-51"' in page_text(pages.get("/rubrics/answers?cursor=50"))
    for cursor in ("60", "-1", "x", "9" * 20):
        page_text(pages.get(f"/rubrics/answers?cursor={cursor}"), status=400)


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"trust": {}, "records": None},
        {"trust": [1], "records": [1, {}, {"judgements": 3}, {"runs": [{"score": True, "run_index": "x"}]}]},
        {"records": [{"judgements": [{"score": 1e999, "run": -1, "model": {"a": 1}}], "label": ["x"]}]},
    ],
)
def test_rubric_page_of_a_foreign_file(strange: dict[str, Any]) -> None:
    text = page_text(pages_of(strange).get("/rubrics/answers"))
    assert "Judge agreement" not in text


def test_unscored_rubric_records(document: dict[str, Any]) -> None:
    calls = [{**call, "score": None} for call in document["records"][0]["judgements"]]
    unscored = {**document["records"][0], "judgements": calls}
    records = [unscored, *document["records"][1:]]
    trust = {**document["trust"], "counts": {**document["trust"]["counts"], "scored_records": 59}}
    text = page_text(pages_of({**document, "records": records, "trust": trust}).get("/rubrics/answers"))
    assert "over the 59 of 60 records that have a score." in text
    record, _, following = text.partition('id="record-1"')[2].partition('id="record-2"')
    assert "0.000" not in record and '<span class="given">–</span></summary>' in record
    assert '<span class="given">0.220</span>' in following
    none = page_text(pages_of({**document, "records": [unscored], "trust": None}).get("/rubrics/answers"))
    assert "1 record, none with a score." in none
