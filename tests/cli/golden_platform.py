"""Cases of `osmosis platform`: a self-hosted platform with fixed users, tokens and repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Literal

from osmosis_ai.platform.accounts import bootstrap
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db import tables
from osmosis_ai.platform.offboarding import Offboarding
from osmosis_ai.platform.process_state import PlatformProcess
from osmosis_ai.platform.services import PlatformServices
from tests.cli.golden_cases import Case, together
from tests.cli.maze import Maze
from tests.logins import hash_passwords_quickly
from tests.platform.databases import put_migrated_database

NOW = datetime(2026, 10, 2, 7, tzinfo=timezone.utc)
AGENTS = "https://git.fern.example/agents.git"
TOKEN_ID = "tok_0123456789abcdef01234567"
WORKER_TOKEN_ID = "wkt_0123456789abcdef01234567"
PROCESS = PlatformProcess(
    pid=4711,
    started_at="2026-10-02T07:00:00Z",
    version="0.3.77",
    url="https://osmosis.fern.example",
    local_url="https://osmosis.fern.example",
    blobs="the bucket 'agents' at https://s3.fern.example",
)


def here(maze: Maze) -> None:
    """Write the platform's files and stop its clock."""
    hash_passwords_quickly(maze.patch)
    maze.patch.setattr(SystemClock, "now", lambda _: NOW)
    for path, content in _home().items():
        (maze.scratch / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (maze.scratch / path).write_bytes(content)
    maze.patch.setenv("OSMOSIS_HOME", str(maze.scratch / "platform"))


@cache
def _home() -> dict[Path, bytes]:
    """Return the files of a platform with two users, two workspaces, a token and a repository."""
    with TemporaryDirectory() as directory:
        home = Path(directory) / "platform"
        put_migrated_database(home)
        services = PlatformServices(PlatformConfig(home=home))
        _add_accounts(services)
        services.db.dispose()
        return {path.relative_to(directory): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def _add_accounts(services: PlatformServices) -> None:
    bootstrap(services.db, services.clock)
    accounts, workspaces = services.accounts, services.workspaces
    mara = accounts.create_user("mara@fern.example", name="Mara")
    accounts.create_user("tom@fern.example")
    fern = workspaces.create("fern")
    workspaces.add_member(fern.id, mara.id, "owner")
    token, _ = accounts.create_token(mara.id, name="laptop")
    workspaces.connect_repository(fern.id, "fern/agents", AGENTS, also_known_as=[], default_branch=None)
    Offboarding(services.db, services.clock, accounts).disable("tom@fern.example")
    with services.db.transaction() as session:
        row = session.get(tables.DbToken, token.id)
        assert row is not None
        row.id = TOKEN_ID
    made, _ = services.worker_access.create_token("gpu", name="basement", workspace_ids=[fern.id])
    with services.db.transaction() as session:
        session.get_one(tables.DbWorkerToken, made.id).id = WORKER_TOKEN_ID


def runs(maze: Maze) -> None:
    """Pretend that the platform is running."""
    maze.patch.setattr("osmosis_ai.platform.process_state.running_platform", lambda home: PROCESS)
    maze.patch.setattr("osmosis_ai.platform.process_state.stop_platform", lambda home, timeout_s: PROCESS)
    maze.router.get("https://osmosis.fern.example/health").respond(json={})
    checks = {"database": "ok", "migrations": "ok", "blobs": "ok"}
    maze.router.get("https://osmosis.fern.example/ready").respond(json={"checks": checks})


def starts(maze: Maze) -> None:
    """Start the platform for the first time and stop it at once."""

    @contextmanager
    def run_platform(config: PlatformConfig) -> Iterator[Any]:
        first = SimpleNamespace(email="admin@localhost", password="moss-fern-7", workspace_name="default")
        yield SimpleNamespace(config=config, process=PROCESS, first_login=first, wait=lambda: None)

    maze.patch.setattr("osmosis_ai.platform.server.run_platform", run_platform)


def worker_finishes_run(maze: Maze) -> None:
    """Stop the worker after one run."""
    from osmosis_ai.platform.worker.host import ExecutedShard, HostOptions

    def host_runs(
        address: str, token: str, options: HostOptions, *, say: Callable[[str], None]
    ) -> list[ExecutedShard]:
        say("executing the run amber-fox-12 (claim 1)")
        say("released the run amber-fox-12")
        return [ExecutedShard("run_0123456789abcdef01234567", "amber-fox-12", 1, "left")]

    token = maze.scratch / "gpu.token"
    token.write_text("osmw_canary")
    token.chmod(0o600)
    maze.patch.setattr("osmosis_ai.platform.worker.host.host_runs", host_runs)


def new_home(maze: Maze) -> None:
    maze.patch.setenv("OSMOSIS_HOME", str(maze.scratch / "another"))


def backed_up(maze: Maze) -> None:
    from osmosis_ai.platform.backup import create_backup
    from osmosis_ai.platform.config import from_environment

    create_backup(from_environment(), maze.scratch / "kept.tar", overwrite=True)


def at(command: str, *more: Callable[[Maze], Any], screen: Literal["rich", "plain"] | None = None) -> Case:
    return Case(f"platform {command}", together(here, *more), screen=screen)


CASES = (
    at("start --port 8733", starts, screen="rich"),
    at("status", runs, screen="rich"),
    at("stop", runs),
    at("backup kept.tar --force"),
    at("restore ../scratch/kept.tar", backed_up, new_home),
    at(f"connect {AGENTS} --identity fern/agents --workspace fern --branch main --no-check"),
    at("disconnect fern/agents --yes"),
    at("repository list"),
    at("member add fern tom@fern.example --role admin"),
    at("member remove fern tom@fern.example --yes"),
    at("secret-key rotate"),
    at("token create --user mara@fern.example --name ci", screen="plain"),
    at("token list"),
    at(f"token revoke {TOKEN_ID} --yes"),
    at(
        "worker --url https://osmosis.fern.example --pool gpu --token-file ../scratch/gpu.token --once",
        worker_finishes_run,
    ),
    at("worker-token create --pool gpu --name attic"),
    at("worker-token create --pool gpu --workspace fern --output gpu-worker.token --force"),
    at("worker-token list"),
    at(f"worker-token revoke {WORKER_TOKEN_ID} --yes"),
    at("user add ada@fern.example --name Ada --workspace fern"),
    at("user list"),
    at("user password mara@fern.example"),
    at("user disable mara@fern.example --yes"),
    at("user enable tom@fern.example"),
    at("user remove tom@fern.example --yes"),
    at("workspace add moss --owner mara@fern.example"),
    at("workspace list"),
)
