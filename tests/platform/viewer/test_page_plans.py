"""Lists of many runs and samples are read by an index, in few statements, whatever the database knows of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest
from sqlalchemy import insert, text, update

from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.services import build_services
from osmosis_ai.platform.viewer import sample_lists
from osmosis_ai.platform.viewer.found_runs import find_families
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.source import RunQuery, RunSort, SampleQuery, SampleSort
from tests.platform.conftest import ManualClock, World
from tests.platform.databases import postgres_database, put_migrated_database
from tests.platform.viewer.runs_world import (
    REQUEST,
    SORTING,
    every_page,
    plans_of_pages,
    run_row,
    sample_row,
    source_of,
    statements_of,
)

_INDEXES = {
    "row": ("pk_samples", "sqlite_autoindex_samples_1"),
    "reward": ("ix_samples_run_reward",),
    "duration": ("ix_samples_run_duration",),
    "tokens": ("ix_samples_run_tokens",),
    "cost": ("ix_samples_run_cost",),
}
_FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "passed": {"outcome": "passed"},
    "failed": {"outcome": "failed"},
    "unscored": {"outcome": "unscored"},
    "flaky": {"outcome": "flaky"},
    "of a category": {"category": "timeout"},
    "of a finish reason": {"finish": "length"},
    "in ranges": {"reward": (0.5, None), "tokens": (None, 2.0), "duration_ms": (1.0, None)},
    "with a text": {"text": "times"},
}


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def many(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlatformSource]:
    """A workspace of 2,000 runs, the last of 4,000 samples with two retries; no statistics of them but what tests take."""
    home, clock = tmp_path_factory.mktemp("crowded") / "many", ManualClock()
    if request.param == "sqlite":
        put_migrated_database(home)
        yield from _crowded(PlatformConfig(home=home, database_url="", port=8734), clock)
        return
    with postgres_database() as url:
        yield from _crowded(PlatformConfig(home=home, database_url=url, port=8734), clock)


def _reward(row: int, attempt: int) -> int | None:
    """Return a row's reward: every third is flaky, every fifth has none."""
    return (row + (attempt if row % 3 == 0 else 0)) % 2 if row % 5 else None


def _crowded(config: PlatformConfig, clock: ManualClock) -> Iterator[PlatformSource]:
    services = build_services(config, clock=clock)
    member = World(services).member()
    runs = []
    for number in range(2_000):
        clock.advance(1)
        reward = number % 7 / 7 if number % 5 else None
        numbers = {"reward": reward, "pass_rate": reward, "cost_usd": reward, "duration_ms": reward}
        kind = "training" if number % 4 == 0 else "eval"
        runs.append(run_row(services, member, f"run-{number}", kind=kind, **numbers))
    of_run = runs[-1]["id"]
    samples = [
        sample_row(
            of_run,
            row,
            attempt,
            reward=_reward(row, attempt),
            tokens=row % 3,
            finish_reasons={"length" if attempt else "stop": 1},
        )
        for row, attempt in product(range(2_000), range(2))
    ]
    for part in range(2):
        clock.advance(1)
        runs.append(run_row(services, member, f"retry-{part}", retry_of_id=of_run, retry_of_name="run-1999"))
        made_again = range(0, 2_000, 5 * (part + 1))
        samples += [
            sample_row(runs[-1]["id"], row, 0, status="failed", category="timeout") for row in made_again
        ]
    with services.db.transaction() as session:
        if not services.db.is_sqlite:
            session.execute(text("ALTER TABLE samples SET (autovacuum_enabled = false)"))
        session.execute(insert(DbRun), runs)
        session.execute(insert(DbSample), samples)
    yield source_of(services, member)
    services.db.dispose()


@pytest.mark.parametrize("few", [0, 10**6], ids=["many", "few"])
def test_flaky_rows_are_worked_out_once_and_paged_by_an_index(
    many: PlatformSource, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(sample_lists, "_FEW_ROWS", few)
    many.counts._known.clear()
    flaky = [row for row in range(2_000) if row % 3 == 0 and row % 5]
    for sort, descending in product(get_args(SampleSort), (False, True)):
        query = SampleQuery(outcome="flaky", sort=sort, descending=descending)
        with statements_of(many.services.db) as noted:
            found = [place for page in every_page(many, "run-1999", query, limit=300) for place in page]
            many.sample("run-1999", 3, 1, query)
        assert sorted(found) == sorted(product(flaky, range(2)))
        pages = [statement for statement, _ in noted if "AS part" in statement]
        assert len(pages) >= 2 * len(flaky) // 300 and not any("GROUP BY" in each for each in pages)


@pytest.mark.parametrize("is_known", [False, True], ids=["whatever is known", "analyzed"])
def test_samples_of_a_run_and_its_retries_are_never_sorted_for_a_page(
    many: PlatformSource, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(sample_lists, "_FEW_ROWS", 0)
    many.counts._known.clear()
    db = many.services.db
    if is_known:
        with db.transaction() as session:
            session.execute(text("ANALYZE"))
    orders = list(product(get_args(SampleSort), (False, True)))
    asked = list(product(orders, ("all", "flaky")))
    asked += product(
        [("row", False), ("reward", True), ("tokens", False)], _FILTERS.keys() - {"all", "flaky"}
    )
    for (sort, descending), shown in asked:
        query = SampleQuery(sort=sort, descending=descending, **_FILTERS[shown])
        with plans_of_pages(db) as plans:
            page = many.samples("run-1999", query, limit=20)
            many.samples("run-1999", query, limit=20, cursor=page.next)
            first = page.items[0]
            many.sample("run-1999", first.row, first.attempt, query)
        assert len(plans) == 4
        for plan in plans[:2]:
            assert any(index in plan for index in _INDEXES[sort]), (query, plan)
        # The third finds the attempts of one row, which are few; the fourth the next one, of all samples as is cheapest.
        for plan in plans[:2] if shown == "all" else (*plans[:2], plans[3]):
            assert not any(word in plan for word in SORTING), (query, plan)


def test_attempts_of_one_row_are_found_by_the_row_whatever_they_are_sorted_by(many: PlatformSource) -> None:
    for sort in get_args(SampleSort):
        with plans_of_pages(many.services.db) as plans:
            page = many.samples("run-1999", SampleQuery(sort=sort, row=3), limit=20)
        assert [each.row for each in page.items] == [3, 3]
        (plan,) = plans
        assert any(index in plan for index in _INDEXES["row"]) and "row_index" in plan, plan


@pytest.mark.parametrize("place", [(0, 7), (1_000, 2), (10**9, 0)])
def test_the_samples_nearest_to_none_are_read_by_the_index_and_few(
    many: PlatformSource, place: tuple[int, int]
) -> None:
    with plans_of_pages(many.services.db) as plans, pytest.raises(NotFoundError) as missing:
        many.sample("run-1999", *place, SampleQuery())
    row = min(place[0], 1_999)
    assert {each.split(".")[0] for each in missing.value.details["samples"][:2]} == {f"{row}"}
    # The first finds the attempts of the row that is asked for.
    plan = plans[-1]
    assert any(index in plan for index in _INDEXES["row"]) and not any(word in plan for word in SORTING), plan


@pytest.mark.parametrize("many", [pytest.param("postgresql", marks=pytest.mark.nightly)], indirect=True)
def test_what_was_said_to_the_database_of_a_page_holds_for_no_other_statement(many: PlatformSource) -> None:
    said = []
    with many.services.db.session() as session:
        setting = text("SELECT current_setting('enable_sort') || current_setting('enable_material')")
        said.append(session.scalar(setting))
        many._samples(session, "run-1999").page(SampleQuery(), limit=2, cursor=None)
        said.append(session.scalar(setting))
    assert said == ["onon", "onon"]


def test_the_runs_before_one_are_those_it_can_be_compared_with(many: PlatformSource) -> None:
    detail = many.run("eval", "run-1997")
    told = "run-1996 is of a training, run-1995 has nothing scored"
    assert detail.previous is not None and detail.previous.name == "run-1994", told
    assert len(detail.summary.trend) == 10
    ids = {name: many.run("eval", name).summary.id for name in ("run-1994", "run-1993")}
    other = {"evaluation_config": {"limit": 3, "pass_threshold": 0.5}}
    try:
        with many.services.db.transaction() as session:
            session.execute(update(DbRun).where(DbRun.id == ids["run-1994"]).values(model_path="a/b"))
            session.execute(update(DbRun).where(DbRun.id == ids["run-1993"]).values(request=other))
        found = many.run("eval", "run-1997").previous
        assert found is not None and found.name == "run-1991"
    finally:
        with many.services.db.transaction() as session:
            as_others = {"model_path": "osmosis/tiny", "request": REQUEST}
            session.execute(update(DbRun).where(DbRun.id.in_(ids.values())).values(**as_others))


def test_lists_of_runs_are_read_by_an_index_and_in_few_statements(many: PlatformSource) -> None:
    db = many.services.db
    asked = 0
    with statements_of(db) as noted, plans_of_pages(db) as plans:
        for sort, descending, kind in product(get_args(RunSort), (False, True), (None, "eval")):
            query = RunQuery(kind=kind, sort=sort, descending=descending)
            page = many.runs(query, limit=50)
            assert len(page.items) == 50
            many.runs(query, limit=50, cursor=page.next)
            asked += 2
    statements = [each for each, _ in noted if not each.startswith("EXPLAIN")]
    assert len(statements) / asked <= 8 and len(plans) == asked
    for plan in plans:
        assert not any(word in plan for word in SORTING), plan


def test_runs_are_found_by_their_names_and_no_other_is_looked_at(many: PlatformSource) -> None:
    names = ["run-1997", "run-1995", "run-1999"]
    with statements_of(many.services.db) as noted:
        assert list(many.kinds(names)) == names
        with many.services.db.session() as session:
            found = find_families(session, many.workspace_id, "eval", names)
    assert [(family.original.name, len(family.retries)) for family in found] == [
        *((name, 0) for name in names[:2]),
        ("run-1999", 2),
    ]
    asked = [each for each in noted if "FROM runs" in each[0]]
    assert len(asked) == 2
    if not many.services.db.is_sqlite:
        return  # it chooses by what it knows of its tables, and knows nothing here
    with many.services.db.session() as session:
        explain = session.connection().exec_driver_sql
        for statement, parameters in asked:
            plan = [line[3] for line in explain(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            steps = [step for step in plan if " runs " in step]
            assert steps and all(
                any(key in step for key in ("name=?", "(id=?", "retry_of_id=?")) for step in steps
            ), plan
