"""What `osmosis serve` serves, to whom, and what it says instead."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.cli.agent_loops.conftest import WriteModule
from tests.cli.conftest import Cli
from tests.logins import FERN, save_login, use_platform


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "registering needs a login: "),
        (["--local", "--api-key", "k"], "--local and --api-key cannot be combined\n"),
        *(
            (["--skip-register", "--api-key", key], "an API key consists of printable ASCII characters")
            for key in ("", " ", "k\u00e9y", "a\nb")
        ),
    ],
)
def test_invalid_options(cli: Cli, write_agent: WriteModule, options: list[str], error: str) -> None:
    status, out, err = cli("serve", "-m", write_agent(""), *options, "--host", "127.0.0.1", "--port", "0")
    assert (status, out) == (1, "")
    assert err.startswith(f"Error: {error}")
    assert options or "--skip-register" in err


def test_port_in_use(cli: Cli, write_agent: WriteModule) -> None:
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


class Caller:
    """Is in a server's place: asks the app whom it lets in, and ends."""

    def __init__(self) -> None:
        self.served: Any
        self.lets_in: dict[str | None, bool] = {}
        self.health = 0

    def run(self, server: Any, *, say: Callable[[str], None]) -> None:
        self.served = server
        with server.listener:
            client = TestClient(server.app(say))
            for key in (None, "of-mine", server.options.api_key):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                # An empty request: an authorized caller gets the missing fields reported.
                self.lets_in[key] = client.post("/v1/rollout/init", headers=headers).status_code == 422
            self.health = client.get("/platform/health", headers=headers).status_code


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Caller:
    caller = Caller()
    monkeypatch.setattr(
        "osmosis_ai.rollout.server.serve.AgentServer.run", lambda server, *, say: caller.run(server, say=say)
    )
    monkeypatch.setattr(
        "osmosis_ai.rollout.network.detect_public_ip", lambda: pytest.fail("the network was asked")
    )
    return caller


# The published options -> whether the key is made, a key is needed, and it registers.
SERVED = {
    "": (True, True, True),
    "--public-host agents.example": (True, True, True),
    "--skip-register --api-key of-mine": (False, True, False),
    "--api-key of-mine": (False, True, True),
    "--local": (False, False, False),
    "--no-validate --local --log-level debug": (False, False, False),
}


@pytest.mark.parametrize("options", SERVED)
def test_access_and_output_by_options(
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
    assert f"Serving calculator at http://0.0.0.0:{caller.served.options.port}" in out
    key = caller.served.options.api_key
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
    assert caller.served.options.public_host == ("agents.example" if "public" in options else None)


TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}


def tools(**changes: object) -> str:
    """A module's tools: one, with a function that is changed; None takes a key away."""
    function = {**TOOL["function"], **changes}  # type: ignore[dict-item]
    return f"TOOLS.append({ {**TOOL, 'function': {k: v for k, v in function.items() if v is not None}}!r})"


# What is wrong with an agent -> the code of it.
ERRORS = {
    "Calculator.name = None": "MISSING_NAME",
    "Calculator.name = 7": "INVALID_NAME_TYPE",
    "Calculator.name = ' '": "EMPTY_NAME",
    "Calculator.get_tools = lambda self, request: 1 / 0": "GET_TOOLS_EXCEPTION",
    "Calculator.get_tools = lambda self, request: None": "GET_TOOLS_RETURNS_NONE",
    "Calculator.get_tools = lambda self, request: ()": "GET_TOOLS_INVALID_TYPE",
    "TOOLS.append('add')": "INVALID_TOOL_TYPE",
    "TOOLS.append({'function': {'name': 'add'}})": "MISSING_TOOL_TYPE",
    "TOOLS.append({'type': 'function'})": "MISSING_FUNCTION",
    "TOOLS.append({'type': 'function', 'function': 'add'})": "INVALID_FUNCTION_TYPE",
    tools(name=None): "MISSING_FUNCTION_NAME",
    tools(name="two words"): "INVALID_FUNCTION_NAME",
    tools(name=""): "INVALID_FUNCTION_NAME",
    tools(parameters=[]): "INVALID_PARAMETERS_TYPE",
    "Calculator.run = None": "MISSING_RUN_METHOD",
    "Calculator.run = 'run'": "RUN_NOT_CALLABLE",
    "Calculator.run = lambda self, ctx: None": "RUN_NOT_ASYNC",
}
WARNINGS = {
    "TOOLS.append({'type': 'retrieval', 'function': {'name': 'add', 'description': 'Adds.'}})": "UNKNOWN_TOOL_TYPE",
    tools(description=None): "MISSING_FUNCTION_DESCRIPTION",
    tools(parameters={"type": "array"}): "PARAMETERS_TYPE_NOT_OBJECT",
}


@pytest.mark.parametrize(("added", "code"), ERRORS.items(), ids=ERRORS.values())
def test_validate_errors(cli: Cli, write_agent: WriteModule, added: str, code: str) -> None:
    module = write_agent(added)
    err = cli("validate", "-m", module).err
    assert err.startswith("Error: Agent loop ") and f"[{code}]" in err
    details = cli("validate", "-m", module, "--json").error["details"]
    assert [each["code"] for each in details["errors"]] == [code]


@pytest.mark.parametrize(("added", "code"), WARNINGS.items(), ids=WARNINGS.values())
def test_validate_warnings(cli: Cli, write_agent: WriteModule, added: str, code: str) -> None:
    module = write_agent(added)
    brief = cli("validate", "-m", module, "--plain")
    assert (brief.status, brief.err) == (0, "")
    assert code not in brief.out
    assert "Warnings" in brief.out
    assert code in cli("validate", "-m", module, "--verbose", "--plain").out
    data = cli("validate", "-m", module, "--json").data
    assert (data["valid"], data["tool_count"]) == (True, 1)
    assert [each["code"] for each in data["warnings"]] == [code]


@pytest.mark.integration
def test_validate_run(cli: Cli, write_agent: WriteModule) -> None:
    ran = cli("validate", "-m", write_agent(""), "--run", "--json")
    assert (ran.status, ran.err) == (0, "")
    run = ran.data["run"]
    assert (run["model"], run["model_calls"], run["finish_reason"]) == ("osmosis/tiny", 1, "stop")

    broken = write_agent(
        """
        async def run(self, ctx):
            raise LookupError("no such tool")
        Calculator.run = run
        """
    )
    assert cli("validate", "-m", broken).status == 0
    failed = cli("validate", "-m", broken, "--run")
    assert (failed.status, failed.out) == (1, "")
    assert failed.err.startswith(
        "Error: The run of agent loop 'calculator' failed: LookupError: no such tool ("
    )
