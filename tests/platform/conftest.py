"""A fresh platform in this process: SQLite in a temporary home, a clock the test sets, HTTP without a network."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from osmosis_ai.cli.main import main
from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.app import create_app
from osmosis_ai.platform.clock import Clock, SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRepository, DbUser, DbWorkspace
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import Role, WorkspaceStore
from tests.logins import hash_passwords_quickly
from tests.platform.databases import platform_database, statements_compiled_once
from tests.platform.datasets_world import Uploads
from tests.platform.one_hop_client import OneHopClient, running

CLONE_URL = "/srv/git/agents.git"


@dataclass
class ManualClock:
    """Time stands still until the test moves it."""

    moment: datetime = datetime(2026, 11, 2, 9, 30, tzinfo=timezone.utc)
    elapsed_s: float = 0.0

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.elapsed_s

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)
        self.elapsed_s += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the machine's clock; durations do not notice."""
        self.moment += timedelta(seconds=seconds)


@dataclass
class Member:
    """Somebody with a token, in a workspace that has a repository."""

    user: DbUser
    workspace: DbWorkspace
    repository: DbRepository
    token: str
    token_id: str
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.headers = {"Authorization": f"Bearer {self.token}", "X-Osmosis-Git": self.repository.identity}


_MARA: list[Member] = []
"""Who is in the database that is copied for tests with a member."""


def _let_mara_in(db: Database) -> None:
    clock = ManualClock()
    parts = SimpleNamespace(db=db, accounts=AccountStore(db, clock), workspaces=WorkspaceStore(db, clock))
    _MARA.append(World(parts).member())


class World:
    """A platform, and who and what a test needs on it."""

    def __init__(self, services: Any) -> None:
        self.services = services

    @classmethod
    @contextmanager
    def opened(
        cls, home: Path, database_url: str = "", clock: Clock | None = None, **settings: Any
    ) -> Iterator[World]:
        """Open a platform of the test's own."""
        config = PlatformConfig(home=home, database_url=database_url, **settings)
        world = cls(PlatformServices(config, clock=clock or SystemClock()))
        yield world
        world.services.db.dispose()

    def create_workspace(self, name: str, *owners: Member) -> str:
        """Create a workspace; return its id."""
        home = self.services.workspaces.create(name)
        for owner in owners:
            self.join(home.id, owner, "owner")
        return str(home.id)

    def join(self, workspace_id: str, member: Member, role: Role = "member") -> None:
        self.services.workspaces.add_member(workspace_id, member.user.id, role)

    def leave(self, member: Member) -> None:
        """Take a member out of their workspace, which has another owner."""
        heir = self.services.accounts.create_user(f"heir-of-{member.user.id}@fern.example".lower())
        self.services.workspaces.add_member(member.workspace.id, heir.id, "owner")
        self.services.workspaces.remove_member(member.workspace.id, member.user.id)

    def token(self, member: Member, kind: str = "cli", **options: Any) -> dict[str, str]:
        """Create another token of a member; return the headers with it alone."""
        return {
            "Authorization": f"Bearer {self.services.accounts.create_token(member.user.id, kind, **options)[1]}"
        }

    def put_secret(self, member: Member, name: str, value: str, scope: str = "workspace") -> None:
        self.services.secrets.put(member.workspace.id, member.user.id, name, value, scope)

    def log(self, subject_id: str, message: str, level: Any = "info", **fields: Any) -> None:
        """Add a line to the log of a run or a dataset."""
        self.services.logs.append(subject_id, [LogLine(message, level, **fields)])

    def configure(self, **changes: Any) -> None:
        """Change settings that the platform reads at each request."""
        self.services.config = replace(self.services.config, **changes)

    def operate(self, *arguments: str, stdin: str = "") -> dict[str, Any]:
        """Run `osmosis platform` on the platform's machine; return what it prints."""
        config, printed, errors = self.services.config, io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
            patch.setenv("OSMOSIS_HOME", str(config.home))
            patch.setenv("OSMOSIS_DATABASE_URL", config.database_url)
            patch.setattr("osmosis_ai.platform.clock.SystemClock", lambda: self.services.clock)
            patch.setattr("sys.stdin", io.StringIO(stdin))
            status = main(("--json", "platform", *arguments))
        assert status == 0, printed.getvalue() + errors.getvalue()
        done: dict[str, Any] = json.loads(printed.getvalue())
        return done

    def is_stored(self, text: str) -> bool:
        """Return whether a text is readable in a file of the platform."""
        files = (path for path in self.services.config.home.rglob("*") if path.is_file())
        return any(text.encode() in path.read_bytes() for path in files)

    def stored(self, prefix: str) -> list[str]:
        """Return the keys of what is stored below a prefix."""
        return sorted(self.services.blobs.keys(prefix))

    def store(self, key: str, content: bytes) -> Any:
        """Store a blob, or replace it."""
        return self.services.blobs.put(key, io.BytesIO(content))

    def member(
        self,
        name: str = "mara",
        *,
        workspace: str = "fern",
        identity: str | None = None,
        clone_url: str = CLONE_URL,
        role: Role = "owner",
        password: str | None = None,
    ) -> Member:
        """Add a user with a token; the workspace and its repository are made when they do not exist."""
        if (name, workspace, identity, role) == ("mara", "fern", None, "owner"):
            mara = self._mara(clone_url, password)
            if mara is not None:
                return mara
        accounts, workspaces = self.services.accounts, self.services.workspaces
        user = accounts.create_user(f"{name}@{workspace}.example", name=name.title(), password=password)
        existing = [found for found in workspaces.all() if found.name == workspace]
        home = existing[0] if existing else workspaces.create(workspace)
        workspaces.add_member(home.id, user.id, role)
        repository = workspaces.connect_repository(home.id, identity or f"{workspace}/agents", clone_url)
        token, plain = accounts.create_token(user.id, "cli", name="test")
        return Member(user, home, repository, plain, token.id)

    def _mara(self, clone_url: str, password: str | None) -> Member | None:
        """Mara, where the test's database came with her."""
        if not _MARA:
            return None
        with self.services.db.session() as session:
            user = session.get(DbUser, _MARA[0].user.id)
            if user is None:
                return None
            home = session.get_one(DbWorkspace, _MARA[0].workspace.id)
            repository = session.get_one(DbRepository, _MARA[0].repository.id)
        if clone_url != CLONE_URL:
            repository = self.services.workspaces.connect_repository(home.id, repository.identity, clone_url)
        if password is not None:
            self.services.accounts.set_password(user.email, password)
        return Member(user, home, repository, _MARA[0].token, _MARA[0].token_id)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def config(tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[PlatformConfig]:
    home = tmp_path / "platform"
    has_member = "member" in request.fixturenames and isinstance(clock, ManualClock)
    with platform_database(home, _let_mara_in if has_member else None) as url:
        yield PlatformConfig(home=home, database_url=url, port=8733)


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once() -> Iterator[None]:
    with statements_compiled_once():
        yield


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    hash_passwords_quickly(monkeypatch)


@pytest.fixture
def services(config: PlatformConfig, clock: ManualClock) -> Iterator[PlatformServices]:
    with pytest.MonkeyPatch.context() as patch:
        if config.database_url.startswith("sqlite:") and (config.home / "platform.db").exists():
            patch.setattr(Database, "migrate", lambda _: None)  # it was, before it was copied
        built = PlatformServices(config, clock=clock)
    yield built
    built.db.dispose()


@pytest.fixture
def world(services: PlatformServices) -> World:
    return World(services)


@pytest.fixture
def password() -> str | None:
    """Mara's, of tests that sign in."""
    return None


@pytest.fixture
def member(world: World) -> Member:
    """Mara, owner of the workspace ``fern`` with the repository ``fern/agents``."""
    return world.member()


@pytest.fixture
def stranger(world: World) -> Member:
    """Ivo, owner of another workspace."""
    return world.member("ivo", workspace="moss")


_applications: dict[object, FastAPI] = {}


def application(world: World, extend: Callable[[FastAPI], None] | None = None) -> FastAPI:
    """The application, speaking for ``world``: one for all tests, for building its routes takes longer than
    most of them; ``extend`` adds what some test needs."""
    config = world.services.config
    kind = (config.minimum_cli_version, config.recommended_cli_version, extend)
    if kind not in _applications:
        _applications[kind] = create_app(world.services)
        if extend is not None:
            extend(_applications[kind])
    _applications[kind].state.services = world.services
    return _applications[kind]


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """The event loop of all applications, in a thread of its own."""
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture
def client(world: World, portal: BlockingPortal) -> Iterator[OneHopClient]:
    """HTTP as a client sees it: exceptions become replies, nothing is followed.

    Nothing happens in the background: a test says when the platform prepares, counts and finalizes runs, and nothing
    tidies up a blob that a test stores before the row that names it.
    """
    services = world.services
    services.maintenance.start = lambda: None  # type: ignore[method-assign]
    services.platform_shards.start = lambda: None  # type: ignore[method-assign]
    with running(application(world), portal, services.config.base_url) as opened:
        yield opened


@pytest.fixture
def api(client: OneHopClient, member: Member) -> OneHopClient:
    """The client, speaking as ``member``."""
    client.headers.update(member.headers)
    return client


@pytest.fixture
def uploads(client: OneHopClient, world: World, member: Member) -> Uploads:
    """``member``, uploading datasets."""
    return Uploads(client, world, member.headers)


@pytest.fixture
def api_key(world: World, member: Member) -> str:
    return world.services.accounts.create_token(member.user.id, "api_key", name="notebook")[1]


def assert_flat_error(response: Any, status: int, code: str) -> dict[str, Any]:
    """Check a refusal and return its body."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    assert body["code"] == code
    assert isinstance(body["error"], str) and body["error"]
    assert "key" not in body, "clients read the name of a wrong argument from `field`"
    return body


def assert_openai_error(reply: Any, status: int, code: str | None) -> str:
    """Check a refusal of `/v1` and return its message."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    return str(error["message"])
