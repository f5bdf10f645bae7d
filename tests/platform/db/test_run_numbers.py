"""What runs are sorted by follows from what is known of them, whoever writes it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from osmosis_ai.platform.db.run_numbers import numbers_of
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member

BEGUN = datetime(2026, 11, 2, 9, 0, tzinfo=timezone.utc)


def test_a_run_s_row_has_the_numbers_of_its_results_and_metrics(
    services: PlatformServices, member: Member
) -> None:
    with services.db.transaction() as session:
        session.add(
            DbRun(
                id="run_1",
                workspace_id=member.workspace.id,
                kind="eval",
                name="first",
                status="running",
                created_at=BEGUN,
                started_at=BEGUN,
                request={},
                rollout_name="multiply",
                dataset_name="multiply",
                model_path="osmosis/tiny",
                results={"score": 0.25, "graded": 4, "passed": 1},
            )
        )
    with services.db.transaction() as session:
        run = session.get_one(DbRun, "run_1")
        assert (run.reward, run.pass_rate, run.cost_usd, run.duration_ms) == (0.25, 0.25, None, None)
        run.results = {**(run.results or {}), "headline": {"pass_rate": 0.5}}
        run.metrics = {"estimates": {"cost_usd": {"total": 1.5}}}
        run.completed_at = BEGUN + timedelta(seconds=3)
    with services.db.session() as session:
        run = session.get_one(DbRun, "run_1")
        assert (run.reward, run.pass_rate, run.cost_usd, run.duration_ms) == (0.25, 0.5, 1.5, 3000.0)


def test_what_is_no_number_is_not_known() -> None:
    assert set(numbers_of(None, None, None, None).values()) == {None}
    unknown = numbers_of({"score": float("nan"), "reward": True}, {"duration_ms": None}, BEGUN, None)
    assert set(unknown.values()) == {None}
