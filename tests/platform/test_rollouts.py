from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.gitsync.mirror import MirrorStore
from tests.platform.conftest import Member, World, assert_flat_error
from tests.platform.gitsync.repositories import Repository

PATH = "/api/cli/rollouts"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "work")
    made.write("rollouts/multiply/main.py")
    made.write("rollouts/multiply/pyproject.toml", '[project]\ndescription = "Multiplies."\n')
    made.write("rollouts/add/main.py")
    made.commit()
    return made


@pytest.fixture
def member(world: World, repository: Repository) -> Member:
    return world.member(clone_url=str(repository.root))


@pytest.fixture(autouse=True)
def always_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test pushes is seen at once."""
    monkeypatch.setattr("osmosis_ai.platform.rollouts.FRESH_S", 0.0)


def _names(api: TestClient, **query: Any) -> dict[str, bool]:
    return {row["name"]: row["is_active"] for row in api.get(PATH, params=query).json()["rollouts"]}


def test_listing_reads_the_rollouts_of_the_repository(
    api: TestClient, repository: Repository, member: Member
) -> None:
    sha = repository.git("rev-parse", "HEAD")
    listed = api.get(PATH).json()

    ids = [row.pop("id") for row in listed["rollouts"]]
    assert all(rollout_id.startswith("rol_") for rollout_id in ids)
    common = {
        "is_active": True,
        "last_synced_commit_sha": sha,
        "last_synced_at": "2026-11-02T09:30:00.000Z",
        "repo_full_name": "fern/agents",
        "created_at": "2026-11-02T09:30:00.000Z",
    }
    assert listed == {
        "rollouts": [
            {"name": "add", "description": None, **common},
            {"name": "multiply", "description": "Multiplies.", **common},
        ],
        "total_count": 2,
        "has_more": False,
        "next_offset": None,
    }
    page = api.get(PATH, params={"limit": 1, "offset": 1}).json()
    assert [row["id"] for row in page["rollouts"]] == ids[1:]


def test_a_push_is_seen_and_a_rollout_that_is_gone_becomes_inactive_and_keeps_its_id(
    api: TestClient, repository: Repository
) -> None:
    before = {row["name"]: row["id"] for row in api.get(PATH).json()["rollouts"]}
    repository.git("mv", "rollouts/add", "rollouts/sum")
    repository.commit()

    assert _names(api) == {"multiply": True, "sum": True, "add": False}
    repository.git("mv", "rollouts/sum", "rollouts/add")
    repository.commit()
    after = {row["name"]: row["id"] for row in api.get(PATH).json()["rollouts"] if row["is_active"]}
    assert after == before


def test_a_branch_shows_what_its_head_has(api: TestClient, repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "exp")
    repository.write("rollouts/fresh/main.py")
    repository.git("rm", "-r", "--quiet", "rollouts/add")
    sha = repository.commit()
    repository.git("checkout", "--quiet", "main")

    listed = api.get(PATH, params={"branch": "exp"}).json()

    assert [row["name"] for row in listed["rollouts"]] == ["fresh", "multiply"]
    assert {row["last_synced_commit_sha"] for row in listed["rollouts"]} == {sha}
    assert (listed["total_count"], listed["next_offset"]) == (2, None)
    again = api.get(PATH, params={"branch": "exp", "limit": 1}).json()
    assert again["rollouts"] == listed["rollouts"][:1]
    assert (again["has_more"], again["next_offset"]) == (True, 1)
    assert _names(api) == {"add": True, "multiply": True, "fresh": False}


def test_an_unknown_branch_is_not_found_with_a_suggestion(api: TestClient, repository: Repository) -> None:
    repository.git("branch", "experiment")

    error = assert_flat_error(api.get(PATH, params={"branch": "experimnet"}), 404, "NOT_FOUND")
    assert "there is no branch 'experimnet' in fern/agents; did you mean experiment?" in error["error"]
    assert error["field"] == "experiment.branch"
    for branch in ("--upload-pack=id", "../x", "main^", "ä" * 255):
        assert_flat_error(api.get(PATH, params={"branch": branch}), 404, "NOT_FOUND")
    assert_flat_error(api.get(PATH, params={"branch": "x" * 300}), 400, "VALIDATION_FAILED")


def test_when_a_sync_fails_what_was_known_is_listed_with_the_reason(
    api: TestClient, repository: Repository, world: World
) -> None:
    api.get(PATH)
    (repository.root / ".git").rename(repository.root / "moved")

    listed = api.get(PATH).json()
    assert [row["name"] for row in listed["rollouts"]] == ["add", "multiply"]
    assert "fern/agents cannot be fetched from" in listed["sync_error"]
    assert sync_error(world) == listed["sync_error"]
    assert _names(api, branch="main") == {"add": True, "multiply": True}

    (repository.root / "moved").rename(repository.root / ".git")
    assert "sync_error" not in api.get(PATH).json()
    assert sync_error(world) is None


def test_a_repository_that_never_could_be_fetched_is_an_error_in_gits_words(
    api: TestClient, repository: Repository
) -> None:
    (repository.root / ".git").rename(repository.root / "moved")

    for query in ({}, {"branch": "main"}):
        error = assert_flat_error(api.get(PATH, params=query), 424, "GIT_SYNC_FAILED")
        assert "does not appear to be a git repository" in error["error"]


def test_another_workspace_sees_only_its_own(
    api: TestClient, world: World, repository: Repository, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "other")
    other.write("rollouts/theirs/main.py")
    other.commit()
    stranger = world.member("ivo", workspace="moss", clone_url=str(other.root))

    assert _names(api) == {"add": True, "multiply": True}
    rows = api.get(PATH, headers=stranger.headers).json()["rollouts"]
    assert [row["name"] for row in rows] == ["theirs"]


class _SlowMirrors(MirrorStore):
    """A repository whose host answers only after an event."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked = 0
        self.was_asked = threading.Event()
        self.answer = threading.Event()

    def sync(self, repository: Any, *, max_age_s: float = 0.0) -> str | None:
        self.asked += 1
        self.was_asked.set()
        assert self.answer.wait(300)
        return super().sync(repository, max_age_s=max_age_s)


def test_a_slow_sync_is_shared_and_does_not_hold_up_the_list_for_ever(
    api: TestClient, world: World, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.get(PATH)
    mirrors = _SlowMirrors(world.services.mirrors.root)
    monkeypatch.setattr(world.services.rollouts, "_mirrors", mirrors)
    monkeypatch.setattr("osmosis_ai.platform.routes.rollouts.SYNC_WAIT_S", 0.01)

    for _ in range(3):
        listed = api.get(PATH).json()
        assert [row["name"] for row in listed["rollouts"]] == ["add", "multiply"]
        assert "still being fetched" in listed["sync_error"]
    assert mirrors.was_asked.wait(300)
    assert mirrors.asked == 1

    running = world.services.rollouts.start_sync(member.repository.id)
    mirrors.answer.set()
    assert running.result(timeout=300).sync_error is None

    ended: Future[None] = Future()
    ended.set_result(None)
    monkeypatch.setattr(world.services.rollouts, "_threads", SimpleNamespace(submit=lambda *_, **__: ended))
    for _ in range(2):  # a sync that ends at once is not waited for
        assert world.services.rollouts.start_sync("rep_any") is ended  # type: ignore[comparison-overlap]
    monkeypatch.undo()


def sync_error(world: World) -> str | None:
    """Return why the operator's list says that the repository could not be fetched."""
    [repository] = world.operate("repository", "list")["items"]
    error: str | None = repository["sync_error"]
    return error
