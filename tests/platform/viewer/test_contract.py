"""A platform keeps the viewer's contract as this machine's directories do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.runs.work.publisher import sample_row
from osmosis_ai.platform.services import PlatformServices, build_services
from tests.platform.conftest import ManualClock, World
from tests.platform.databases import platform_database
from tests.platform.viewer.runs_world import REQUEST, add_run, source_of
from tests.viewer.source_contract import SourceContract


class PlatformPlace:
    """A workspace of a platform, whose runs go on."""

    def __init__(self, services: PlatformServices) -> None:
        self._services = services
        self._member = World(services).member()
        self._ids: dict[str, str] = {}
        self._bytes = count(1)
        self.source = source_of(services, self._member)

    def start(self, name: str, *, rows: int, n: int) -> None:
        run = add_run(
            self._services,
            self._member,
            name,
            status="running",
            completed_at=None,
            request={**REQUEST, "evaluation_config": {"n": n}},
            results={"sampled_rows": rows, "pass_threshold": 1.0},
        )
        self._ids[name] = run.id

    def add(self, name: str, records: Sequence[TerminalRecord]) -> None:
        id = self._ids[name]
        rows = [{**sample_row(id, each), "resumed": False, "position": next(self._bytes)} for each in records]
        with self._services.db.transaction() as session:
            upsert(session, DbSample, rows)
            run = session.get_one(DbRun, id)
            run.progress = {"completed": (run.progress or {"completed": 0})["completed"] + len(records)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformPlace]:
    home = tmp_path_factory.mktemp("contract") / "platform"
    with platform_database(home) as url:
        services = build_services(PlatformConfig(home=home, database_url=url, port=8735), clock=ManualClock())
        yield PlatformPlace(services)
        services.db.dispose()


class TestPlatformSource(SourceContract):
    @pytest.fixture
    def place(self, shared: PlatformPlace) -> PlatformPlace:
        return shared
