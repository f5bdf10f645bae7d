"""A platform keeps the viewer's contract as this machine's directories do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import select

from osmosis_ai.evaluation.record import TerminalRecord
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.base import upsert
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.runs.journalled import sample_row
from osmosis_ai.platform.runs.leases import Leases
from osmosis_ai.platform.runs.work.validation_files import ValidationFiles
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices, build_services
from osmosis_ai.redaction import Redactor
from osmosis_ai.training.runs.validation_samples import ValidationSamples
from osmosis_ai.viewer.source import RunQuery
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.databases import platform_database, postgres_database
from tests.platform.training_desk import DeskSink
from tests.platform.viewer.runs_world import REQUEST, add_run, source_of
from tests.viewer.source_contract import SourceContract, leave_validation


class PlatformPlace:
    """A workspace of a platform, whose runs go on."""

    def __init__(self, services: PlatformServices, member: Member) -> None:
        self._services = services
        self._member = member
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

    def validate(
        self, name: str, samples: ValidationSamples, conversations: Mapping[tuple[int, int], bytes]
    ) -> None:
        services, leases = self._services, Leases(self._services.db, self._services.clock)
        if name not in self._ids:
            training = {"kind": "training", "status": "running", "completed_at": None}
            self._ids[name] = add_run(services, self._member, name, **training).id
        id, token = self._ids[name], f"worker-{samples.step}"
        lease = leases.claim(id, token)
        assert lease is not None
        directory = WorkingDirectory(services.config.runs_dir, id).training
        leave_validation(directory, samples, conversations)
        sink = DeskSink(lease, leases, services.blobs, services.clock)
        files = ValidationFiles(sink, sink.stored().validation, Redactor(), directory)
        files.publish()
        files.publish()
        with services.db.session() as session:
            keys = set(session.scalars(select(DbRunFile.blob_key).where(DbRunFile.run_id == id)))
        assert set(services.blobs.keys(f"runs/{id}")) == keys, "nothing is left of the validation before"
        leases.release(id, token)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformPlace]:
    home = tmp_path_factory.mktemp("contract") / "platform"
    with platform_database(home) as url:
        services = build_services(PlatformConfig(home=home, database_url=url, port=8735), clock=ManualClock())
        yield PlatformPlace(services, World(services).member())
        services.db.dispose()


class TestPlatformSource(SourceContract):
    @pytest.fixture
    def place(self, shared: PlatformPlace) -> PlatformPlace:
        return shared


def find_letters(place: PlatformPlace, services: PlatformServices, member: Member) -> None:
    """Look for text in samples and in the list of runs."""
    SourceContract().test_text_is_found_whatever_the_case_of_its_letters_in_every_alphabet(place)
    for name, model in (("one", "openai/Äpfel"), ("two", "openai/Привет_1"), ("three", "openai/apfel")):
        add_run(services, member, name, model_path=model)
    found = {text: place.source.runs(RunQuery(text=text), limit=5).items for text in ("/äPFEL", "ПРИВЕТ_")}
    assert {text: [run.name for run in runs] for text, runs in found.items()} == {
        "/äPFEL": ["one"],
        "ПРИВЕТ_": ["two"],
    }


def test_text_is_found_whatever_its_case_on_sqlite(tmp_path: Path) -> None:
    services = build_services(PlatformConfig(home=tmp_path / "platform", port=8736), clock=ManualClock())
    member = World(services).member()
    place = PlatformPlace(services, member)
    find_letters(place, services, member)
    add_run(services, member, "four", model_path="openai/Große-Straße")
    for text in ("GROSSE-STRASSE", "große-strasse", "SS", "ẞ"):
        found = place.source.runs(RunQuery(text=text), limit=5).items
        assert [run.name for run in found] == ["four"], text
    services.db.dispose()


def test_text_is_found_whatever_its_case_on_postgresql(tmp_path: Path) -> None:
    """As far as its database's locale knows letters, which the locale C does not."""
    with postgres_database("TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'") as url:
        config = PlatformConfig(home=tmp_path / "platform", database_url=url, port=8736)
        services = build_services(config, clock=ManualClock())
        member = World(services).member()
        find_letters(PlatformPlace(services, member), services, member)
        services.db.dispose()
