"""Several evaluations of a platform are read together, and each comes to what it comes to alone."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.comparison.run_samples import run_slices
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from tests.platform.conftest import ManualClock, Member
from tests.platform.evaluations import add_dataset
from tests.platform.viewer.runs_world import add_run, add_samples, places, source_of


@pytest.fixture
def source(services: PlatformServices, member: Member) -> PlatformSource:
    return source_of(services, member)


@pytest.fixture
def run(services: PlatformServices, member: Member) -> DbRun:
    made = add_run(services, member, "first")
    scored = [{"row": 0, "attempt": 0, "reward": 1.0}, {"row": 0, "attempt": 1, "reward": 0.0}]
    failed = [{"row": 1, "attempt": 1, "status": "failed"}, {"row": 2, "attempt": 0, "status": "failed"}]
    add_samples(services, made, [*scored, {"row": 1, "attempt": 0, "reward": 0.5}, *failed])
    return made


def test_a_row_is_found_in_the_runs_that_are_compared_whatever_was_done_on_it_since(
    source: PlatformSource, services: PlatformServices, member: Member, run: DbRun
) -> None:
    retry = add_run(services, member, "again", retry_of_id=run.id, retried=[[1, 1], [2, 1]])
    made_again = [{"row": row, "attempt": 1, "reward": 1.0} for row in (1, 2)]
    add_samples(services, retry, made_again)
    other = add_run(services, member, "other")
    add_samples(services, other, [{"row": 1, "attempt": 0, "reward": 0.0}])
    since = add_run(services, member, "since")
    add_samples(services, since, [{"row": 1, "attempt": attempt} for attempt in range(20)])
    theirs, mine = source.samples_of_row(f"{1:032x}", ["other", "first"], limit=9)
    assert [(each.row, each.attempt, each.passed) for each in theirs] == [(1, 0, False)]
    assert [(each.row, each.attempt, each.passed) for each in mine] == [(1, 0, False), (1, 1, True)]
    assert places(source.samples_of_row(f"{2:032x}", ["first"], limit=9)[0]) == [(2, 0), (2, 1)]
    assert source.samples_of_row(f"{9:032x}", ["first", "other"], limit=9) == [[], []]
    assert places(source.samples_of_row(f"{1:032x}", ["again"], limit=9)[0]) == [(1, 1)]
    with pytest.raises(NotFoundError, match="'gone'"):
        source.samples_of_row(f"{1:032x}", ["first", "gone"], limit=9)


def test_a_run_is_cut_by_a_column_of_its_dataset_while_that_is_the_one_it_used(
    source: PlatformSource,
    services: PlatformServices,
    member: Member,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = [{"user_prompt": "?", "ground_truth": "1", "level": level} for level in ("easy", "hard", "easy")]
    used = add_dataset(services, member, "sums", rows=rows)
    known = {"dataset_name": "sums", "selection": {"sha256": used.sha256}}
    run = add_run(services, member, "cut", **known)
    samples = [{"row": row, "attempt": 0, "reward": float(row == 1)} for row in range(3)]
    add_samples(services, run, samples)

    def by_level() -> list[tuple[str | None, int]]:
        return [(each.value, each.rows) for each in run_slices(source.run_samples(["cut"])[0], ["level"])]

    assert sorted(by_level()) == [("easy", 2), ("hard", 1)]
    gc.collect()
    assert list(tmp_path.glob("osmosis-dataset-*")) == [], "a copy for one look at a page"
    with pytest.raises(OsmosisError, match=r"the dataset sums\.jsonl has no column 'levle'"):
        run_slices(source.run_samples(["cut"])[0], ["levle"])
    monkeypatch.setattr("osmosis_ai.platform.viewer.run_datasets.LARGEST_BYTES", used.file_size - 1)
    with pytest.raises(OsmosisError, match="too large to be read for a page"):
        by_level()
    with services.db.transaction() as session:
        session.merge(used).sha256 = "ab" * 32
    with pytest.raises(OsmosisError, match="not there any more, or another one by now"):
        by_level()


def test_evaluations_are_read_together_as_each_is_by_itself(
    source: PlatformSource, services: PlatformServices, member: Member, run: DbRun, clock: ManualClock
) -> None:
    for number in range(3):
        clock.advance(1)
        made = [[1, 1], [2, 0]] if number else [[2, 0]]
        retry = add_run(services, member, f"again-{number}", retry_of_id=run.id, retried=made)
        add_samples(
            services,
            retry,
            [{"row": row, "attempt": attempt, "reward": number / 4} for row, attempt in made],
        )
    names = ["first", "again-1", "again-0"]
    together = source.run_samples(names)
    for name, each in zip(names, together, strict=True):
        alone = source.run_samples([name])[0]
        assert each.name == name and each.row_keys == alone.row_keys
        assert each.samples.tobytes() == alone.samples.tobytes()
    assert {float(value) for value in together[0].samples["reward"][-2:]} == {0.5}, "the newest result counts"
    assert [each.samples.size for each in together] == [5, 2, 1]
