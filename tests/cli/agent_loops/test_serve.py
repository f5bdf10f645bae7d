"""What `osmosis serve` says instead of serving."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.agent_loops.conftest import WriteModule
from tests.cli.conftest import Cli

LOCAL = ("--host", "127.0.0.1", "--port", "0")


def test_a_server_that_would_register_needs_a_login_or_the_word_that_it_should_not(
    cli: Cli, write_agent: WriteModule
) -> None:
    status, out, err = cli("serve", "-m", write_agent(""), *LOCAL)
    assert (status, out) == (1, "")
    assert err.startswith("Error: registering needs a login: ")
    assert "--skip-register" in err


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
