"""A run that was retried some hundred times: of each work item the newest result counts, in statements of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.read.merging import RunFamily, family_of, merge, unscored_items
from osmosis_ai.platform.runs.read.sample_pages import sample_page
from osmosis_ai.platform.services import PlatformServices, build_services
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.source import SampleQuery
from tests.platform.conftest import ManualClock, World
from tests.platform.databases import postgres_database, put_migrated_database
from tests.platform.viewer.runs_world import every_page, run_row, sample_row, source_of, statements_of

RETRIES, ROWS = 300, 40
Newest = dict[tuple[int, int], float | None]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlatformServices]:
    home, clock = tmp_path / "home", ManualClock()
    if request.param == "sqlite":
        put_migrated_database(home)
        made = build_services(PlatformConfig(home=home, database_url="", port=8734), clock=clock)
        yield made
        made.db.dispose()
        return
    with postgres_database() as url:
        made = build_services(PlatformConfig(home=home, database_url=url, port=8734), clock=clock)
        yield made
        made.db.dispose()


def retried(services: PlatformServices) -> tuple[PlatformSource, Newest]:
    """Add a run of 40 rows with its retries, each of two items; return what counts of it, too."""
    clock = services.clock
    assert isinstance(clock, ManualClock)
    member = World(services).member()
    runs = [run_row(services, member, "first", results={"sampled_rows": ROWS})]
    items: list[dict[str, Any]] = [
        sample_row(runs[0]["id"], row, 0, reward=None if row % 3 else 0.25) for row in range(ROWS)
    ]
    newest: Newest = {(row, 0): None if row % 3 else 0.25 for row in range(ROWS)}
    original = runs[0]["id"]
    for number in range(RETRIES):
        clock.advance(1)
        runs.append(run_row(services, member, f"again-{number}", retry_of_id=original))
        for row in {number % 30, number * 7 % 30}:
            reward = None if number % 2 else number / 1000
            items.append(sample_row(runs[-1]["id"], row, 0, reward=reward))
            newest[row, 0] = reward
    with services.db.transaction() as session:
        # As ids are no order, so is no order of the rows.
        session.execute(insert(DbRun), runs[::-1])
        session.execute(insert(DbSample), items[::-1])
    return source_of(services, member), newest


def test_the_newest_results_of_very_many_retries_count_and_make_pages(services: PlatformServices) -> None:
    source, newest = retried(services)
    with services.db.session() as session:
        family = family_of(services.db, session.query(DbRun).filter_by(name="first").one())
    assert len(family.retries) == RETRIES
    with statements_of(services.db) as statements:
        alone = sample_page(services.db, RunFamily(family.original, ()), limit=15, cursor="9-0")
    assert [each.row for each in alone.samples] == list(range(10, 25)) and alone.next_cursor == "24-0"
    assert all((each.reward is None) == bool(each.row % 3) for each in alone.samples)
    assert max(len(values) for _, values in statements) < 10
    with statements_of(services.db) as statements:
        merged = merge(services.db, services.blobs, family)
        left = unscored_items(services.db, family)
        pages = {
            sort: every_page(source, "first", SampleQuery(sort=sort), limit=15) for sort in ("row", "reward")
        }
        source.sample("first", 7, 0, SampleQuery(sort="reward"))
    scored = [reward for reward in newest.values() if reward is not None]
    counts = merged.estimates.counts
    assert (counts.scored, sum(merged.counted.values())) == (len(scored), ROWS)
    assert merged.estimates.reward is not None
    assert merged.estimates.reward.value == pytest.approx(sum(scored) / len(scored))
    assert set(left.items) >= {item for item, reward in newest.items() if reward is None}
    for found in pages.values():
        assert sorted(place for page in found for place in page) == sorted(newest)
    by_reward = [newest[place] for page in pages["reward"] for place in page]
    assert by_reward == [*sorted(scored), *[None] * (ROWS - len(scored))]
    # Twice for each run, and twice again for each part of a page: never once for each pair of them.
    assert max(len(values) for _, values in statements) < 20 * RETRIES
