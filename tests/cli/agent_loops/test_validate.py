"""`osmosis validate`: every documented code, both forms of tools, and a run."""

from __future__ import annotations

import json

import pytest

from tests.cli.agent_loops.conftest import WriteModule
from tests.cli.conftest import Cli

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
def test_an_error_is_told_with_its_code(cli: Cli, write_agent: WriteModule, added: str, code: str) -> None:
    module = write_agent(added)
    status, out, err = cli("validate", "-m", module)
    assert (status, out) == (1, "")
    assert err.startswith("Error: agent loop ")
    assert f"[{code}]" in err
    details = json.loads(cli("validate", "-m", module, "--json").err)["error"]["details"]
    assert [each["code"] for each in details["errors"]] == [code]


@pytest.mark.parametrize(("added", "code"), WARNINGS.items(), ids=WARNINGS.values())
def test_a_warning_is_counted_and_listed_when_asked_for(
    cli: Cli, write_agent: WriteModule, added: str, code: str
) -> None:
    module = write_agent(added)
    brief = cli("validate", "-m", module, "--plain")
    assert (brief.status, brief.err) == (0, "")
    assert code not in brief.out
    assert "Warnings" in brief.out
    assert code in cli("validate", "-m", module, "--verbose", "--plain").out
    data = json.loads(cli("validate", "-m", module, "--json").out)["data"]
    assert (data["valid"], data["tool_count"]) == (True, 1)
    assert [each["code"] for each in data["warnings"]] == [code]


def test_tools_may_be_schemas_too_and_a_class_is_made(cli: Cli, write_agent: WriteModule) -> None:
    module = write_agent(
        f"""
        from osmosis_ai.rollout import OpenAIFunctionToolSchema
        TOOLS += [OpenAIFunctionToolSchema.model_validate({TOOL!r}), {TOOL!r}]
        """
    )
    data = json.loads(cli("validate", "-m", module.replace("agent_loop", "Calculator"), "--json").out)["data"]
    assert data == {
        "valid": True,
        "agent_name": "calculator",
        "tool_count": 2,
        "errors": [],
        "warnings": [],
        "run": None,
    }


def test_several_errors_are_told_at_once(cli: Cli, write_agent: WriteModule) -> None:
    module = write_agent("Calculator.name = ' '; Calculator.run = None; TOOLS.append(1)")
    err = cli("validate", "-m", module).err
    assert "is not valid: 3 errors\n" in err
    assert all(f"[{code}]" in err for code in ("EMPTY_NAME", "INVALID_TOOL_TYPE", "MISSING_RUN_METHOD"))


@pytest.mark.integration
def test_a_run_asks_the_built_in_model_and_one_that_fails_is_not_valid(
    cli: Cli, write_agent: WriteModule
) -> None:
    ran = cli("validate", "-m", write_agent(""), "--run", "--json")
    assert (ran.status, ran.err) == (0, "")
    run = json.loads(ran.out)["data"]["run"]
    assert (run["model"], run["model_calls"], run["finish_reason"]) == ("osmosis/tiny", 1, "stop")

    broken = write_agent(
        """
        async def run(self, ctx):
            raise LookupError("no such tool")
        Calculator.run = run
        """
    )
    assert cli("validate", "-m", broken).status == 0
    status, out, err = cli("validate", "-m", broken, "--run")
    assert (status, out) == (1, "")
    assert err.startswith(
        "Error: agent loop 'calculator' looks valid, but its run failed: LookupError: no such tool ("
    )
