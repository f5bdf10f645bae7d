"""What runs need to exist: a repository with a rollout, a dataset, a submit, and somebody to wait for."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, update

from osmosis_ai.datasets import count_records
from osmosis_ai.platform.db.tables import DbDataset, DbRun, DbSample, new_id
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.queue.finalize import PlatformShards
from osmosis_ai.platform.server import local_host
from osmosis_ai.platform.worker.host import Host
from tests.lazily import needs
from tests.platform.conftest import Member, World, assert_flat_error
from tests.platform.gitsync.repositories import Source

ROOT = Path(__file__).parents[2]
ROLLOUT = ROOT / "rollouts" / "multiply"
ROWS = ROOT / "data" / "multiply.jsonl"


def git(directory: Path, *arguments: str) -> str:
    """Run Git as nobody in particular and return what it printed."""
    done = subprocess.run(
        ["git", "-c", "user.name=Mara", "-c", "user.email=mara@fern.example", *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


class Code:
    """A repository with the rollout ``multiply`` on its branch ``main``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        made, self.head = _first_commit()
        shutil.copytree(Path(made.name, "code"), path)

    def write(self, name: str, text: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def commit(self, message: str) -> str:
        git(self.path, "add", "-A")
        git(self.path, "commit", "-q", "--allow-empty", "-m", message)
        self.head = git(self.path, "rev-parse", "HEAD")
        return self.head


@cache
def _first_commit() -> tuple[TemporaryDirectory[str], str]:
    """The repository as every test begins with it, and its commit: made once, for that takes four processes."""
    directory = TemporaryDirectory()
    path = Path(directory.name, "code")
    shutil.copytree(ROLLOUT, path / "rollouts" / "multiply", ignore=shutil.ignore_patterns("__pycache__"))
    git(path, "init", "-q", "-b", "main", "--template=")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "first")
    return directory, git(path, "rev-parse", "HEAD")


def put_mirror(world: World, member: Member) -> None:
    """Give ``member``'s repository, which is a :class:`Code`, the mirror it has after its first fetch."""
    shutil.copytree(_first_mirror(), world.services.config.git_dir / f"{member.repository.id}.git")


@cache
def _first_mirror() -> Path:
    made = Path(_first_commit()[0].name)
    MirrorStore(made).sync(Source(str(made / "code"), id="first", identity="fern/agents"))
    (made / "first.git" / "osmosis-fetched").unlink()  # it is asked for news all the same
    return made / "first.git"


def read_commits_once(patch: pytest.MonkeyPatch) -> None:
    """Let a commit be read by the first test that asks: they begin with the same one, and it does not change."""
    for name in ("list_rollouts", "read_file"):
        patch.setattr(MirrorStore, name, _remembering(name))


@cache
def _remembering(name: str) -> Callable[..., Any]:
    read, known = getattr(MirrorStore, name), {}

    def remembered(mirrors: MirrorStore, repository: Any, *what: str) -> Any:
        if what not in known:
            known[what] = read(mirrors, repository, *what)
        return known[what]

    return remembered


def add_dataset(
    world: World,
    member: Member,
    name: str = "multiply",
    *,
    rows: list[dict[str, Any]] | None = None,
    file: Path | None = None,
    status: str = "uploaded",
    error: str | None = None,
    preview: list[dict[str, Any]] | None = None,
) -> DbDataset:
    """Add a dataset as if it had been uploaded and checked: rows, or a file; the repository's own rows by default."""
    if rows is None:
        file = file or ROWS
        content, extension, count = file.read_bytes(), file.suffix[1:], count_records(file)
    else:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        extension, count = "jsonl", len(rows)
    dataset_id = new_id("ds")
    key = f"datasets/{dataset_id}/{new_id('b')}.{extension}"
    info = world.store(key, content)
    assert info.sha256 == hashlib.sha256(content).hexdigest()
    ready = status == "uploaded"
    now = world.services.clock.now()
    dataset = DbDataset(
        id=dataset_id,
        workspace_id=member.workspace.id,
        name=name,
        status=status,
        extension=extension,
        file_size=info.size,
        row_count=count if ready else None,
        sha256=info.sha256 if ready else None,
        blob_key=key if ready else None,
        error=error,
        preview=preview,
        creator_id=member.user.id,
        created_at=now,
        updated_at=now,
    )
    with world.services.db.transaction() as session:
        session.add(dataset)
    return dataset


def submit_body(**changes: Any) -> dict[str, Any]:
    """Return a submit of the multiply agent with the built-in model; sections may be replaced or added."""
    body: dict[str, Any] = {
        "experiment_config": {
            "rollout": "multiply",
            "entrypoint": "main.py",
            "model_path": "osmosis/tiny",
            "dataset": "multiply",
        },
        "evaluation_config": {"limit": 3, "n": 2, "batch_size": 4},
    }
    return {**body, **changes}


@dataclass(frozen=True)
class Submits:
    """Submits of one kind of run over HTTP: ``body`` makes one, with what is to be different about it."""

    route: str
    body: Callable[..., dict[str, Any]]

    def taken(self, api: TestClient, **changes: Any) -> dict[str, Any]:
        """Submit, and return the reply; asked beforehand, the platform agrees."""
        if "training-runs" in self.route:
            needs("torch")  # without it no training run is accepted
        told = api.post(f"{self.route}/check", json=self.body(**changes))
        assert (told.status_code, told.json()["dry_run"]) == (200, True), told.text
        reply = api.post(self.route, json=self.body(**changes))
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def refused(self, api: TestClient, status: int, code: str, **changes: Any) -> dict[str, Any]:
        """Submit what must be refused, and return why; asked beforehand, the platform says the very same."""
        answer = assert_flat_error(api.post(self.route, json=self.body(**changes)), status, code)
        told = assert_flat_error(api.post(f"{self.route}/check", json=self.body(**changes)), status, code)
        assert told.pop("dry_run") is True and told == answer
        assert api.get(self.route).json()["total_count"] == 0, "a refused submit makes no run"
        return answer


def issue(body: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the one issue that a refusal has about ``key``."""
    found: list[dict[str, Any]] = [each for each in body["issues"] if each["key"] == key]
    assert len(found) == 1, body["issues"]
    return found[0]


def training_body(**changes: Any) -> dict[str, Any]:
    """Return a submit that trains the built-in model on the multiply agent; sections may be replaced or added."""
    body: dict[str, Any] = {
        "experiment_config": submit_body()["experiment_config"],
        "training_config": {"n_samples_per_prompt": 4, "rollout_batch_size": 8},
        "checkpoints_config": {"checkpoint_save_freq": 5},
    }
    return {**body, **changes}


Samples = dict[tuple[int, int], dict[str, Any]]
"""How attempts ended, by (row_index, run_index)."""


def end_with(world: World, run_id: str, samples: Samples, status: str = "finished") -> None:
    """Let a run end with these samples, as its worker would."""
    columns = ("reward", "boundary", "error_type")
    rows = [
        {
            "run_id": run_id,
            "row_index": row,
            "run_index": attempt,
            "source_row_index": row,
            "rollout_id": f"r{row}-{attempt}",
            "duration_ms": 1.0,
            "row_digest": f"{row + 1:016x}" * 2,
            "status": sample["status"],
            **{name: sample.get(name) for name in columns},
        }
        for (row, attempt), sample in samples.items()
    ]
    with world.services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == run_id).values(status=status))
        if rows:
            session.execute(insert(DbSample), rows)


def logged(api: TestClient, path: str, headers: dict[str, str] | None = None) -> list[str]:
    """Return the messages in the log of a run or dataset."""
    asked = {"limit": 200, "direction": "newer"}
    found = api.get(f"{path}/logs", params=asked, headers=headers).json()
    return [line["message"] for line in found["logs"]]


def experiment(**changes: Any) -> dict[str, Any]:
    """Return an experiment section with some keys changed."""
    return {**submit_body()["experiment_config"], **changes}


def wait_until(condition: Callable[[], Any], *, within_s: float = 1200.0) -> Any:
    """Return what ``condition`` gives as soon as that is true; other processes are at work meanwhile.

    The limit ends a test that hangs; it is no measure of how fast a machine that does much else has to be.
    """
    deadline, pause = time.monotonic() + within_s, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(0.02)
    return found


@contextmanager
def executing(world: World, **settings: Any) -> Iterator[Host]:
    """Execute runs on this machine, by real processes, while the block lasts; ``settings`` replace those of the platform."""
    config = replace(world.services.config, **settings)
    PlatformShards.start(world.services.platform_shards)
    try:
        with local_host(world.services, config) as host:
            yield host
    finally:
        world.services.platform_shards.close()
