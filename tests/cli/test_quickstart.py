"""`osmosis quickstart`: each step only where it is needed, every answer one's own, and nothing half done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.services import workspaces
from osmosis_ai.services.workspaces import checked_clone_url, clone_into, github_urls
from tests.cli.golden_accounts import LAB
from tests.cli.maze import Maze, replies, sent
from tests.cli.terminal import terminal
from tests.logins import FERN, MARA, NEW_TOKEN, save_login
from tests.platform.worker.fake_platform import serving
from tests.warm_osmosis import warm_osmosis
from tests.workspace.builders import git, make_repository

BARE = {"id": "ws_2", "name": "Birch"}
REPOSITORY = {"connected": True, "full_name": "fern/maze"}
READY = {"repo": REPOSITORY, "billing_ready": True, "completed": True}
EXPIRED = httpx.Response(401, json={"error": "no", "code": "TOKEN_EXPIRED"})


def ready_to_clone(url: str) -> dict[str, Any]:
    return {**READY, "repo": {**REPOSITORY, "clone_url": url}}


def be_at_a_terminal(maze: Maze, *answers: str, log_in: Callable[..., Any]) -> None:
    """Answer the questions with these lines, in an empty directory; a repository is not cloned but created."""
    typed = iter(answers)
    for name, replaced in {
        "cli.output.formats.is_terminal": lambda _: True,
        "cli.output.context.OutputContext.ask_shown": lambda *_: next(typed),
        "cli.auth.log_in_with_device": log_in,
        "cli.quickstart._copy": lambda _: False,
        "services.quickstart.POLL_S": 0.0,
        "services.quickstart.clone_into": lambda _, target: make_repository(target),
    }.items():
        maze.patch.setattr(f"osmosis_ai.{name}", replaced)
    maze.scratch.mkdir()
    maze.patch.chdir(maze.scratch)


def test_waits_for_a_repository(maze: Maze) -> None:
    """Also while the platform is unavailable, and with a new login after the session has expired."""
    logins: list[str] = []
    login = SimpleNamespace(user=SimpleNamespace(email="mara@fern.example"))
    log_in = lambda *_, **__: logins.append(save_login() or "") or login  # noqa: E731
    be_at_a_terminal(maze, "SSH", "Look around", "", log_in=log_in)
    maze.get("/workspaces").mock(side_effect=[EXPIRED, *replies({"workspaces": [LAB]}) * 2])
    unconnected = {**READY, "repo": {"connected": False, "full_name": None}}
    away = [httpx.Response(503)] * 3
    looks = [EXPIRED, *replies(unconnected, {}, {"repo": None}), *away, *replies(READY)]
    maze.get("/quickstart").mock(side_effect=looks)
    chosen = maze.post("/quickstart").respond(204)
    done = maze.osmosis("quickstart")
    assert done.status == 0, done.err
    assert (done.err.count("Connect a repository"), len(logins)) == (1, 2)
    assert sent(chosen) == {"organizationId": "ws_1", "intent": "explore"}


def test_token_in_environment(maze: Maze) -> None:
    """It is used; if it is refused, no login is started."""
    be_at_a_terminal(maze, "Look around", "", log_in=lambda *_, **__: pytest.fail("a login was started"))
    maze.patch.setenv("OSMOSIS_TOKEN", NEW_TOKEN)
    maze.patch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    workspaces = maze.get("/workspaces").mock(side_effect=[EXPIRED, *replies({"workspaces": [LAB]}) * 2])
    maze.get("/quickstart").respond(json=ready_to_clone("https://git.example/maze"))
    chosen = maze.post("/quickstart").respond(204)
    refused = maze.osmosis("quickstart")
    assert refused.status == 1 and "OSMOSIS_TOKEN has expired." in refused.err and not chosen.called
    done = maze.osmosis("--platform", FERN, "quickstart")
    cloned = str(maze.scratch / "maze")
    assert done.status == 0 and f"Ready: {cloned}" in done.out, done.err
    assert json.loads(Path("~/.config/osmosis/platforms.json").expanduser().read_text()) == {cloned: FERN}
    sent_with = {call.request.headers["authorization"] for call in (*workspaces.calls, *chosen.calls)}
    assert sent_with == {f"Bearer {NEW_TOKEN}"}


@pytest.mark.parametrize("mode", ["--json", "--plain", None])
def test_not_interactive(maze: Maze, mode: str | None) -> None:
    outcome = maze.osmosis("quickstart", *([mode] if mode else []))
    assert (outcome.status, outcome.out) == (1, "") and not maze.router.calls
    if mode == "--json":
        assert outcome.error["code"] == "INTERACTIVE_REQUIRED"


@pytest.mark.parametrize("name", ["fern", "fern/maze/x", "-o/maze", "fern/..", "", "fern/ma ze", "fern/m\nz"])
def test_invalid_repository_names(name: str) -> None:
    with pytest.raises(OsmosisError, match="is invalid"):
        github_urls(name)


@pytest.mark.parametrize(
    ("url", "afar", "nearby"),
    [
        ("https://git.fern.example/lab/maze.git", True, True),
        ("ssh://git@git.fern.example/lab/maze.git", True, True),
        ("git@git.fern.example:lab/maze.git", True, True),
        ("http://git.fern.example/lab/maze.git", False, True),
        ("/srv/git/maze", False, True),
        ("file:///srv/git/maze", False, True),
        ("git://git.fern.example/maze", False, False),
        ("ext::sh -c touch% /tmp/x", False, False),
        ("--upload-pack=touch /tmp/x", False, False),
        ("-oProxyCommand=x:y", False, False),
        ("../maze", False, False),
        ("", False, False),
    ],
)
def test_clone_urls(url: str, afar: bool, nearby: bool) -> None:
    for is_near, allowed in ((False, afar), (True, nearby)):
        if allowed:
            assert checked_clone_url(url, nearby=is_near) == url
        else:
            with pytest.raises(OsmosisError):
                checked_clone_url(url, nearby=is_near)


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository with a hook that would run, were hooks to run."""
    root = make_repository(tmp_path / "upstream")
    (root / "AGENTS.md").write_text("hello\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "first")
    return root


def test_clone(upstream: Path, tmp_path: Path) -> None:
    target = tmp_path / "here"
    assert clone_into(str(upstream), target) == target
    assert (target / "AGENTS.md").read_text() == "hello\n"
    assert git(target, "remote", "get-url", "origin") == str(upstream)
    (target / "AGENTS.md").write_text("mine\n")
    assert clone_into(str(upstream), target) == target
    assert (target / "AGENTS.md").read_text() == "mine\n"

    (tmp_path / "folder").mkdir()
    make_repository(tmp_path / "repository")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("folder", "repository", "file", "link"):
        with pytest.raises(ConflictError, match="already exists and is not a clone of"):
            clone_into(str(upstream), tmp_path / name)


def test_failed_clone(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="Git cannot clone") as told:
        clone_into(str(tmp_path / "nowhere"), tmp_path / "here")
    assert told.value.hint is not None and "git clone" in told.value.hint
    assert list(tmp_path.iterdir()) == []


def test_git_transports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream: Path) -> None:
    given: list[Sequence[str]] = []
    run_git = workspaces.run_git
    monkeypatch.setattr(
        workspaces, "run_git", lambda words, **more: given.append(words) or run_git(words, **more)
    )
    with pytest.raises(OsmosisError):
        clone_into("ext::sh -c touch% canary", tmp_path / "here")
    clone_into(str(upstream), tmp_path / "there")
    assert not list(tmp_path.rglob("canary"))
    assert all(words[words.index("--") - 1] == "--no-recurse-submodules" for words in given)


@pytest.fixture
def posted(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Log in to a platform on this machine, work in an empty directory; gives what is posted."""
    replies = {
        "workspaces": {"workspaces": [LAB, BARE]},
        "verify": {"user": MARA},
        "quickstart": ready_to_clone(str(upstream)),
    }
    posted: list[Any] = []

    async def reply(request: Request) -> JSONResponse:
        if request.method == "POST":
            posted.append(await request.json())
        return JSONResponse(replies[request.path_params["name"]])

    with serving(Starlette(routes=[Route("/api/cli/{name}", reply, methods=["GET", "POST"])])) as url:
        monkeypatch.setenv("OSMOSIS_PLATFORM_URL", url)
        save_login(url)
        (tmp_path / "projects").mkdir()
        monkeypatch.chdir(tmp_path / "projects")
        yield posted


@pytest.mark.e2e
def test_on_a_terminal(posted: list[Any], tmp_path: Path) -> None:
    with terminal("quickstart", program=warm_osmosis()) as screen:
        screen.wait_for("1-2: ")
        screen.type("7\r")  # no such number: asked again
        screen.wait_for("1-2: 7\n1-2: ")
        screen.type("fern-lax\x7fb\r")
        screen.wait_for("1-4: ")
        screen.type("2\r")
        screen.wait_for("(Enter to decide later): ")
        screen.type("walk the maze\r")
        screen.wait_for("osmosis rollout init NAME")
        assert screen.end() == 0
    assert "Ready: " in screen.shown and "What I want: walk the maze" in screen.shown
    assert (tmp_path / "projects" / "maze" / "AGENTS.md").exists()
    assert posted == [{"organizationId": "ws_1", "intent": "eval"}]


@pytest.mark.e2e
@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_cancelled_question(posted: list[Any], tmp_path: Path, key: str) -> None:
    with terminal("quickstart", program=warm_osmosis()) as screen:
        screen.wait_for("1-2: ")
        screen.type(key)
        screen.wait_for("Interrupted.")
        assert screen.end() == 130
    assert list((tmp_path / "projects").iterdir()) == [] and posted == []
