"""A workspace directory whose platform answers what a test has written down, and the command line in it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx
import stamina

from osmosis_ai.cli.main import main
from osmosis_ai.workspace.layout import WorkspaceDirectory
from tests.cli.outcome import Outcome
from tests.logins import FERN, IDENTITY, TOKEN, make_checkout, save_login, use_platform

_POLLING = ("datasets", "runs")


_LISTS = {
    "/eval-runs": "eval_runs",
    "/training-runs": "training_runs",
    "/datasets": "datasets",
    "/models/lora": "models",
    "/benchmarks": "benchmarks",
    "/benchmark-runs": "benchmark_runs",
    "/rollout-servers": "rollout_servers",
}


class Maze:
    """The workspace directory, logged in, with `fern/maze` as its repository.

    Attributes:
        scratch: an empty directory beside it.
        patch, stack: undone and closed with the test.
    """

    def __init__(
        self,
        workspace: WorkspaceDirectory,
        router: respx.MockRouter,
        capsys: pytest.CaptureFixture[str],
        patch: pytest.MonkeyPatch,
        stack: ExitStack,
    ) -> None:
        self.workspace = workspace
        self.router = router
        self.scratch = workspace.root.parent / "scratch"
        self.patch = patch
        self.stack = stack
        self._capsys = capsys
        self._routes: dict[tuple[str, str], respx.Route] = {}

    @property
    def resource(self) -> dict[str, Any]:
        """What every result about this workspace carries."""
        return {
            "git": {"identity": IDENTITY, "remote_url": "ssh://git@github.com/Fern/Maze.git"},
            "workspace_directory": str(self.workspace.root),
        }

    def get(self, path: str) -> respx.Route:
        """The route of ``GET /api/cli<path>``, whatever the query."""
        return self._route("GET", path)

    def post(self, path: str) -> respx.Route:
        """The route of ``POST /api/cli<path>``."""
        return self._route("POST", path)

    def delete(self, path: str) -> respx.Route:
        """The route of ``DELETE /api/cli<path>``."""
        return self._route("DELETE", path)

    def _route(self, method: str, path: str) -> respx.Route:
        # Naming a route again would make it forget its reply.
        if (method, path) not in self._routes:
            pattern = f"^{re.escape(f'{FERN}/api/cli{path}')}(\\?|$)"
            self._routes[method, path] = self.router.route(method=method, url__regex=pattern)
        return self._routes[method, path]

    def osmosis(self, *arguments: str) -> Outcome:
        """Run one command; nothing secret may be in what it says."""
        # Asked for names that were perhaps meant, after a 404; behind every route of the test's own.
        for path, key in _LISTS.items():
            if ("GET", path) not in self._routes:
                self.get(path).respond(json={key: []})
        self._capsys.readouterr()
        status = main(list(arguments))
        captured = self._capsys.readouterr()
        assert TOKEN not in captured.out + captured.err
        return Outcome(status, captured.out, captured.err)


@contextmanager
def open_maze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Maze]:
    """Enter the workspace; nothing waits between two tries or two looks."""
    workspace = make_checkout(tmp_path / "maze")
    monkeypatch.chdir(workspace.root)
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TZ", "UTC")
    use_platform(monkeypatch)
    save_login()
    for name in _POLLING:
        monkeypatch.setattr(importlib.import_module(f"osmosis_ai.cli.{name}"), "POLL_S", 0.0)
    without_waiting = stamina.set_testing(True, attempts=100, cap=True)
    with without_waiting, respx.mock(assert_all_called=False) as router, ExitStack() as stack:
        router.route(host="127.0.0.1").pass_through()
        yield Maze(workspace, router, capsys, monkeypatch, stack)


def sent(route: respx.Route, call: int = -1) -> Any:
    """Return the JSON that a call of ``route`` carried."""
    return json.loads(route.calls[call].request.content)


def replies(*bodies: Any) -> Sequence[httpx.Response]:
    """Return one success reply after the other."""
    return [httpx.Response(200, json=body) for body in bodies]
