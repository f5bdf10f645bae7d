"""Lists of many local runs: read piece by piece, and with those that were put aside where somebody asks for them."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import RunQuery
from tests.viewer.browsing import page_text, visitor
from tests.viewer.local_place import LocalPlace
from tests.viewer.source_contract import sample_record


def test_a_list_is_read_piece_by_piece_where_somebody_waits_the_newest_first(local: LocalPlace) -> None:
    for number in range(5):
        local.start(f"run-{number}", rows=1, n=1)
        os.utime(local.evals / f"run-{number}", (number, number))
    source = LocalSource(local.root, cache_dir=local.root / "cache", patience_s=0.0)
    seen = []
    while (page := source.runs(RunQuery(), limit=9)).progress is not None:
        seen.append((page.progress, [entry.name for entry in page.items]))
    assert seen[0] == (pytest.approx(0.2), ["run-4"])
    assert seen == sorted(seen, key=lambda each: each[0])
    assert len(page.items) == 5
    waits = "of the runs are read so far"
    source.close()
    shutil.rmtree(local.root / "cache")
    again = visitor(LocalSource(local.root, cache_dir=local.root / "cache", patience_s=0.0))
    assert waits in page_text(again.get("/"))
    while waits in (shown := page_text(again.get("/"))):
        pass
    assert "5 runs" in shown


def test_a_run_is_measured_by_those_of_its_config_model_and_rows(local: LocalPlace) -> None:
    def made(
        day: int, *, rows: int = 3, n: int = 1, bar: float = 1.0, config: str = "a", model: str = "m"
    ) -> None:
        name = f"run-{day}"
        local.start(name, rows=rows, n=n)
        manifest = json.loads((local.evals / name / "manifest.json").read_text("utf-8"))
        manifest["created_at"] = f"2026-05-{day:02}T08:00:00Z"
        manifest["inputs"]["model_path"] = model
        manifest["provenance"] = {"config": f"configs/eval/{config}.toml"}
        (local.evals / name / "manifest.json").write_text(json.dumps(manifest), "utf-8")
        local.add(name, [sample_record(row, attempt, 1.0) for row in range(rows) for attempt in range(n)])
        metrics = {"summary": {"pass_threshold": bar}}
        (local.evals / name / "metrics.json").write_text(json.dumps(metrics), "utf-8")

    made(1)
    made(2, rows=2)
    made(3, model="another")
    made(4, config="b")
    made(5, bar=0.5)
    made(6, n=4)
    made(7, rows=2, n=2)
    made(8, bar=0.5)
    before = {f"run-{day}": local.source.run("eval", f"run-{day}").previous for day in range(1, 9)}
    found = {name: run.name for name, run in before.items() if run is not None}
    assert found == {"run-6": "run-1", "run-7": "run-2", "run-8": "run-5"}
    for entry in local.source.runs(RunQuery(), limit=9).items:
        assert len(entry.trend) == (2 if entry.name in found else 1), entry.name


def test_the_run_before_is_the_last_one_that_finished_and_has_scores(local: LocalPlace) -> None:
    failed = [sample_record(row, 0, error="broken") for row in range(3)]
    scored = [sample_record(row, 0, 1.0) for row in range(3)]
    for day, records in enumerate((scored, [], scored[:2], failed, scored), start=1):
        name = f"run-{day}"
        local.start(name, rows=3, n=1)
        manifest = json.loads((local.evals / name / "manifest.json").read_text("utf-8"))
        manifest["created_at"] = f"2026-05-{day:02}T08:00:00Z"
        (local.evals / name / "manifest.json").write_text(json.dumps(manifest), "utf-8")
        local.add(name, records)
    before = [local.source.run("eval", f"run-{day}").previous for day in range(1, 6)]
    assert [each.name if each is not None else None for each in before] == [None, *["run-1"] * 4]
    trends = {entry.name: entry.trend for entry in local.source.runs(RunQuery(), limit=9).items}
    assert trends["run-5"] == (1.0, 1.0)


def test_a_line_of_judging_says_how_many_calls_gave_a_score(local: LocalPlace) -> None:
    counts = {"records": 3, "calls": 12, "scored": 9, "unscored": 1, "failed": 2, "pending": 0}
    document = {
        "generated_at": "2026-05-01T13:05:00+00:00",
        "overall_statistics": {"average": 0.5},
        "counts": counts,
        "records": [],
    }
    for name, written in (("told", document), ("silent", document | {"counts": {"scored": "many"}})):
        (local.root / f"rubric_eval_result_{name}.json").write_text(json.dumps(written), "utf-8")
    lines = {entry.name: entry for entry in local.source.runs(RunQuery(), limit=9).items}
    told = lines["rubric_eval_result_told"].headline
    assert told is not None and (told.scored_words, told.failed_words) == ("9 of 12 planned", "3")
    assert lines["rubric_eval_result_silent"].headline is None
    shown = page_text(visitor(local.source).get("/rubrics"))
    assert '9<span class="interval"> of 12 planned</span>' in shown


def test_runs_that_were_put_aside_are_found_by_a_filter_and_from_the_run_of_their_name(
    local: LocalPlace,
) -> None:
    names = [
        "run",
        "run.archive-20260101T000000Z",
        "run.archive-20260201T000000Z",
        "other.archive-20260101T000000Z",
    ]
    for name in [*names, "runs"]:
        local.start(name, rows=1, n=1)

    def shown(query: RunQuery) -> set[str]:
        return {entry.name for entry in local.source.runs(query, limit=9).items}

    assert shown(RunQuery()) == {"run", "runs"}
    assert shown(RunQuery(archived=True)) == {*names, "runs"}
    assert local.source.runs(RunQuery(), limit=9).counts["archived"] == 3
    assert local.source.run("eval", "run").namesakes == [names[2], names[1]]
    assert local.source.run("eval", names[1]).namesakes == ["run", names[2]]
    assert local.source.run("eval", names[3]).namesakes == []
    pages = visitor(local.source)
    assert f'href="/evals/{names[1]}"' in page_text(pages.get("/evals/run"))
    assert names[1] in page_text(pages.get("/?archived=yes"))
    assert names[1] not in page_text(pages.get("/"))
    assert pages.get("/?archived=maybe").status_code == 400
