"""What every place that holds runs owes a viewer: one suite, run against each implementation of ``RunSource``.

A subclass of :class:`SourceContract` gives the fixture ``place``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any, Protocol, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.training.runs.run_directory import TrainingDirectory, ValidationSamples
from osmosis_ai.viewer.source import (
    ItemPage,
    Outcome,
    RunEntry,
    RunQuery,
    RunSort,
    RunSource,
    SampleEntry,
    SampleQuery,
    SampleSort,
)

ORDERS = [(sort, descending) for sort in get_args(SampleSort) for descending in (False, True)]
_numbers = count()
# One suite for several sources, each of which is shared by its tests.
_SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


class PlaceOfRuns(Protocol):
    """A ``RunSource`` under test, to which runs can be added."""

    @property
    def source(self) -> RunSource: ...

    def start(self, name: str, *, rows: int, n: int) -> None:
        """Add a run without samples so far. A sample passes with a reward of 1."""

    def add(self, name: str, records: Sequence[TerminalRecord]) -> None:
        """Add results; a second one of an attempt replaces the first."""

    def validate(
        self, name: str, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
    ) -> None:
        """Add a validation to a training run; conversations are by row and attempt."""


def sample_record(row: int, attempt: int, reward: float | None = None, **known: Any) -> TerminalRecord:
    """Return a result; with ``error`` it is a failure."""
    failed = "error" in known
    return TerminalRecord(
        **{
            "row_index": row,
            "run_index": attempt,
            "rollout_id": f"{next(_numbers):032x}",
            "status": "failed" if failed else "success",
            "duration_ms": 10 * row + attempt,
            "source_row_index": row,
            "reward": None if failed else reward,
            "row_digest": f"{row + 1:016x}" * 2,
            "boundary": "agent" if failed else None,
            "category": "exception" if failed else None,
            "error_type": "agent_error" if failed else None,
            **known,
        }
    )


def leave_validation(
    directory: TrainingDirectory, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
) -> None:
    """Write the files of a validation."""
    for record in samples.records:
        if (said := conversations.get((record.row_index, record.run_index))) is not None:
            trial = directory.trials / record.rollout_id
            trial.mkdir(parents=True)
            (trial / "trajectory.json").write_bytes(said)
    directory.write_validation(samples)


def mixed_records() -> list[TerminalRecord]:
    """Return results of 8 rows with 3 attempts each: of every kind, and with ties."""
    records = []
    for row in range(8):
        for attempt in range(3):
            known: dict[str, Any] = {"tokens": 100 + row % 3, "cost_usd": 0.25 if row % 2 else None}
            if row == 5:
                known |= {"error": "ValueError: 50% of_it", "tokens": None}
            if row in (4, 7):
                known["finish_reasons"] = {
                    "stop": 1,
                    ("length" if row == 4 else "content_filter"): attempt + 1,
                }
            reward = None if row == 6 else [0.0, 0.5, 1.0][(row * attempt) % 3]
            text = {"input": f"what is row {row}?", "output": f"answer {attempt}"}
            records.append(sample_record(row, attempt, reward, **known, **text))
    return records


def all_pages(
    source: RunSource, run: str, query: SampleQuery, *, limit: int = 5
) -> Iterator[ItemPage[SampleEntry]]:
    """Yield the pages of a list in order."""
    cursor = None
    while True:
        page = source.samples(run, query, limit=limit, cursor=cursor)
        yield page
        if page.next is None:
            return
        cursor = page.next


def listed(source: RunSource, run: str, query: SampleQuery, *, limit: int = 5) -> list[SampleEntry]:
    """Return a whole list, page by page."""
    return [entry for page in all_pages(source, run, query, limit=limit) for entry in page.items]


def places_of(entries: Sequence[SampleEntry]) -> list[tuple[int, int]]:
    """Return (row, attempt) of each."""
    return [(entry.row, entry.attempt) for entry in entries]


class SourceContract:
    """The suite; its tests may share ``place``, because each uses its own runs."""

    @pytest.fixture
    def run(self, place: PlaceOfRuns) -> str:
        name = f"mixed-{next(_numbers)}"
        place.start(name, rows=9, n=3)
        place.add(name, mixed_records())
        return name

    @pytest.mark.parametrize(("sort", "descending"), ORDERS)
    def test_previous_pages(self, place: PlaceOfRuns, run: str, sort: SampleSort, descending: bool) -> None:
        query = SampleQuery(sort=sort, descending=descending)
        pages = list(all_pages(place.source, run, query, limit=7))
        assert pages[0].previous is None
        for earlier, later in pairwise(pages):
            again = place.source.samples(run, query, limit=7, cursor=later.previous)
            assert places_of(again.items) == places_of(earlier.items)

    @settings(max_examples=12, suppress_health_check=_SHARED)
    @given(data=st.data())
    def test_paging_while_samples_arrive(self, place: PlaceOfRuns, data: st.DataObject) -> None:
        rows, n = 6, 2
        items = [(row, attempt) for row in range(rows) for attempt in range(n)]
        rewards = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(-1e6, 1e6))
        known = [
            sample_record(
                row,
                attempt,
                data.draw(rewards),
                duration_ms=data.draw(st.integers(0, 3)),
                tokens=data.draw(st.none() | st.integers(0, 3)),
                cost_usd=data.draw(st.none() | st.sampled_from([0.0, 0.5])),
            )
            for row, attempt in data.draw(st.permutations(items))
        ]
        there = data.draw(st.integers(0, len(known)))
        run = f"arriving-{next(_numbers)}"
        place.start(run, rows=rows, n=n)
        place.add(run, known[:there])
        arriving = iter(known[there:])
        sort, descending = data.draw(st.sampled_from(ORDERS))
        seen: list[tuple[int, int]] = []
        limit = data.draw(st.integers(1, 5))
        for page in all_pages(place.source, run, SampleQuery(sort=sort, descending=descending), limit=limit):
            seen += places_of(page.items)
            place.add(run, [record for record, _ in zip(arriving, range(2), strict=False)])
        assert len(seen) == len(set(seen))
        assert {(record.row_index, record.run_index) for record in known[:there]} <= set(seen)

    @pytest.mark.parametrize("outcome", get_args(Outcome))
    def test_outcome_counts(self, place: PlaceOfRuns, run: str, outcome: Outcome) -> None:
        whole = place.source.samples(run, SampleQuery(), limit=100)
        found = listed(place.source, run, SampleQuery(outcome=outcome, sort="reward"))
        page = place.source.samples(run, SampleQuery(outcome=outcome), limit=2)
        assert len(found) == whole.counts[outcome] == page.counts["total"] > 0
        assert page.counts["unfiltered"] == len(whole.items) == 24
        assert page.counts["pending"] == 3
        wanted: dict[Outcome, Callable[[SampleEntry], bool]] = {
            "passed": lambda entry: entry.passed is True,
            "below": lambda entry: entry.passed is False,
            "failed": lambda entry: entry.status == "failed",
            "unscored": lambda entry: entry.reward is None,
            "flaky": lambda entry: entry.flaky,
        }
        assert places_of(found := sorted(found, key=lambda entry: (entry.row, entry.attempt))) == places_of(
            [entry for entry in whole.items if wanted[outcome](entry)]
        )

    def test_duplicate_rows_are_flaky_together(self, place: PlaceOfRuns) -> None:
        """As in the estimates. Rows 1 and 4 are duplicates of row 0; row 4 has no score."""
        name = f"copies-{next(_numbers)}"
        place.start(name, rows=6, n=2)
        rewards = [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (None, None), (0.0, 0.0)]
        copied = {"row_digest": "ab" * 16}
        place.add(
            name,
            [
                sample_record(row, attempt, reward, **(copied if row in (0, 1, 4) else {}))
                for row, attempts in enumerate(rewards)
                for attempt, reward in enumerate(attempts)
            ],
        )
        whole = place.source.samples(name, SampleQuery(), limit=100)
        found = listed(place.source, name, SampleQuery(outcome="flaky"), limit=3)
        flaky = [(row, attempt) for row in (0, 1, 2, 4) for attempt in (0, 1)]
        assert places_of(found) == flaky == places_of([each for each in whole.items if each.flaky])
        assert whole.counts["flaky"] == len(flaky)
        # Also where a page, or a filter, has but one of the copies.
        alone = place.source.samples(name, SampleQuery(row=1), limit=1).items
        assert [each.flaky for each in alone] == [True]
        assert all(each.flaky for each in place.source.sample(name, 0, 0, SampleQuery()).attempts)

    def test_sample_filters(self, place: PlaceOfRuns, run: str) -> None:
        def found(**wanted: Any) -> set[int]:
            return {entry.row for entry in listed(place.source, run, SampleQuery(**wanted))}

        assert found(row=3) == {3}
        assert found(category="exception") == found(boundary="agent") == {5}
        assert found(category="exception", outcome="passed") == found(category="timeout") == set()
        assert found(boundary="unknown") == found(boundary="tool") == set()
        assert found(tokens=(102, None)) == {2}
        assert (found(finish="length"), found(finish="content_filter")) == ({4}, {7})
        assert found(finish="refusal") == found(finish="length", row=7) == set()
        (entry, *_) = listed(place.source, run, SampleQuery(finish="length"))
        assert (entry.finish_reasons, entry.flagged_finishes) == ({"stop": 1, "length": 1}, ["truncated"])
        assert found(duration_ms=(None, 12)) == {0, 1}
        assert found(cost_usd=(0.25, 0.25)) == {1, 3, 7} | ({5} if found(row=5, cost_usd=(0, 1)) else set())
        assert found(reward=(1.0, None)) == {
            entry.row for entry in listed(place.source, run, SampleQuery(outcome="passed"))
        }
        assert found(text="WHAT IS ROW 4") == {4}
        assert found(text="50% of_it") == {5}
        assert found(text="50 _ of") == found(text="\\") == found(text="\ud800\0") == set()

    def test_failures_without_a_source(self, place: PlaceOfRuns) -> None:
        name = f"uploaded-{next(_numbers)}"
        place.start(name, rows=3, n=1)
        unknown = {"boundary": None, "category": None, "error_type": "agent_error", "error": None}
        place.add(
            name, [sample_record(0, 0, 1.0), sample_record(1, 0, **unknown), sample_record(2, 0, error="x")]
        )
        found = listed(place.source, name, SampleQuery(boundary="unknown", category="agent_error"))
        assert places_of(found) == [(1, 0)]
        kinds = [(each.boundary, each.category) for each in place.source.run("eval", name).failures]
        assert kinds == [(None, "agent_error"), ("agent", "exception")]

    def test_text_filter_ignores_case(self, place: PlaceOfRuns) -> None:
        name = f"letters-{next(_numbers)}"
        place.start(name, rows=8, n=1)
        said = [
            *("zwei äpfel", "ZWEI ÄPFEL", "Привет, мир", "ΑΒΓ δεζ", "50% Öl_\\ É", "50 x Öl_\\ É"),
            "apples",
        ]
        place.add(
            name,
            [
                sample_record(row, 0, 1.0, **{["input", "output"][row % 2]: text})
                for row, text in enumerate(said)
            ]
            + [sample_record(len(said), 0, error="Fehler: ÜBERLAUF")],
        )

        def found(text: str) -> set[int]:
            return {entry.row for entry in listed(place.source, name, SampleQuery(text=text))}

        assert found("ÄPFEL") == found("äpfel") == found("Äpfel") == found("EI ä") == {0, 1}
        assert found("привет, МИР") == found("ПРИВЕТ") == found("вЕт") == {2}
        assert found("αβγ ΔΕΖ") == found("Βγ") == {3}
        assert found("überlauf") == found("FEHLER: ü") == {7}
        assert found("50% öl_\\ é") == found("% ÖL") == {4}
        assert found("ÖL_\\") == {4, 5}
        assert found("_Ä") == found("Ä%") == found("ö\\") == found("äpfeln") == found("ё") == set()

    def test_neighbours_of_a_sample(self, place: PlaceOfRuns, run: str) -> None:
        query = SampleQuery(outcome="unscored", sort="duration", descending=True)
        entries = listed(place.source, run, query)
        for before, entry, after in zip([None, *entries], entries, [*entries[1:], None], strict=False):
            detail = place.source.sample(run, entry.row, entry.attempt, query)
            assert detail.summary == entry
            assert detail.previous == (places_of([before])[0] if before is not None else None)
            assert detail.next == (places_of([after])[0] if after is not None else None)
            assert places_of(detail.attempts) == [(entry.row, attempt) for attempt in range(3)]

    def test_latest_result_of_an_attempt(self, place: PlaceOfRuns, run: str) -> None:
        assert place.source.sample(run, 5, 1, SampleQuery()).summary.status == "failed"
        place.add(run, [sample_record(5, 1, 1.0, output="again")])
        entry = place.source.sample(run, 5, 1, SampleQuery()).summary
        assert (entry.status, entry.reward, entry.passed, entry.error) == ("success", 1.0, True, None)
        assert entry.output == "again"
        assert place.source.samples(run, SampleQuery(), limit=1).counts["unfiltered"] == 24

    @pytest.mark.parametrize("cursor", ["x", "WyJhIl0", "é", "[]", "a" * 5_000, "bnVsbA", "e30"])
    def test_invalid_cursors(self, place: PlaceOfRuns, run: str, cursor: str) -> None:
        with pytest.raises(OsmosisError) as refused:
            place.source.runs(RunQuery(), limit=5, cursor=cursor)
        assert refused.value.code == "VALIDATION"
        other_order = place.source.samples(run, SampleQuery(), limit=2).next
        for query, refused_cursor in (
            (SampleQuery(), cursor),
            (SampleQuery(sort="reward"), other_order),
            (SampleQuery(descending=True), other_order),
        ):
            with pytest.raises(OsmosisError) as refused:
                place.source.samples(run, query, limit=2, cursor=refused_cursor)
            assert refused.value.code == "VALIDATION"

    def test_not_found(self, place: PlaceOfRuns, run: str) -> None:
        with pytest.raises(NotFoundError) as missing:
            place.source.run("eval", f"{run}x")
        assert run in missing.value.details["nearest"]
        for row, attempt in ((8, 0), (900, 0), (0, 3), (2**62, 2**62)):
            with pytest.raises(NotFoundError):
                place.source.sample(run, row, attempt, SampleQuery())
        with pytest.raises(NotFoundError):
            place.source.samples("../../etc", SampleQuery(), limit=1)

    def test_same_row_in_other_runs(self, place: PlaceOfRuns, run: str) -> None:
        other = f"other-{next(_numbers)}"
        place.start(other, rows=2, n=1)
        digest = f"{next(_numbers) + 1000:016x}" * 2
        place.add(other, [sample_record(1, 0, 1.0, row_digest=digest)])
        place.add(run, [sample_record(8, 0, 0.0, row_digest=digest)])
        found = place.source.elsewhere(digest, limit=10)
        assert {(entry.name, sample.row) for entry, sample in found} == {(other, 1), (run, 8)}
        asked = [other, run]
        kinds = place.source.kinds([*asked, "nobody"])
        assert {name: list(kinds[name]) for name in kinds} == {other: ["eval"], run: ["eval"], "nobody": []}
        of_each = place.source.samples_of_row(digest, asked, limit=10)
        assert [[(each.row, each.attempt, each.passed) for each in samples] for samples in of_each] == [
            [(1, 0, True)],
            [(8, 0, False)],
        ]
        with pytest.raises(NotFoundError):
            place.source.samples_of_row(digest, [run, "nobody"], limit=10)

    def test_state(self, place: PlaceOfRuns, run: str) -> None:
        before = place.source.state("eval", run)
        assert place.source.state("eval", run) == before
        place.add(run, [sample_record(8, 2, 1.0)])
        assert place.source.state("eval", run).cursor != before.cursor

    def test_newest_validation(self, place: PlaceOfRuns) -> None:
        name = f"trained-{next(_numbers)}"
        for step, rewards in ((2, (0.5, 0.0, 1.0)), (4, (1.0, 0.25))):
            records = [sample_record(row, 0, reward) for row, reward in enumerate(rewards)]
            samples = ValidationSamples.of(records, step=step, pass_threshold=1.0)
            place.validate(name, samples, {(0, 0): b'{"steps": [%d]}' % step})
            assert place.source.validation(name) == samples
        said = place.source.conversation(name, 0, 0, max_bytes=100, kind="training")
        assert said.content == b'{"steps": [4]}'
        assert place.source.conversation(name, 0, 0, max_bytes=5, kind="training").content is None
        missing = place.source.conversation(name, 1, 0, max_bytes=100, kind="training")
        assert missing.content is None and missing.missing
        with pytest.raises(NotFoundError):
            place.source.validation(f"{name}x")

    def test_counts_of_rewards_and_failures(self, place: PlaceOfRuns, run: str) -> None:
        detail = place.source.run("eval", run)
        counts = place.source.samples(run, SampleQuery(), limit=1).counts
        assert detail.rewards is not None
        assert sum(detail.rewards.counts) == counts["passed"] + counts["below"]
        assert [(kind.boundary, kind.category, kind.count, kind.example) for kind in detail.failures] == [
            ("agent", "exception", 3, (5, 0))
        ]
        compared = place.source.run_samples([run])[0]
        assert int(compared.passed.sum()) == counts["passed"]
        assert int(compared.scored.sum()) == counts["passed"] + counts["below"]
        assert compared.samples.size == counts["unfiltered"]

    @pytest.mark.parametrize("sort", get_args(RunSort))
    @pytest.mark.parametrize("descending", [True, False])
    def test_run_list_pages(self, place: PlaceOfRuns, sort: RunSort, descending: bool) -> None:
        stem = f"listed-{next(_numbers)}"
        names = [f"{stem}-{number}" for number in range(5)]
        for name in names:
            place.start(name, rows=1, n=1)
        query = RunQuery(kind="eval", text=stem, sort=sort, descending=descending)
        pages: list[ItemPage[RunEntry]] = [place.source.runs(query, limit=2)]
        while (cursor := pages[-1].next) is not None:
            pages.append(place.source.runs(query, limit=2, cursor=cursor))
        assert sorted(entry.name for page in pages for entry in page.items) == names
        assert pages[0].counts["total"] == 5
        again = place.source.runs(query, limit=2, cursor=pages[1].previous)
        assert [entry.name for entry in again.items] == [entry.name for entry in pages[0].items]

    def test_run_filters(self, place: PlaceOfRuns, run: str) -> None:
        wanted = place.source.runs(RunQuery(kind="eval", text=run), limit=5)
        assert [entry.name for entry in wanted.items] == [run]
        assert wanted.counts["unfiltered"] >= 1
        assert wanted.items[0].headline is None or not math.isnan(wanted.items[0].headline.scored)
        entry = wanted.items[0]
        names = [name for name in (entry.model, entry.dataset, entry.rollout) if name]
        assert names
        for name in names:
            found = place.source.runs(RunQuery(kind="eval", text=name[1:].upper()), limit=500)
            assert run in [each.name for each in found.items], name
        nothing = place.source.runs(replace(RunQuery(text=run), model="no such model"), limit=5)
        assert list(nothing.items) == []
        assert nothing.counts["total"] == 0
