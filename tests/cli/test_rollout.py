"""What a person and a script see of agents that are served elsewhere: never their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import respx

from osmosis_ai.cli.main import main
from tests.cli.conftest import Cli
from tests.cli.golden_cases import HEALTHY, SERVER
from tests.logins import FERN, make_checkout, save_login, use_platform
from tests.workspace.builders import make_workspace

SERVERS, REGISTER = "/api/cli/rollout-servers", "/api/cli/rollout-server/register"
KEY = "osm_rollout_canary-4711"
UNHEALTHY = {"id": "srv_1", "status": "unhealthy", "health_check_result": {"error": "it refuses the key"}}


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    save_login()
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_KEY", KEY)
    monkeypatch.chdir(make_checkout(tmp_path / "w").root)
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get(SERVERS).respond(json={"rollout_servers": [SERVER], "total_count": 1})
        router.post(REGISTER).respond(json=HEALTHY)
        router.post(f"{SERVERS}/calculator/probe").respond(json=HEALTHY)
        router.delete(f"{SERVERS}/calculator").respond(json={})
        yield router


def test_an_agent_is_registered_with_the_key_of_the_environment(cli: Cli, platform: respx.MockRouter) -> None:
    told = cli("rollout", "server", "register", "calculator", "[fd00::1]:9000")
    assert told.status == 0
    sent = json.loads(platform.calls.last.request.content)
    assert sent == {"host": "fd00::1", "port": 9000, "agent_loop_name": "calculator", "api_key": KEY}
    assert "server://calculator" in told.out and KEY not in told.out + told.err
    platform.post(REGISTER).respond(json=UNHEALTHY)
    warned = cli("rollout", "server", "register", "calculator", "10.1.2.3:9000")
    assert warned.status == 0 and "it refuses the key" in warned.err
    refused = cli("rollout", "server", "register", "calculator", "169.254.169.254:80")
    assert refused.status == 1 and "is refused" in refused.err
    refused = cli("rollout", "server", "register", "calculator", "10.1.2.3")
    assert refused.status == 1 and "is not HOST:PORT" in refused.err


def test_an_agent_is_probed_and_removed(cli: Cli, platform: respx.MockRouter) -> None:
    asked = cli("rollout", "server", "remove", "calculator")
    assert asked.status == 1 and platform.calls.call_count == 0
    removed = cli("rollout", "server", "remove", "calculator", "--yes")
    assert removed.status == 0 and platform.calls.last.request.method == "DELETE"

    healthy = cli("rollout", "server", "probe", "calculator")
    assert (healthy.status, "3 rollouts under way" in healthy.out) == (0, True)
    platform.post(f"{SERVERS}/calculator/probe").respond(json=UNHEALTHY)
    unhealthy = cli("--json", "rollout", "server", "probe", "calculator")
    assert unhealthy.status == 1
    assert json.loads(unhealthy.out)["resource"]["health_check_result"] == {"error": "it refuses the key"}


@pytest.fixture
def workspace_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_workspace(tmp_path / "ws").root
    monkeypatch.chdir(root)
    return root


def test_what_exists_is_a_conflict_until_forced(
    workspace_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "init", "capitals"]) == 0
    assert main(["rollout", "init", "capitals", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "CONFLICT"
    assert len(error["details"]["conflicts"]) == 3
    assert main(["rollout", "init", "capitals", "-f"]) == 0
