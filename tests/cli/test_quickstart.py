"""`osmosis quickstart`: each step only where it is needed, every answer one's own, and nothing half done."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.services import workspaces
from osmosis_ai.services.quickstart import Quickstart, run_quickstart
from osmosis_ai.services.workspaces import checked_clone_url, clone_into, github_urls
from tests.cli.maze import Maze, replies, sent
from tests.cli.terminal import terminal
from tests.logins import FERN, MARA, save_login, use_platform
from tests.warm_osmosis import warm_osmosis
from tests.workspace.builders import git, make_repository

LAB = {"id": "ws_1", "name": "fern-lab", "role": "admin", "connected_repo": {"repo_full_name": "fern/maze"}}
BARE = {"id": "ws_2", "name": "Birch"}
READY = {"repo": {"connected": True, "full_name": "fern/maze"}, "billing_ready": True, "completed": True}
NOT_YET = {"repo": {"connected": False, "full_name": None}, "billing_ready": False, "completed": False}


class Answers:
    """A guide whose user gives these answers, in order."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.told: list[str] = []
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.logins = 0

    def log_in(self) -> None:
        self.logins += 1
        save_login()

    def choose(self, question: str, options: Sequence[str]) -> int:
        self.asked.append((question, tuple(options)))
        return list(options).index(self._next())

    def ask(self, question: str) -> str:
        self.asked.append((question, ()))
        return self._next()

    def tell(self, sentence: str) -> None:
        self.told.append(sentence)

    def warn(self, message: str, code: str | None = None) -> None:
        self.told.append(message)

    def _next(self) -> str:
        if not self.answers:
            raise KeyboardInterrupt
        return self.answers.pop(0)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Anywhere:
    """A directory that is no checkout, and a platform."""

    def __init__(self, router: respx.MockRouter, directory: Path) -> None:
        self.router = router
        self.directory = directory
        self.clock = Clock()
        self.workspaces = router.get(f"{FERN}/api/cli/workspaces").respond(json={"workspaces": [LAB]})
        self.status = router.get(f"{FERN}/api/cli/quickstart").respond(json=READY)
        self.choice = router.post(f"{FERN}/api/cli/quickstart").respond(204)

    def go(self, guide: Answers, workspace: str | None = None) -> Quickstart:
        return run_quickstart(
            guide,
            workspace=workspace,
            start=self.directory,
            sleep=self.clock.sleep,
            clock=self.clock,
        )


@pytest.fixture
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Anywhere]:
    directory = tmp_path / "projects"
    directory.mkdir()
    monkeypatch.chdir(directory)
    use_platform(monkeypatch)
    save_login()
    with respx.mock(assert_all_called=False) as router:
        yield Anywhere(router, directory)


@pytest.fixture
def cloned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What was cloned where; each clone is an empty repository."""
    made: list[tuple[str, Path]] = []

    def clone(url: str, target: Path) -> Path:
        made.append((url, target))
        return make_repository(target)

    monkeypatch.setattr("osmosis_ai.services.quickstart.clone_into", clone)
    return made


def test_the_first_time_the_repository_is_cloned_and_the_second_time_it_is_known(
    anywhere: Anywhere, cloned: list[tuple[str, Path]]
) -> None:
    done = anywhere.go(Answers("SSH", "Evaluate an agent", "multiply numbers"))
    target = anywhere.directory / "maze"
    assert cloned == [("git@github.com:fern/maze.git", target)]
    assert sent(anywhere.choice) == {"organizationId": "ws_1", "intent": "eval"}
    assert anywhere.status.calls.last.request.url.params["organizationId"] == "ws_1"
    assert done.resource() == {
        "workspace": {"id": "ws_1", "name": "fern-lab", "role": "admin"},
        "repo": {"connected": True, "full_name": "fern/maze"},
        "workspace_directory": str(target),
        "billing_ready": True,
        "previously_completed": True,
        "intent": "eval",
        "task": "multiply numbers",
        "agent_prompt": done.agent_prompt,
        "completion_recorded": True,
    }
    assert str(target) in done.agent_prompt and "What I want: multiply numbers" in done.agent_prompt
    again = anywhere.go(Answers("Look around", ""))
    assert (len(cloned), again.directory, again.task) == (1, target, "")
    assert "Ask me what the agent should do" in again.agent_prompt


def test_a_repository_is_waited_for_and_a_platform_that_is_away_with_it(
    anywhere: Anywhere, cloned: list[tuple[str, Path]]
) -> None:
    away = [httpx.Response(503)] * 20
    anywhere.status.mock(side_effect=[*replies(NOT_YET, {}, {"repo": None}), *away, *replies(READY)])
    guide = Answers("SSH", "Look around", "")
    with respx_tries_once():
        done = anywhere.go(guide)
    assert done.repo.connected and len(cloned) == 1
    assert guide.told[0].startswith("Connect a repository to the workspace fern-lab")
    assert sum("Connect a repository" in told for told in guide.told) == 1


@contextmanager
def respx_tries_once() -> Iterator[None]:
    """Let stamina's waits take no time."""
    import stamina

    with stamina.set_testing(True, attempts=100, cap=True):
        yield


def test_the_wait_for_a_repository_ends(anywhere: Anywhere) -> None:
    anywhere.status.respond(json=NOT_YET)
    with pytest.raises(OsmosisError, match="still has no repository"):
        anywhere.go(Answers())
    assert anywhere.clock.now == 900 and anywhere.status.call_count == 181


def test_who_is_not_logged_in_or_no_longer_logs_in_on_the_way(
    anywhere: Anywhere, cloned: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = httpx.Response(401, json={"error": "no", "code": "TOKEN_EXPIRED"})
    anywhere.workspaces.mock(side_effect=[expired, *replies({"workspaces": [LAB]})])
    anywhere.status.mock(side_effect=[expired, *replies(READY)])
    guide = Answers("SSH", "Look around", "")
    anywhere.go(guide)
    assert guide.logins == 2
    monkeypatch.setenv("OSMOSIS_TOKEN", "osm_u_other")
    monkeypatch.setenv("OSMOSIS_TOKEN_PLATFORM_URL", FERN)
    anywhere.workspaces.mock(return_value=expired)
    guide = Answers()
    with pytest.raises(OsmosisError) as refused:
        anywhere.go(guide)
    assert (refused.value.code, guide.logins) == ("AUTH_REQUIRED", 0)


@pytest.mark.parametrize("mode", ["--json", "--plain", None])
def test_without_a_person_nothing_is_asked_and_no_platform_called(maze: Maze, mode: str | None) -> None:
    outcome = maze.osmosis("quickstart", *([mode] if mode else []))
    assert (outcome.status, outcome.out) == (1, "") and not maze.router.calls
    if mode == "--json":
        assert outcome.error["code"] == "INTERACTIVE_REQUIRED"


# Cloning


@pytest.mark.parametrize("name", ["fern", "fern/maze/x", "-o/maze", "fern/..", "", "fern/ma ze", "fern/m\nz"])
def test_what_is_no_name_of_a_repository_is_not_cloned(name: str) -> None:
    with pytest.raises(OsmosisError, match="cannot be one"):
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
def test_an_address_of_a_platform_is_looked_at_before_git_sees_it(url: str, afar: bool, nearby: bool) -> None:
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


def test_a_clone_is_whole_and_a_second_one_is_the_first(upstream: Path, tmp_path: Path) -> None:
    target = tmp_path / "here"
    assert clone_into(str(upstream), target) == target
    assert (target / "AGENTS.md").read_text() == "hello\n"
    assert git(target, "remote", "get-url", "origin") == str(upstream)
    (target / "AGENTS.md").write_text("mine\n")
    assert clone_into(str(upstream), target) == target
    assert (target / "AGENTS.md").read_text() == "mine\n"


def test_what_cannot_be_cloned_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="Git cannot clone") as told:
        clone_into(str(tmp_path / "nowhere"), tmp_path / "here")
    assert told.value.hint is not None and "git clone" in told.value.hint
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_clone_of_it_is_left_alone(upstream: Path, tmp_path: Path) -> None:
    for name in ("folder", "repository", "file"):
        (tmp_path / name).mkdir() if name == "folder" else None
    make_repository(tmp_path / "repository")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("folder", "repository", "file", "link"):
        with pytest.raises(ConflictError, match="is there already"):
            clone_into(str(upstream), tmp_path / name)


def test_git_is_given_no_other_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upstream: Path
) -> None:
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


# On a terminal


class _Platform(BaseHTTPRequestHandler):
    clone_url = ""
    posted: list[Any]

    def do_GET(self) -> None:
        ready = {**READY, "repo": {**READY["repo"], "clone_url": self.clone_url}}  # type: ignore[dict-item]
        self._answer(
            {
                "/api/cli/workspaces": {"workspaces": [LAB, BARE]},
                "/api/cli/verify": {"user": MARA},
                "/api/cli/quickstart": ready,
            }[self.path.partition("?")[0]]
        )

    def do_POST(self) -> None:
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer({"completed": True})

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def platform(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Platform]]:
    """A platform on this machine, of which one is logged in, and a directory to work in."""
    handler = type("Handler", (_Platform,), {"clone_url": str(upstream), "posted": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", url)
    save_login(url)
    (tmp_path / "projects").mkdir()
    monkeypatch.chdir(tmp_path / "projects")
    try:
        yield handler
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.e2e
def test_on_a_terminal_one_answers_and_gets_a_checkout_and_a_prompt(
    platform: type[_Platform], tmp_path: Path
) -> None:
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
    assert platform.posted == [{"organizationId": "ws_1", "intent": "eval"}]


@pytest.mark.e2e
@pytest.mark.parametrize("key", ["\x1b", "\x03"])
def test_turning_away_from_a_question_ends_with_130(
    platform: type[_Platform], tmp_path: Path, key: str
) -> None:
    with terminal("quickstart", program=warm_osmosis()) as screen:
        screen.wait_for("1-2: ")
        screen.type(key)
        screen.wait_for("Interrupted.")
        assert screen.end() == 130
    assert list((tmp_path / "projects").iterdir()) == [] and platform.posted == []
