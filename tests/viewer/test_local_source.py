"""The runs of this machine behind the viewer's protocol: listed, indexed and read on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import get_args

import pytest

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.errors import NotFoundError
from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.evaluation.run_lock import RunLock
from osmosis_ai.viewer.cursors import SamplePosition
from osmosis_ai.viewer.local.sample_list import _parts
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import Histogram, Outcome, RunQuery, SampleQuery, SampleSort
from tests.evaluation.comparison.builders import write_journalled_run
from tests.viewer.local_place import LocalPlace
from tests.viewer.rubric_contract import RubricContract
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


class TestLocalResults(RubricContract):
    @pytest.fixture
    def place(self, shared: LocalPlace) -> LocalPlace:
        # Names of JSON files are looked for every second or more.
        shared.source._places._walk_again = float("-inf")
        return shared


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
