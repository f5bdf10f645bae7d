"""What `osmosis serve` serves, to whom, and what it says instead."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.rollout.loop import network
from osmosis_ai.rollout.loop.server.serve import AgentServer
from tests.cli.agent_loops.conftest import WriteModule
from tests.cli.conftest import Cli
from tests.logins import FERN, save_login, use_platform

LOCAL = ("--host", "127.0.0.1", "--port", "0")


def test_a_server_that_would_register_needs_a_login_or_the_word_that_it_should_not(
    cli: Cli, write_agent: WriteModule
) -> None:
    status, out, err = cli("serve", "-m", write_agent(""), *LOCAL)
    assert (status, out) == (1, "")
    assert err.startswith("Error: registering needs a login: ")
    assert "--skip-register" in err


def test_a_token_without_its_platform_is_told_the_variable_to_set(
    cli: Cli, write_agent: WriteModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_platform(monkeypatch)
    monkeypatch.setenv("OSMOSIS_TOKEN", "osm_u_canary")
    monkeypatch.delenv("OSMOSIS_TOKEN_PLATFORM_URL", raising=False)
    status, _, err = cli("serve", "-m", write_agent(""), *LOCAL)
    assert status == 1
    assert f"export OSMOSIS_TOKEN_PLATFORM_URL={FERN}" in err and "--skip-register" in err


def test_a_server_that_lets_everybody_in_takes_no_key(cli: Cli, write_agent: WriteModule) -> None:
    status, out, err = cli("serve", "-m", write_agent(""), "--local", "--api-key", "k", *LOCAL)
    assert (status, out) == (1, "")
    assert err == "Error: --local lets everybody in and --api-key does not: choose one of them\n"


@pytest.mark.parametrize("key", ["", " ", "k\u00e9y", "a\nb"])
def test_a_key_that_no_header_carries_is_refused(cli: Cli, write_agent: WriteModule, key: str) -> None:
    status, _, err = cli("serve", "-m", write_agent(""), "--skip-register", "--api-key", key, *LOCAL)
    assert status == 1
    assert err.startswith("Error: an API key is made of printable ASCII characters")


def test_a_port_in_use_is_told_in_one_line(cli: Cli, write_agent: WriteModule) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = cli(
            "serve", "-m", write_agent(""), "--local", "--host", "127.0.0.1", "--port", str(port)
        )
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        f"Error: cannot listen on 127.0.0.1:{port}: Address already in use",
        "hint: choose another address with --host, --port",
    ]


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "::bad::", "x" * 64])
def test_an_address_that_is_not_this_machine_s_is_told_in_one_line(
    cli: Cli, write_agent: WriteModule, host: str
) -> None:
    status, _, err = cli("serve", "-m", write_agent(""), "--local", "--host", host, "--port", "0")
    assert status == 1
    assert err.startswith(f"Error: cannot listen on {host}:0: ")


def test_an_agent_that_is_not_valid_is_not_served(cli: Cli, write_agent: WriteModule) -> None:
    module = write_agent("Calculator.get_tools = lambda self, request: None")
    status, out, err = cli("serve", "-m", module, "--local", *LOCAL)
    assert (status, out) == (1, "")
    assert "[GET_TOOLS_RETURNS_NONE]" in err


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("agent_loop", "does not name the agent"),
        ("no_such_module:agent_loop", "there is no module 'no_such_module'"),
        ("{module}:missing", "has no attribute 'missing'"),
        ("{module}:TOOLS", "is of type list, no RolloutAgentLoop"),
    ],
)
def test_a_module_that_leads_nowhere_is_told_in_one_line(
    cli: Cli, write_agent: WriteModule, module: str, message: str
) -> None:
    written = write_agent("").partition(":")[0]
    status, out, err = cli("serve", "-m", module.format(module=written), "--local", *LOCAL)
    assert (status, out) == (1, "")
    assert message in err.splitlines()[0]


def test_a_debug_log_that_cannot_be_written_is_found_before_anything_is_served(
    cli: Cli, write_agent: WriteModule, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("a file")
    status, _, err = cli("serve", "-m", write_agent(""), "--local", "--log", "log", *LOCAL)
    assert status == 1
    assert err.startswith("Error: the debug log cannot be written to log/")


def test_errors_are_json_where_it_is_asked_for(cli: Cli, write_agent: WriteModule) -> None:
    status, out, err = cli("serve", "-m", write_agent(""), *LOCAL, "--json")
    assert (status, out) == (1, "")
    assert json.loads(err)["error"]["code"] == "AUTH_REQUIRED"


class Caller:
    """Is in a server's place: asks the app whom it lets in, and ends."""

    def __init__(self) -> None:
        self.served: AgentServer
        self.lets_in: dict[str | None, bool] = {}
        self.health = 0

    def run(self, server: AgentServer, *, say: Callable[[str], None]) -> None:
        self.served = server
        with server.listener:
            client = TestClient(server._app(say))
            for key in (None, "of-mine", server.api_key):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                # No request at all: who is let in is told what it lacks.
                self.lets_in[key] = client.post("/v1/rollout/init", headers=headers).status_code == 422
            self.health = client.get("/platform/health", headers=headers).status_code


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Caller:
    caller = Caller()
    monkeypatch.setattr(AgentServer, "run", lambda server, *, say: caller.run(server, say=say))
    monkeypatch.setattr(network, "detect_public_ip", lambda: pytest.fail("the network was asked"))
    return caller


# The published options -> whether the key is made, a key is needed, and it registers.
SERVED = {
    "": (True, True, True),
    "--public-host agents.example": (True, True, True),
    "--skip-register": (True, True, False),
    "--skip-register --api-key of-mine": (False, True, False),
    "--api-key of-mine": (False, True, True),
    "--local": (False, False, False),
    "--no-validate": (True, True, True),
    "--no-validate --local --log-level debug": (False, False, False),
}


@pytest.mark.parametrize("options", SERVED)
def test_who_is_let_in_and_what_is_told_is_as_the_options_say(
    cli: Cli, write_agent: WriteModule, caller: Caller, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, needed, registers = SERVED[options]
    if registers:
        use_platform(monkeypatch)
        save_login()
    # Without a check it is served whatever it is.
    module = write_agent("Calculator.run = None" if "--no-validate" in options else "")
    status, out, err = cli("serve", "-m", module, "-p", "0", *options.split())
    assert status == 0, err
    assert f"Serving calculator at http://0.0.0.0:{caller.served.port}" in out
    key = caller.served.api_key
    assert caller.lets_in == {None: not needed, "of-mine": key in (None, "of-mine"), key: True}
    assert caller.health == (200 if needed else 404)
    told = (out + err).count(str(key))
    if made:
        assert str(key).startswith("osm_rollout_") and told == 1
    else:
        assert told == 0
        assert ("API key: (provided)" if needed else "API key: disabled: everybody") in err
    assert (f"Registration: with {FERN}" if registers else "Registration: skipped") in err
    assert (caller.served.credentials is not None) is registers
    assert caller.served.public_host == ("agents.example" if "public" in options else None)
