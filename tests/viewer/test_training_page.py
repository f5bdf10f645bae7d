"""A training run's page, as a visitor sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from osmosis_ai.api.wire.base import LogEntry
from osmosis_ai.training.runs.curves import (
    CurveMark,
    CurveValue,
    SavedAdapter,
    TrainingCurves,
    ViewedCurve,
    viewed_curves,
)
from osmosis_ai.training.runs.metrics import StepRecord
from osmosis_ai.training.runs.run_directory import TrainingDirectory
from osmosis_ai.training.runs.validation_samples import MOST_KEPT, ValidationSamples
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import RunDetail
from tests.viewer.browsing import gzipped, page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run
from tests.viewer.source_contract import sample_record

HOSTILE = "</script><script>alert(1)</script>"


def a_source(curves: TrainingCurves, **known: object) -> FakeSource:
    """Return a source of one training run."""
    run = a_run("keen-owl-2", "training", model="osmosis/tiny", **known)
    return FakeSource(
        [run],
        {"keen-owl-2": RunDetail(run, config_effective={"training": {"lr": 0.001}})},
        curves_of={"keen-owl-2": curves},
        lines=[LogEntry(message="step 1 ended", level="info")],
    )


def learned(steps: int = 12) -> TrainingCurves:
    """Return curves of a run that was validated twice, the first time with half of the samples scored."""
    names = ("rollout/raw_reward", "train/kl_base", "train/entropy_loss", "time/step_s", "time/sampling_s")
    curves = [
        ViewedCurve(key, f"the {key}", [CurveValue(step, (step % 7) / 7) for step in range(1, steps + 1)])
        for key in names
    ]
    validation = [
        CurveValue(0, 0.2, 0.1, 0.3, over=4, of=8),
        CurveValue(steps, 0.625, 0.43, 0.81, over=8, of=8),
    ]
    return TrainingCurves(
        [*curves, ViewedCurve("eval/validation/reward", "Validation reward", validation)],
        [
            CurveMark(3, "checkpoint", "step 3"),
            CurveMark(4, "restart", "went on"),
            CurveMark(5, "warning", HOSTILE),
        ],
        [SavedAdapter("keen-owl-2-step-3", 3, 0.25, 20480, "active"), SavedAdapter("keen-owl-2-step-12", 12)],
    )


def test_training_and_validation_are_drawn_with_their_intervals() -> None:
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
    page = page_text(
        visitor(a_source(TrainingCurves([training, validation]))).get("/training/keen-owl-2?smooth=0.5")
    )
    assert "0.500 (0.375 to 0.625)" in page and "0.750 (0.500 to 1.000)" in page


def test_the_page_begins_with_what_the_newest_validation_came_to() -> None:
    text = page_text(visitor(a_source(learned())).get("/training/keen-owl-2"))
    assert "Validation reward 0.625 (0.430 – 0.810) after step 12; scored 8 of 8 planned." in text
    assert "training.lr" in text and "step 1 ended" in text
    for heading in (
        "Training reward",
        "KL (nats per token)",
        "Entropy (nats per token)",
        "Time of a step (s)",
    ):
        assert f"<h3>{heading}</h3>" in text


def test_what_is_tiny_is_not_shown_as_nothing() -> None:
    diverging = ViewedCurve("train/kl_base", "KL", [CurveValue(step, step * -2.5e-5) for step in (0, 1)])
    text = page_text(visitor(a_source(TrainingCurves([diverging]))).get("/training/keen-owl-2"))
    assert '<th scope="row">1</th><td>-2.5e-05</td>' in text and ">-0.000<" not in text


def test_a_validation_with_few_scores_is_hollow_and_the_page_says_so() -> None:
    text = page_text(visitor(a_source(learned())).get("/training/keen-owl-2"))
    assert "Of the validation after step 0, under 90 % of the samples have a score" in text
    assert "under 90 % scored" in text and "0.200 (0.100 to 0.300) over 4, under 90 % scored" in text


@pytest.mark.parametrize(
    ("few", "said"),
    [
        ([3, 6], "after steps 3, 6, under 90 %"),
        (list(range(1, 12)), "after 11 steps, the last of them 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, under 90 %"),
    ],
)
def test_validations_with_few_scores_are_named_by_their_steps(few: list[int], said: str) -> None:
    points = [CurveValue(step, 0.5, over=4, of=8) for step in few]
    curves = TrainingCurves([ViewedCurve("eval/validation/reward", "Validation reward", points)])
    assert said in page_text(visitor(a_source(curves)).get("/training/keen-owl-2"))


def test_smoothing_leaves_the_raw_line_to_be_seen_and_stands_in_the_address() -> None:
    pages = visitor(a_source(learned()))
    assert ' raw"' not in page_text(pages.get("/training/keen-owl-2"))
    text = page_text(pages.get("/training/keen-owl-2?smooth=0.9"))
    assert ' raw"' in text and '<option value="0.9" selected>' in text
    for nonsense in ("1", "-0.1", "nan", "inf", "much"):
        page_text(pages.get(f"/training/keen-owl-2?smooth={nonsense}"), status=400)


def test_checkpoints_have_their_numbers_and_the_commands_that_use_them() -> None:
    text = page_text(visitor(a_source(learned()), root="/fern").get("/fern/training/keen-owl-2"))
    assert "osmosis model undeploy keen-owl-2-step-3" in text and "20.0 KB" in text
    assert "osmosis model deploy keen-owl-2-step-12" in text
    assert "osmosis/tiny:keen-owl-2-step-12" in text


def test_whether_adapters_are_served_stands_where_they_can_be() -> None:
    saved = TrainingCurves(checkpoints=[SavedAdapter("step-12", 12, 0.25, 20480)])
    served = ">Served</th>"
    assert served in page_text(visitor(a_source(saved), root="/fern").get("/fern/training/keen-owl-2"))
    here = page_text(visitor(a_source(saved)).get("/training/keen-owl-2"))
    assert served not in here and "20.0 KB" in here


@pytest.mark.parametrize("curves", [TrainingCurves(), TrainingCurves([ViewedCurve("x", "x", [])])])
def test_a_run_without_a_step_has_a_page(curves: TrainingCurves) -> None:
    text = page_text(visitor(a_source(curves, status="running")).get("/training/keen-owl-2"))
    assert "No step has ended yet." in text and 'data-live-source="/training/keen-owl-2/changes"' in text


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_run_that_has_ended_without_a_step_promises_none(status: str) -> None:
    pages = visitor(a_source(TrainingCurves(), status=status))
    text = page_text(pages.get("/training/keen-owl-2"))
    assert "No step has ended." in text and "There are none." in text
    assert "yet" not in text[text.index("<main") :]


def test_what_the_run_says_is_text() -> None:
    text = page_text(visitor(a_source(learned(), error=HOSTILE)).get("/training/keen-owl-2"))
    assert "<script>alert" not in text and text.count("&lt;script&gt;alert") >= 2


def test_the_parts_of_a_live_page_come_alone_and_in_one_reply() -> None:
    pages = visitor(a_source(learned(), status="running"))
    asked = {"X-Live-Part": "standing,curves,validation,adapters,log"}
    text = page_text(pages.get("/training/keen-owl-2", headers=asked))
    assert re.findall(r'data-live="(\w+)"', text) == ["standing", "curves", "validation", "adapters", "log"]
    assert "<html" not in text and "<h3>Training reward</h3>" in text
    page_text(pages.get("/training/keen-owl-2", headers={"X-Live-Part": "standing,nothing"}), status=404)


def test_a_thousand_steps_are_small_over_the_wire() -> None:
    text = page_text(visitor(a_source(learned(1_000))).get("/training/keen-owl-2?smooth=0.9"))
    assert gzipped(text) < 200_000


def test_a_training_directory_of_this_machine_has_its_curves_on_its_page(tmp_path: Path) -> None:
    place = tmp_path / "keen-owl-2"
    (place / "checkpoints").mkdir(parents=True)
    directory = TrainingDirectory(place)
    directory.claim({"model": "osmosis/tiny"}, {})
    reward = {"rollout/raw_reward": 0.5, "eval/validation/reward": 0.25}
    few = {"eval/validation/scored": 1, "eval/validation/samples": 4}
    directory.metrics.write_bytes(StepRecord(1, 1_760_000_000_000, reward | few).to_line())
    source = LocalSource(tmp_path, cache_dir=tmp_path / "cache")
    text = page_text(visitor(source).get("/training/keen-owl-2"))
    assert "Validation reward 0.250 after step 1; scored 1 of 4 planned." in text
    assert "under 90 % of the samples have a score" in text and "<h3>Training reward</h3>" in text


def validated_source(count: int = 4, step: int = 12) -> FakeSource:
    """Return a source of a training run whose newest validation is kept: the first rows have no score."""
    source = a_source(learned())
    errors = {0: {"error": HOSTILE}}
    records = [
        sample_record(row, 0, row / 4, input=f"what is {row}?", output=HOSTILE, **errors.get(row, {}))
        for row in range(count)
    ]
    records.append(sample_record(0, 1, 1.0))
    samples = ValidationSamples.of(records, step=step, pass_threshold=0.75)
    source.validations = {"keen-owl-2": samples}
    said = (
        b'{"steps": [{"source": "user", "message": "what is 2?"}, {"source": "agent", "message": "no idea"}]}'
    )
    source.conversations = {("keen-owl-2", 2, 0): said}
    return source


def test_the_newest_validation_is_listed_with_the_worst_first() -> None:
    text = page_text(visitor(validated_source(), root="/fern").get("/fern/training/keen-owl-2"))
    table = text.partition('<h2 id="validation">')[2].partition("</section>")[0]
    assert "It was at step 12. 5 samples, without a score first, then the worst." in table
    links = re.findall(r'href="/fern/training/keen-owl-2/validation/([^"]+)"', table)
    assert links == ["0.0", "1.0", "2.0", "3.0", "0.1"]
    outcomes = re.findall(r"badge[^>]*>(?:<[^>]*>|[^<\w])*(unscored|passed|failed)", table)
    assert outcomes == ["unscored", "failed", "failed", "passed", "passed"]
    assert "&lt;script&gt;alert" in table and "<script>" not in table


def test_of_a_large_validation_the_page_says_how_much_of_it_is_kept() -> None:
    text = page_text(visitor(validated_source(MOST_KEPT)).get("/training/keen-owl-2"))
    assert "The 500 worst of 501 samples are kept" in text and text.count("/validation/") == 100
    assert gzipped(text) < 200_000


def test_a_conversation_of_a_validation_has_the_page_that_all_conversations_have() -> None:
    pages = visitor(validated_source(), root="/fern")
    here = "/fern/training/keen-owl-2/validation/2.0"
    text = page_text(pages.get(here))
    assert "no idea" in text and "what is 2?" in text and "Previous sample" in text
    for link in (
        "/fern/training/keen-owl-2#validation",
        f"{here}/raw",
        "/fern/training/keen-owl-2/validation/3.0",
    ):
        assert f'href="{link}' in text, link
    assert "/evals/keen-owl-2" not in text and "left no files" not in text
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


@pytest.mark.parametrize(
    ("status", "said"), [("running", "There was none yet."), ("finished", "There was none.")]
)
def test_a_run_that_was_not_validated_is_not_said_to_lack_what_was_said_then(status: str, said: str) -> None:
    pages = visitor(a_source(TrainingCurves(), status=status))
    for asked in ({}, {"X-Live-Part": "validation"}):
        text = page_text(pages.get("/training/keen-owl-2", headers=asked))
        shown = text.partition('data-live="validation"')[2].partition("</div>")[0]
        assert said in shown and "not recorded" not in shown
    pages = visitor(a_source(learned()))
    alone = page_text(pages.get("/training/keen-owl-2", headers={"X-Live-Part": "validation"}))
    assert "not recorded" in alone


def test_a_run_without_a_record_of_its_validation_says_so(tmp_path: Path) -> None:
    assert "Its conversations were not recorded." in page_text(
        visitor(a_source(learned())).get("/training/keen-owl-2")
    )
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
