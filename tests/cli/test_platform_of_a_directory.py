"""Which platform commands use: option, environment, directory, default."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from tests.cli.conftest import Cli
from tests.logins import FERN, NEW_TOKEN, TOKEN, VERIFIED, save_login, use_platform
from tests.workspace.builders import make_repository

HOSTED = "https://platform.osmosis.ai"
OTHER = "https://other.example"


@pytest.fixture(autouse=True)
def platforms(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, respx.Route]]:
    """Platforms that know the token; each is the only one to answer at its address."""
    use_platform(monkeypatch)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    del os.environ["OSMOSIS_PLATFORM_URL"]
    os.environ["OSMOSIS_TOKEN_STORE"] = "file"
    with respx.mock(assert_all_called=False) as router:
        routes = {}
        for url in (FERN, OTHER, HOSTED):
            routes[url] = router.get(f"{url}/api/cli/verify").respond(json=VERIFIED)
            router.get(f"{url}/api/cli/workspaces").respond(json={"workspaces": []})
            router.delete(url__startswith=f"{url}/api/cli/tokens/").respond(204)
        yield routes


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Git checkout; the current directory is below its root."""
    root = make_repository(tmp_path / "checkout")
    (root / "rollouts").mkdir()
    monkeypatch.chdir(root / "rollouts")
    return root


def used(cli: Cli) -> tuple[str, str | None]:
    """The platform that `whoami` asks, and the directory that names it."""
    data = json.loads(cli("whoami", "--json").out)["data"]
    return data["platform_url"], data["platform_directory"]


def record() -> Path:
    return Path("~/.config/osmosis/platforms.json").expanduser()


@pytest.mark.parametrize(
    "words",
    [("--platform", FERN, "login"), ("login", "--platform", FERN), ("--platform", FERN, "auth", "login")],
)
def test_login_sets_the_platform_of_the_checkout(
    cli: Cli, checkout: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = cli(*words, "--token", TOKEN, "--json")
    resource = json.loads(done.out)["resource"]
    assert (resource["platform_url"], resource["directory"]) == (FERN, str(checkout))
    os.environ.pop("OSMOSIS_PLATFORM_URL")
    assert used(cli) == (FERN, str(checkout))
    assert f"Platform: {FERN} (set for {checkout})" in cli("whoami", "--plain").out
    assert json.loads(record().read_text()) == {str(checkout): FERN}
    assert stat.S_IMODE(record().stat().st_mode) == 0o600
    assert not (checkout / "platforms.json").exists()
    os.chdir(tmp_path)
    save_login(HOSTED)
    assert used(cli) == (HOSTED, None)


def test_precedence(cli: Cli, checkout: Path, tmp_path: Path) -> None:
    for url in (HOSTED, FERN, OTHER):
        save_login(url)
    assert used(cli) == (HOSTED, None)
    os.chdir(tmp_path)
    cli("login", "--platform", OTHER)
    os.chdir(checkout)
    cli("login", "--platform", FERN)
    os.environ.pop("OSMOSIS_PLATFORM_URL")
    assert used(cli) == (FERN, str(checkout))
    os.environ["OSMOSIS_PLATFORM_URL"] = HOSTED
    assert used(cli) == (HOSTED, None)
    assert cli("--platform", OTHER, "whoami", "--json").status == 0
    assert os.environ["OSMOSIS_PLATFORM_URL"] == OTHER
    os.environ["OSMOSIS_PLATFORM_URL"] = ""
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    assert used(cli) == (OTHER, str(tmp_path))


def test_login_uses_the_platform_of_the_directory(cli: Cli, platforms: dict[str, respx.Route]) -> None:
    save_login()
    cli("login", "--platform", FERN)
    os.environ.pop("OSMOSIS_PLATFORM_URL")
    resource = json.loads(cli("login", "--token", NEW_TOKEN, "--json").out)["resource"]
    assert (resource["platform_url"], resource["directory"]) == (FERN, None)
    assert platforms[FERN].calls.last.request.headers["authorization"] == f"Bearer {NEW_TOKEN}"
    assert not platforms[HOSTED].called


def test_failed_login_changes_nothing(cli: Cli, platforms: dict[str, respx.Route]) -> None:
    platforms[FERN].respond(401, json={"code": "TOKEN_INVALID"})
    assert cli("--platform", FERN, "login", "--token", TOKEN).status == 1
    assert cli("login", "--platform", "http://insecure.example", "--token", TOKEN).status == 1
    assert not record().exists()


@pytest.mark.parametrize("everywhere, left", [((), {"/other": OTHER}), (("--all",), {})])
def test_logout_removes_directories(cli: Cli, everywhere: tuple[str, ...], left: dict[str, Any]) -> None:
    here = str(Path.cwd())
    save_login()
    record().write_text(json.dumps({here: FERN, "/more": FERN, "/other": OTHER}))
    resource = json.loads(cli("logout", "--yes", "--json", *everywhere).out)["resource"]
    assert {here, "/more"} <= set(resource["directories"])
    assert json.loads(record().read_text()) == left


@pytest.mark.parametrize("content", ['{"/a": ', "[]", '{"/a": 1}'])
def test_damaged_record(cli: Cli, platforms: dict[str, respx.Route], content: str) -> None:
    save_login(HOSTED)
    record().write_text(content)
    done = cli("whoami")
    assert (done.status, done.out) == (1, "")
    assert f"File is damaged: {record()}." in done.err
    assert not platforms[HOSTED].called
    save_login()
    assert cli("--platform", FERN, "whoami").status == 0
