"""The runs of this machine behind the viewer's protocol: listed, indexed and read on."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, get_args

import pytest

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import RunLock
from osmosis_ai.viewer.cursors import SamplePosition
from osmosis_ai.viewer.local.sample_list import _parts
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import (
    Histogram,
    ItemPage,
    Outcome,
    RunEntry,
    RunQuery,
    RunSort,
    SampleQuery,
    SampleSort,
)
from tests.evaluation.comparison.builders import write_journalled_run
from tests.viewer.local_place import LocalPlace
from tests.viewer.source_contract import (
    ORDERS,
    SourceContract,
    listed,
    mixed_records,
    places_of,
    sample_record,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path_factory.mktemp("runs"))
    yield place
    place.source.close()


def a_result(many: int = 2, /, **changes: Any) -> dict[str, Any]:
    """Return the result file of a finished `eval rubric` with one judge and one call for each of ``many`` records."""
    return {
        "generated_at": "2026-11-01T08:00:00+00:00",
        "model": "openai/judge",
        "rubric": "Be good and clear.",
        "data_path": "answers.jsonl",
        "number": 1,
        "overall_statistics": {"average": 0.75},
        "rubric_id": "clarity",
        "rubric_source": "inline",
        "config_path": None,
        "models": ["openai/judge"],
        "complete": True,
        "stopped": None,
        "score_min": 0.0,
        "score_max": 1.0,
        "seed": 0,
        "inputs": {"data": "ab" * 32, "rubric": "cd" * 32},
        "counts": {"calls": many, "scored": many, "failed": 0, "unscored": 0, "pending": 0},
        "usage": {"cost_usd": 0.25, "elapsed_s": 12.5},
        "trust": {},
        "records": [
            {
                "index": number,
                "label": f"r{number}",
                "statistics": {"average": 0.75},
                "judgements": [
                    {"model": "openai/judge", "run": 1, "score": 0.75, "explanation": f"why {number}"}
                ],
            }
            for number in range(1, many + 1)
        ],
        **changes,
    }


_numbers = itertools.count()


class TestLocalResults:
    """Result files of `osmosis eval rubric` among the runs; each test has results of its own."""

    @pytest.fixture
    def place(self, shared: LocalPlace) -> LocalPlace:
        # Names of JSON files are looked for every second or more.
        shared.source._places._walk_again = float("-inf")
        return shared

    @pytest.fixture
    def stem(self, place: LocalPlace) -> str:
        """What the names of four results begin with; each has a run of its name."""
        stem = f"judged-{next(_numbers)}"
        for number, average in enumerate((0.25, 0.75, 0.5, None)):
            name = f"{stem}-{number}"
            statistics = {} if average is None else {"average": average}
            place.judge(
                name,
                a_result(
                    number + 1,
                    generated_at=f"2026-11-01T08:0{number}:00+00:00",
                    overall_statistics=statistics,
                    complete=number != 2,
                    model=f"openai/judge-{number % 2}",
                    data_path=f"/tmp/{stem}/{'odd' if number % 2 else 'even'}.jsonl",
                ),
            )
            place.start(name, rows=1, n=1)
        return stem

    def test_a_result_is_what_its_document_says(self, place: LocalPlace, stem: str) -> None:
        detail = place.source.run("rubric", f"{stem}-1")
        entry = detail.summary
        assert (entry.kind, entry.name, entry.status) == ("rubric", f"{stem}-1", "finished")
        assert (entry.model, entry.dataset, entry.config) == ("openai/judge-1", "odd.jsonl", "clarity")
        assert (entry.reward, entry.cost_usd, entry.duration_s, entry.pass_rate) == (0.75, 0.25, 12.5, None)
        assert entry.started_at is not None and entry.started_at.isoformat() == "2026-11-01T08:01:00+00:00"
        line = entry.headline
        assert line is not None and (line.planned, line.scored, line.failed, line.pending) == (2, 2, 0, 0)
        assert detail.summary_numbers["records"] == a_result(2)["records"]
        assert detail.config_written == "Be good and clear." and not detail.problems
        facts = dict(detail.facts)
        assert (facts["Rubric"], facts["Judges"], facts["Records"]) == ("clarity", "openai/judge", "2")
        assert place.source.run("rubric", f"{stem}-2").summary.status == "incomplete"

    @pytest.mark.parametrize("sort", get_args(RunSort))
    @pytest.mark.parametrize("descending", [True, False])
    def test_every_result_is_in_the_lists_once(
        self, place: LocalPlace, stem: str, sort: RunSort, descending: bool
    ) -> None:
        names = [f"{stem}-{number}" for number in range(4)]
        alone = {("rubric", name) for name in names}
        for kind, there in (("rubric", alone), (None, alone | {("eval", name) for name in names})):
            query = RunQuery(kind=kind, text=stem, sort=sort, descending=descending)  # type: ignore[arg-type]
            pages: list[ItemPage[RunEntry]] = [place.source.runs(query, limit=3)]
            while (cursor := pages[-1].next) is not None:
                pages.append(place.source.runs(query, limit=3, cursor=cursor))
            found = [(entry.kind, entry.name) for page in pages for entry in page.items]
            assert len(found) == len(there) and {*found} == there
            assert pages[0].counts["total"] == len(there)
            again = place.source.runs(query, limit=3, cursor=pages[1].previous)
            assert [entry.id for entry in again.items] == [entry.id for entry in pages[0].items]

    def test_what_has_no_score_comes_last_in_either_direction(self, place: LocalPlace, stem: str) -> None:
        for descending, numbers in ((False, [0, 2, 1, 3]), (True, [1, 2, 0, 3])):
            query = RunQuery(kind="rubric", text=stem, sort="reward", descending=descending)
            found = [entry.name for entry in place.source.runs(query, limit=9).items]
            assert found == [f"{stem}-{number}" for number in numbers]

    def test_a_trend_has_no_result_that_is_incomplete_or_without_a_score_but_its_own(
        self, place: LocalPlace
    ) -> None:
        rubric = f"rubric-{next(_numbers)}"
        for number, (average, complete) in enumerate(
            ((0.25, True), (0.5, False), (None, True), (0.75, True))
        ):
            place.judge(
                f"{rubric}-{number}",
                a_result(
                    generated_at=f"2026-11-01T08:0{number}:00+00:00",
                    overall_statistics={} if average is None else {"average": average},
                    complete=complete,
                    rubric_id=rubric,
                ),
            )
        query = RunQuery(kind="rubric", text=rubric, sort="name", descending=False)
        found = place.source.runs(query, limit=9).items
        assert [tuple(entry.trend) for entry in found] == [
            (0.25,),
            (0.25, 0.5),
            (0.25, None),
            (0.25, 0.75),
        ]

    @pytest.mark.parametrize(
        ("words", "numbers"),
        [
            ({"status": "finished"}, {0, 1, 3}),
            ({"status": "incomplete"}, {2}),
            ({"status": "running"}, set()),
            ({"model": "openai/judge-1"}, {1, 3}),
            ({"dataset": "even.jsonl"}, {0, 2}),
            ({"rollout": "multiply"}, set()),
            ({"commit": "c0ffee"}, set()),
            ({"person": "nobody at all"}, set()),
        ],
    )
    def test_results_are_filtered(
        self, place: LocalPlace, stem: str, words: dict[str, str], numbers: set[int]
    ) -> None:
        found = place.source.runs(RunQuery(kind="rubric", text=stem, **words), limit=9)  # type: ignore[arg-type]
        assert {entry.name for entry in found.items} == {f"{stem}-{number}" for number in numbers}
        assert found.counts["total"] == len(numbers)

    def test_results_are_found_by_their_judges_data_and_rubric(self, place: LocalPlace, stem: str) -> None:
        for text in (stem.upper(), "PENAI/JUDGE-0", "VEN.JSON", "LARIT"):
            found = place.source.runs(RunQuery(kind="rubric", text=text), limit=500).items
            assert f"{stem}-0" in [entry.name for entry in found], text

    def test_a_name_is_known_of_both_kinds_and_what_is_not_there_is_not_found(
        self, place: LocalPlace, stem: str
    ) -> None:
        place.judge(f"{stem}-alone", a_result())
        kinds = place.source.kinds([f"{stem}-0", f"{stem}-alone", "nobody"])
        assert {name: {*kinds[name]} for name in kinds} == {
            f"{stem}-0": {"eval", "rubric"},
            f"{stem}-alone": {"rubric"},
            "nobody": set(),
        }
        with pytest.raises(NotFoundError) as missing:
            place.source.run("rubric", f"{stem}-alon")
        assert f"{stem}-alone" in missing.value.details["nearest"]
        for name in ("../../etc/passwd", "x" * 4_000, "\0"):
            with pytest.raises(NotFoundError):
                place.source.run("rubric", name)


class TestLocalSource(SourceContract):
    @pytest.fixture
    def place(self, shared: LocalPlace, monkeypatch: pytest.MonkeyPatch) -> LocalPlace:
        # There are many runs by now, and the machine may be busy.
        monkeypatch.setattr("osmosis_ai.viewer.local.source._ELSEWHERE_S", 600.0)
        return shared


def lookups(source: LocalSource, run: str, query: SampleQuery) -> list[str]:
    """Return how SQLite finds a page of samples from its middle on."""
    samples, _ = source._samples(source._place("eval", run))
    position = SamplePosition(None if query.sort == "row" else 1.0, 3, 0)
    plans = []
    for statement, values in _parts(query, position, n=samples.index.n):
        bound = {**values, **samples._values(query), "limit": 10}
        plans += [
            line[-1] for line in samples.index.connection.execute(f"EXPLAIN QUERY PLAN {statement}", bound)
        ]
    return plans


@pytest.mark.parametrize("outcome", [None, *get_args(Outcome)])
@pytest.mark.parametrize(("sort", "descending"), ORDERS)
def test_no_page_of_samples_sorts_or_reads_them_all(
    shared: LocalPlace, sort: SampleSort, descending: bool, outcome: Outcome | None
) -> None:
    if not (shared.evals / "planned").exists():
        shared.start("planned", rows=9, n=3)
        shared.add("planned", mixed_records())
    for text in ("", "of_it", "äpfel"):
        query = SampleQuery(outcome=outcome, sort=sort, descending=descending, text=text)
        plans = lookups(shared.source, "planned", query)
        assert not [plan for plan in plans if "TEMP B-TREE FOR ORDER" in plan]
        assert any("SEARCH samples USING" in plan for plan in plans)


def test_runs_are_found_whatever_the_case_of_their_letters(local: LocalPlace) -> None:
    local.start("run", rows=1, n=1)
    manifest = local.evals / "run" / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace("osmosis/tiny", "osmosis/Straße-Äpfel"), "utf-8")
    for text in ("ÄPFEL", "äpfel", "STRASSE"):
        assert [entry.name for entry in local.source.runs(RunQuery(text=text), limit=5).items] == ["run"], (
            text
        )


def test_a_sample_is_found_by_its_letters_in_capitals_where_one_becomes_two(local: LocalPlace) -> None:
    local.start("run", rows=3, n=1)
    said = ("Große Straße", "GROSSE STRASSE", "Grobe Strafe")
    local.add("run", [sample_record(row, 0, 1.0, input=text) for row, text in enumerate(said)])
    for text in ("GROSSE STRASSE", "große strasse", "Große Straße", "SS"):
        found = local.source.samples("run", SampleQuery(text=text), limit=5).items
        assert [each.row for each in found] == [0, 1], text


def test_an_index_goes_on_from_the_last_byte_and_a_torn_line_waits(local: LocalPlace) -> None:
    local.start("run", rows=4, n=1)
    local.add("run", [sample_record(0, 0, 1.0), sample_record(1, 0, 0.0)])
    journal = local.evals / "run" / "events.jsonl"
    before = journal.read_bytes()
    local.add("run", [sample_record(2, 0, 0.5)])
    line = journal.read_bytes()[len(before) :]
    journal.write_bytes(before + line[:-20])
    assert places_of(listed(local.source, "run", SampleQuery())) == [(0, 0), (1, 0)]
    # What was read is not read again: another process would not find a change of it.
    content = journal.read_bytes()
    journal.write_bytes(content.replace(b'"reward":1.0', b'"reward":7.0') + line[-20:])
    again = LocalSource(local.root, cache_dir=local.root / "cache")
    found = listed(again, "run", SampleQuery())
    assert [entry.reward for entry in found] == [1.0, 0.0, 0.5]
    again.close()


def test_a_run_that_was_started_afresh_under_its_name_is_read_anew(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.add("run", [sample_record(0, 0, 1.0), sample_record(1, 0, 1.0)])
    assert len(listed(local.source, "run", SampleQuery())) == 2
    (local.evals / "run").rename(local.evals / "run.archive-20260101T000000Z")
    local.start("run", rows=2, n=1)
    local.add("run", [sample_record(1, 0, 0.0)])
    assert [(entry.row, entry.reward) for entry in listed(local.source, "run", SampleQuery())] == [(1, 0.0)]
    assert [entry.name for entry in local.source.runs(RunQuery(), limit=9).items] == ["run"]


def test_an_archived_run_is_listed_where_it_was_asked_for_by_its_directory(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    archived = (local.evals / "run").rename(local.evals / "run.archive-20260101T000000Z")
    asked = LocalSource(archived, cache_dir=local.root / "cache")
    assert [entry.name for entry in asked.runs(RunQuery(), limit=9).items] == [archived.name]
    asked.close()


def test_of_a_damaged_journal_what_stands_before_the_damage_is_shown(local: LocalPlace) -> None:
    local.start("run", rows=4, n=1)
    local.add("run", [sample_record(0, 0, 1.0)])
    with (local.evals / "run" / "events.jsonl").open("ab") as journal:
        journal.write(b'{"row_index": 1, oops\n')
    local.add("run", [sample_record(2, 0, 1.0)])
    assert places_of(listed(local.source, "run", SampleQuery())) == [(0, 0)]
    detail = local.source.run("eval", "run")
    assert [sentence for sentence in detail.problems if "damaged at line 2" in sentence]
    assert local.source.runs(RunQuery(), limit=9).items[0].error


def test_an_index_is_removed_with_its_run(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.source.runs(RunQuery(), limit=5)
    listed(local.source, "run", SampleQuery())
    assert list((local.root / "cache" / "viewer").glob("run-*.sqlite"))
    shutil.rmtree(local.evals / "run")
    assert list(local.source.runs(RunQuery(), limit=5).items) == []
    assert not list((local.root / "cache" / "viewer").glob("run-*"))
    # Its page was open.
    for look in (lambda: local.source.run("eval", "run"), lambda: local.source.changes("eval", "run")):
        with pytest.raises(NotFoundError):
            look()


def test_a_journal_is_read_piece_by_piece_where_somebody_waits(local: LocalPlace) -> None:
    local.start("run", rows=5_000, n=1)
    local.add("run", [sample_record(row, 0, 1.0) for row in range(5_000)])
    source = LocalSource(local.root, cache_dir=local.root / "cache", patience_s=0.0)
    assert "so far" in source.run("eval", "run").problems[-1]
    seen = []
    while (page := source.samples("run", SampleQuery(), limit=1)).progress is not None:
        seen.append(page.progress)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 1
    assert page.counts["total"] == 5_000
    assert source.run("eval", "run").problems == []
    source.close()


def test_a_line_of_the_list_follows_its_run(local: LocalPlace) -> None:
    def shown() -> list[tuple[str, str, int | None]]:
        entries = local.source.runs(RunQuery(sort="name", descending=False), limit=9).items
        return [
            (entry.name, entry.status, entry.headline.scored if entry.headline is not None else None)
            for entry in entries
        ]

    local.start("a", rows=2, n=1)
    assert shown() == [("a", "incomplete", 0)]
    local.add("a", [sample_record(0, 0, 1.0)])
    assert shown() == [("a", "incomplete", 1)]
    with RunLock(local.evals, "a"):
        assert shown() == [("a", "running", 1)]
        (running,) = local.source.runs(RunQuery(), limit=9).items
        assert running.duration_s is not None and running.duration_s > 0
    local.add("a", [sample_record(1, 0, 1.0)])
    assert shown() == [("a", "finished", 2)]
    # Done again in part: numbers are written at the end, and a directory knows of that.
    local.add("a", [sample_record(1, 0, error="boom")])
    directory = local.evals / "a"
    RunDirectory(directory).write_results({}, read_local_results(directory).metrics)
    assert shown() == [("a", "finished", 1)]
    local.start("b", rows=1, n=1)
    assert shown() == [("a", "finished", 1), ("b", "incomplete", 0)]
    # Another process finds the lines as they were left.
    again = LocalSource(local.root, cache_dir=local.root / "cache")
    names = [entry.name for entry in again.runs(RunQuery(sort="name", descending=False), limit=9).items]
    assert names == ["a", "b"]
    again.close()


@pytest.mark.parametrize("name", ["with spaces", "naïve-läufe-✓", "n" * 255, "ü" * 127])
def test_a_run_may_have_any_name_that_a_directory_has(local: LocalPlace, name: str) -> None:
    local.start("run", rows=1, n=1)
    local.add("run", [sample_record(0, 0, 1.0)])
    (local.evals / "run").rename(local.evals / name)
    (local.evals / ".locks").mkdir(exist_ok=True)
    assert [entry.name for entry in local.source.runs(RunQuery(), limit=5).items] == [name]
    assert len(listed(local.source, name, SampleQuery())) == 1
    page = local.source.runs(RunQuery(sort="name"), limit=1)
    assert page.next is None


def test_two_runs_of_one_name_have_names_of_their_own(local: LocalPlace) -> None:
    other = LocalPlace(local.root / "below")
    for place in (local, other):
        place.start("run", rows=1, n=1)
    names = [entry.name for entry in local.source.runs(RunQuery(sort="name"), limit=5).items]
    assert len(set(names)) == 2
    assert all(local.source.run("eval", name).summary.name == name for name in names)
    other.source.close()


def test_one_reward_that_all_samples_have_is_drawn_on_the_scale_of_rewards() -> None:
    import numpy as np

    for reward, ends in ((0.0, (0.0, 1.0)), (1.0, (0.0, 1.0)), (-2.0, (-2.0, 1.0)), (7.0, (0.0, 7.0))):
        found = Histogram.of(np.full(3, reward))
        assert found is not None and sum(found.counts) == 3
        assert (found.edges[0], found.edges[-1]) == ends
    assert Histogram.of(np.empty(0)) is None and Histogram.of(np.array([-1.7e308, 1.7e308])) is None


def test_a_reward_on_the_edge_of_a_bar_lies_in_the_bar_that_begins_there() -> None:
    import numpy as np

    tenths = [tenth / 10 for tenth in range(11)]
    found = Histogram.of(np.array(tenths))
    assert found is not None and found.edges == [place / 20 for place in range(21)]
    assert found.counts == [*[1, 0] * 9, 1, 1]
    weighted = Histogram.of(np.array(tenths), np.arange(11.0))
    assert weighted is not None and weighted.counts[14] == 7 and weighted.counts[13] == 0


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1e-300), (1.0, 1.0 + 1e-13), (-1e300, 1e300), (-1.0, 1.0), (3.7, 1234.5)]
)
def test_bars_of_any_scale_hold_every_reward_once(low: float, high: float) -> None:
    import numpy as np

    rewards = np.concatenate((np.linspace(low, high, 1001), [low, high]))
    found = Histogram.of(rewards)
    assert found is not None and sum(found.counts) == len(rewards)
    assert (found.edges[0], found.edges[-1]) == (low, high)
    for edge, count in zip(found.edges, found.counts, strict=False):
        assert (rewards >= edge).sum() >= count


def test_a_run_tells_how_many_rows_of_how_many_it_uses(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1)
    local.add("run", [sample_record(row, 0, 1.0) for row in range(2)])
    directory = local.evals / "run"
    metrics = read_local_results(directory).metrics
    RunDirectory(directory).write_results({"rows": asdict(RowsDrawn(2, 20, "first"))}, metrics)
    headline = local.source.run("eval", "run").summary.headline
    assert headline is not None and headline.rows == RowsDrawn(2, 20, "first")
    assert headline.words.endswith("2 of 20 rows, the first")


def test_a_run_is_gone_on_with_by_the_options_it_was_started_with(local: LocalPlace) -> None:
    config, begun = {"config": "configs/eval/math.toml"}, [[1.0, 0.0], [1.0]]
    options = ["--rows", "3,7", "--dataset-file", "my rows.jsonl", "--isolate"]
    write_journalled_run(local.evals / "told", begun, provenance={**config, "options": options})
    write_journalled_run(local.evals / "odd", begun, provenance={**config, "options": 5})
    again = "osmosis eval run configs/eval/math.toml --name"
    told = f"{again} told --rows 3,7 --dataset-file 'my rows.jsonl' --isolate"
    assert local.source.run("eval", "told").commands == [told]
    assert local.source.run("eval", "odd").commands == [f"{again} odd"]


def test_a_run_that_was_put_aside_is_gone_on_with_and_not_the_one_that_has_its_name(
    local: LocalPlace,
) -> None:
    aside = "fern.archive-20260101T000000Z"
    for name in ("fern", aside):
        provenance = {"config": "configs/eval/math.toml", "options": []}
        write_journalled_run(local.evals / name, [[1.0, 0.0], [1.0]], provenance=provenance)
    manifest = local.evals / aside / "manifest.json"
    manifest.write_text(manifest.read_text().replace(aside, "fern"))
    assert json.loads(manifest.read_text())["run_name"] == "fern"
    for name in ("fern", aside):
        command = f"osmosis eval run configs/eval/math.toml --name {name}"
        assert local.source.run("eval", name).commands == [command]
