"""Rows that no command can write, in the database of a platform of one's own."""

from __future__ import annotations

from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.services import PlatformServices


def add_pending_run(platform: PlatformServices, repository_id: str, name: str) -> str:
    """Add a run that no worker has begun; return its ID."""
    run = DbRun(
        kind="eval",
        status="pending",
        request={},
        rollout_name="x",
        dataset_name="x",
        model_path="x",
        id="run_1",
        workspace_id=platform.workspaces.find("default").id,
        repository_id=repository_id,
        name=name,
        created_at=platform.clock.now(),
    )
    with platform.db.transaction() as session:
        session.add(run)
    return "run_1"


def repository_of(platform: PlatformServices, run_id: str) -> str | None:
    with platform.db.session() as session:
        run = session.get(DbRun, run_id)
        assert run is not None
        return run.repository_id
