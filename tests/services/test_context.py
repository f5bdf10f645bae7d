"""The order in which a command finds out what it needs, and what each thing missing sounds like."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import respx

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.errors import OsmosisError, WorkspaceRequiredError
from osmosis_ai.services.context import find_checkout_if_any, open_context
from tests.logins import FERN, IDENTITY, NOT_CONNECTED, TOKEN, make_checkout, save_login, use_platform
from tests.workspace.builders import git, make_repository, make_workspace


@pytest.fixture(autouse=True)
def _platform(monkeypatch: pytest.MonkeyPatch) -> None:
    use_platform(monkeypatch)


def _refusal(start: Path) -> OsmosisError:
    with respx.mock, pytest.raises(OsmosisError) as caught, open_context(start):
        raise AssertionError("the context must not open")
    return caught.value


def test_the_first_thing_wrong_is_the_one_that_is_told(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    assert isinstance(_refusal(root), WorkspaceRequiredError)
    make_repository(root)
    assert "osmosis doctor --fix" in _refusal(root).message
    make_workspace(root / "inner")
    refusal = _refusal(root / "inner")
    assert (refusal.code, "`origin`" in refusal.message) == ("VALIDATION", True)
    assert refusal.hint == f"git -C {root / 'inner'} remote add origin URL"
    git(root / "inner", "remote", "add", "origin", "https://github.com/only-an-owner")
    assert "exactly one GitHub repository" in _refusal(root / "inner").message
    git(root / "inner", "remote", "set-url", "origin", "https://github.com/fern/maze")
    refusal = _refusal(root / "inner")
    assert (refusal.code, refusal.message) == (
        "AUTH_REQUIRED",
        "Not logged in. Run 'osmosis auth login' first.",
    )
    save_login()
    with open_context(root / "inner"):
        pass


def test_what_is_known_of_the_checkout_is_in_every_result(tmp_path: Path) -> None:
    workspace = make_checkout(tmp_path)
    save_login()
    with open_context(workspace.data_dir) as context:
        assert context.resource() == {
            "git": {"identity": IDENTITY, "remote_url": "ssh://git@github.com/Fern/Maze.git"},
            "workspace_directory": str(workspace.root),
        }
        assert TOKEN not in repr(context)


@pytest.mark.parametrize(
    "origin, owner",
    [
        ("https://gitlab.example/team/maze.git", "gitlab-example"),
        ("ssh://git@git.example:2222/maze", "git-example"),
        ("../maze.git", "local"),
    ],
)
def test_a_repository_on_any_other_host_is_as_good(tmp_path: Path, origin: str, owner: str) -> None:
    workspace = make_checkout(tmp_path / "w", origin)
    save_login()
    with respx.mock(base_url=FERN) as router, open_context(workspace.root) as context:
        route = router.get("/api/cli/datasets").respond(json={"datasets": []})
        context.client.datasets.list()
    sent = route.calls.last.request.headers
    assert sent["x-osmosis-git"] == context.checkout.git.identity
    assert context.checkout.git.identity.startswith(f"{owner}/maze-")
    assert sent["authorization"] == f"Bearer {TOKEN}"


def test_an_expired_login_sends_nothing(tmp_path: Path) -> None:
    from datetime import datetime, timezone

    workspace = make_checkout(tmp_path)
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    refusal = _refusal(workspace.root)
    assert (refusal.code, refusal.message) == ("AUTH_REQUIRED", f"Your session on {FERN} has expired.")


@pytest.mark.parametrize(
    "url, says",
    [
        (FERN, "on the platform's machine: osmosis platform connect ssh://git@github.com/Fern/Maze.git"),
        ("https://platform.osmosis.ai", "connect it at https://platform.osmosis.ai"),
    ],
)
def test_a_repository_that_is_not_connected_says_how_to_connect_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, says: str
) -> None:
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", url)
    workspace = make_checkout(tmp_path)
    save_login(url)
    with respx.mock(base_url=url) as router:
        router.get("/api/cli/datasets").respond(404, json=NOT_CONNECTED)
        with pytest.raises(PlatformError) as caught, open_context(workspace.root) as context:
            context.client.datasets.list()
    assert caught.value.code == "NOT_FOUND"
    assert f"{IDENTITY} is not connected to a workspace on {url}" in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(says)


def test_warnings_of_the_platform_reach_whoever_asked_for_them_or_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = make_checkout(tmp_path)
    save_login()
    headers = {"X-Osmosis-Version-Status": "deprecated", "X-Osmosis-Version-Message": "Upgrade soon."}
    heard: list[tuple[str, str | None]] = []
    with respx.mock(base_url=FERN) as router:
        router.get("/api/cli/datasets").respond(json={"datasets": []}, headers=headers)
        with open_context(workspace.root, warn=lambda text, code: heard.append((text, code))) as context:
            context.client.datasets.list()
        use_platform(monkeypatch)
        with caplog.at_level(logging.WARNING), open_context(workspace.root) as context:
            context.client.datasets.list()
    assert heard == [("Upgrade soon.", "DEPRECATED")]
    assert [record.getMessage() for record in caplog.records if record.name == "osmosis_ai"] == [
        "Upgrade soon."
    ]


def test_a_checkout_needs_no_directories_to_be_recognised(tmp_path: Path) -> None:
    assert find_checkout_if_any(tmp_path) is None
    root = make_repository(tmp_path)
    assert find_checkout_if_any(root) is None
    git(root, "remote", "add", "origin", "https://github.com/fern/maze")
    found = find_checkout_if_any(root)
    assert found is not None
    assert found.git.identity == IDENTITY
