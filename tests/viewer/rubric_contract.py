"""What every place that holds results of judges owes a viewer; a part of the contract of ``RunSource``.

A subclass of :class:`RubricContract` gives the fixture ``place``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Protocol, get_args

import pytest

from osmosis_ai.errors import NotFoundError
from osmosis_ai.viewer.source import ItemPage, RunEntry, RunQuery, RunSort, RunSource
from tests.platform.rubric_documents import a_result

_numbers = count()


class PlaceOfResults(Protocol):
    """A place under test, into which results are put."""

    @property
    def source(self) -> RunSource: ...

    def judge(self, name: str, document: Mapping[str, Any]) -> None:
        """Have a result of this name."""

    def start(self, name: str, *, rows: int, n: int) -> None:
        """Have a run of this name, too."""


class RubricContract:
    """The suite; ``place`` may be shared by its tests, each of which has results of its own."""

    @pytest.fixture
    def stem(self, place: PlaceOfResults) -> str:
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

    def test_a_result_is_what_its_document_says(self, place: PlaceOfResults, stem: str) -> None:
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
        self, place: PlaceOfResults, stem: str, sort: RunSort, descending: bool
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

    def test_what_has_no_score_comes_last_in_either_direction(self, place: PlaceOfResults, stem: str) -> None:
        for descending, numbers in ((False, [0, 2, 1, 3]), (True, [1, 2, 0, 3])):
            query = RunQuery(kind="rubric", text=stem, sort="reward", descending=descending)
            found = [entry.name for entry in place.source.runs(query, limit=9).items]
            assert found == [f"{stem}-{number}" for number in numbers]

    def test_a_trend_has_no_result_that_is_incomplete_or_without_a_score_but_its_own(
        self, place: PlaceOfResults
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
        self, place: PlaceOfResults, stem: str, words: dict[str, str], numbers: set[int]
    ) -> None:
        found = place.source.runs(RunQuery(kind="rubric", text=stem, **words), limit=9)  # type: ignore[arg-type]
        assert {entry.name for entry in found.items} == {f"{stem}-{number}" for number in numbers}
        assert found.counts["total"] == len(numbers)

    def test_results_are_found_by_their_judges_data_and_rubric(
        self, place: PlaceOfResults, stem: str
    ) -> None:
        for text in (stem.upper(), "PENAI/JUDGE-0", "VEN.JSON", "LARIT"):
            found = place.source.runs(RunQuery(kind="rubric", text=text), limit=500).items
            assert f"{stem}-0" in [entry.name for entry in found], text

    def test_a_name_is_known_of_both_kinds_and_what_is_not_there_is_not_found(
        self, place: PlaceOfResults, stem: str
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
