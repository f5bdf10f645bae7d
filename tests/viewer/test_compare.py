"""Runs side by side, as a visitor sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from osmosis_ai.api.wire.training_runs import ValidatedRows
from osmosis_ai.evaluation.comparison.engine import CompareOptions, compare_runs
from osmosis_ai.training.runs.curves import CurveValue, TrainingCurves, ViewedCurve
from osmosis_ai.viewer.source import RunDetail
from tests.datasets.builders import jsonl
from tests.evaluation.comparison.builders import run_of
from tests.viewer.browsing import page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run, a_sample

ROWS = 30


def two_runs() -> FakeSource:
    """Return a baseline, and a candidate that passes twenty rows more often and one row less."""
    keys = [f"{row:064x}" for row in range(ROWS)]
    before = run_of([[0.0] * 6 if row else [1.0] * 6 for row in range(ROWS)], name="old", keys=keys)
    after = run_of([[1.0] * 6 if 0 < row <= 20 else [0.0] * 6 for row in range(ROWS)], name="new", keys=keys)
    listed = {
        "old": [a_sample(row, passed=not row, reward=float(not row)) for row in range(ROWS)],
        "new": [a_sample(row + 5, row_digest=f"{row:064x}") for row in range(ROWS)],
    }
    return FakeSource([a_run("old"), a_run("new")], listed=listed, samples_of={"old": before, "new": after})


def test_the_page_says_what_the_command_says_first_and_its_numbers_to_the_digit() -> None:
    source = two_runs()
    found = compare_runs(source.samples_of["old"], [source.samples_of["new"]], CompareOptions(rows_shown=50))
    text = page_text(visitor(source).get("/compare?run=old&run=new"))
    assert f'<p class="lead">{found.sentence}</p>' in text
    assert "Pass rate by row: 20 higher, 1 lower, 9 equal." in text
    assert "+63.3 points" in text and "model-of-old" in text
    assert 'href="/compare?run=new&amp;run=old"' in text


def test_a_row_leads_to_both_conversations_by_what_it_is_and_not_by_its_place() -> None:
    pages = visitor(two_runs())
    digest = f"{0:064x}"
    assert f'href="/compare/row?run=old&amp;run=new&amp;row={digest}"' in page_text(
        pages.get("/compare?run=old&run=new")
    )
    reply = pages.get(f"/compare/row?run=old&run=new&row={digest}", follow_redirects=False)
    assert (reply.status_code, reply.headers["location"]) == (303, "/evals/old/samples/0.0?with=new%2F5.0")
    page_text(pages.get("/compare/row?run=old&run=new&row=none"), status=404)


def test_runs_that_may_not_be_compared_say_why_and_the_form_can_allow_it() -> None:
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


def test_a_refused_comparison_is_a_sentence_that_begins_as_one_and_a_name_stays_as_it_is() -> None:
    pages = visitor(two_runs())
    metric = page_text(pages.get("/compare?run=old&run=new&metric=pass_rat"), status=400)
    assert 'id="refused">There is no metric' in metric
    named = two_runs()
    named.samples_of["new"] = replace(named.samples_of["new"], unfinished="20 of 30 samples are there.")
    assert 'id="refused">new: 20 of 30 samples are there.' in page_text(
        visitor(named).get("/compare?run=old&run=new")
    )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", 200),
        ("run=old", 200),
        ("run=old&run=old", 200),
        ("run=old&run=none", 404),
        ("run=none&run=old", 404),
        ("run=old&run=learned", 400),
        ("run=learned&run=old", 400),
        ("run=old&run=new&allow=everything", 400),
        ("run=old&run=new&kind=eval", 200),
        ("run=evals/old&run=evals/new", 200),  # as the page that names the nearest runs writes them
        ("run=old&run=new&kind=evals", 400),
        ("&".join(f"run={name}" for name in range(11)), 400),
    ],
)
def test_what_can_not_be_compared_is_no_error_of_the_server(words: str, status: int) -> None:
    source = two_runs()
    source.entries.append(a_run("learned", "training"))
    page_text(visitor(source).get(f"/compare?{words}"), status=status)


def test_a_run_that_is_not_there_is_of_no_kind_and_the_nearest_of_each_are_named() -> None:
    text = page_text(visitor(two_runs()).get("/compare?run=old&run=nex"), status=404)
    assert "There is no run &#39;nex&#39; to compare." in text and 'href="/evals/new"' in text
    assert "training run" not in text


def test_the_nearest_of_one_kind_leave_room_for_those_of_the_other() -> None:
    source = two_runs()
    source.entries += [a_run("third"), a_run("learned", "training")]
    text = page_text(visitor(source).get("/compare?run=old&run=learne"), status=404)
    assert 'href="/training/learned"' in text and text.count("<li><a href") == 3


def test_a_run_beside_itself_is_said_to_be() -> None:
    assert "compared with itself" in page_text(visitor(two_runs()).get("/compare?run=old&run=old"))


@pytest.mark.parametrize("words", ["status=weird", "since=2026-02-01&until=2026-01-01"])
def test_a_filter_that_no_run_can_pass_is_refused(words: str) -> None:
    page_text(visitor(two_runs()).get(f"/evals?{words}"), status=400)


@pytest.mark.parametrize("words", ["boundary=zz", "outcome=odd", "sort=colour", "min_reward=much"])
def test_a_filter_that_no_sample_can_pass_is_refused(words: str) -> None:
    page_text(visitor(two_runs()).get("/evals/old/samples?boundary=agent"))
    page_text(visitor(two_runs()).get(f"/evals/old/samples?{words}"), status=400)


def test_rewards_lie_where_the_decide_file_of_the_last_run_says() -> None:
    source = two_runs()
    source.samples_of["new"] = replace(source.samples_of["new"], reward_range=(0.0, 0.5))
    text = page_text(visitor(source).get("/compare?run=old&run=new"))
    assert "0.5" in text and text != page_text(visitor(two_runs()).get("/compare?run=old&run=new"))


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        ("metric=colour", "There is no metric &#39;colour&#39;", 400),
        ("slice=colour", "has no column &#39;colour&#39;", 400),
        ("slice=level", None, 200),
    ],
)
def test_a_metric_or_column_that_there_is_not_is_named_beside_the_form(
    words: str, said: str | None, status: int, tmp_path: Path
) -> None:
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(jsonl([{"user_prompt": "x", "level": "hard"} for _ in range(ROWS)]))
    source = two_runs()
    for name, samples in source.samples_of.items():
        source.samples_of[name] = replace(samples, open_dataset=lambda: dataset)
    text = page_text(visitor(source).get(f"/compare?run=old&run=new&{words}"), status=status)
    assert ('role="alert"' in text) is (said is not None) and (said or "hard") in text
    assert "Compare otherwise" in text


def test_a_dataset_that_is_not_here_is_no_fault_of_the_address() -> None:
    text = page_text(visitor(two_runs()).get("/compare?run=old&run=new&slice=level"))
    assert 'role="alert"' in text and "can not be cut into slices" in text


def test_names_are_text() -> None:
    source = two_runs()
    name = "<script>alert(1)</script>"
    source.entries.append(a_run(name))
    source.samples_of[name] = replace(source.samples_of["new"], name=name, run_id="other")
    text = page_text(visitor(source).get("/compare", params={"run": ["old", name]}))
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


def learned(name: str, gain: float, batch: int) -> tuple[RunDetail, TrainingCurves]:
    """Return a training run that gains so much a step."""
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


def test_training_runs_have_their_curves_over_each_other_and_the_settings_that_differ() -> None:
    made = {"slow": learned("slow", 0.01, 8), "fast": learned("fast", 0.05, 16)}
    source = FakeSource(
        [detail.summary for detail, _ in made.values()],
        {name: detail for name, (detail, _) in made.items()},
        curves_of={name: curves for name, (_, curves) in made.items()},
    )
    text = page_text(visitor(source).get("/compare?run=slow&run=fast"))
    assert (
        "fast is better than slow by 0.140 in the validation reward" in text and "8 rows at step 12" in text
    )
    assert "training.rollout_batch_size" in text and ">16<" in text
    assert text.count("<svg viewBox") >= 2 and "0.800" in text
    assert "under 90 % scored" not in text


def test_a_validation_with_few_scores_is_hollow_beside_others_too() -> None:
    made = {name: learned(name, 0.01, 8) for name in ("whole", "part")}
    detail, curves = made["part"]
    few = [replace(point, over=4) for point in curves.points("eval/validation/reward")]
    made["part"] = detail, replace(curves, curves=[curves.curves[0], replace(curves.curves[1], points=few)])
    source = FakeSource(
        [detail.summary for detail, _ in made.values()],
        {name: detail for name, (detail, _) in made.items()},
        curves_of={name: curves for name, (_, curves) in made.items()},
    )
    text = page_text(visitor(source).get("/compare?run=whole&run=part"))
    assert 'line-2 hollow"' in text and 'line-1 hollow" d="M7.0' in text
    assert "over 4, under 90 % scored" in text and "over 8, under" not in text
    lead = text[text.index('<p class="lead">') :]
    assert "In the validation of part after step 12, under 90 % of the samples have a score" in lead
    assert "the validation of whole" not in lead
