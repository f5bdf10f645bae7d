"""Agent loops: their class, context, tools, registry, validation, and how they are found and loaded."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import typing
from abc import ABC
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.rollout import (
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    RolloutContext,
    ValidationResult,
    network,
    registry,
    validate_agent_loop,
)
from osmosis_ai.rollout import tools as t
from osmosis_ai.rollout import utils as m
from osmosis_ai.rollout.cli_utils import holds_an_agent_loop, load_agent_loop, names_an_attribute
from osmosis_ai.rollout.core import exceptions as e
from osmosis_ai.rollout.core.base import AgentLoopContext, LLMClientProtocol, RolloutAgentLoop, RolloutResult
from osmosis_ai.rollout.core.exceptions import AgentLoopLoadError, ToolArgumentError, ToolExecutionError
from osmosis_ai.rollout.server.api_key import API_KEY_PREFIX, generate_api_key, validate_api_key
from osmosis_ai.rollout.tools import InvalidToolError, check_tools, normalize_tools

from .agents import CannedModel, Echo, context, request


def test_a_concrete_class_needs_a_name() -> None:
    with pytest.raises(TypeError, match="must define a 'name' class attribute"):
        type("Nameless", (Echo,), {"name": ""})

    class WithoutTools(RolloutAgentLoop):
        def get_tools(self, request: Any) -> list[Any]:
            return []

    class Marked(RolloutAgentLoop, ABC):
        def get_tools(self, request: Any) -> list[Any]:
            return []

        async def run(self, ctx: Any) -> RolloutResult:
            raise NotImplementedError

    with pytest.raises(TypeError, match="abstract"):
        WithoutTools()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="must define a 'name'"):
        type("Last", (WithoutTools,), {"run": Echo.run})
    assert type("Named", (Marked,), {"name": "n"})().name == "n"


async def test_a_loop_asks_its_model_and_completes() -> None:
    given = context(_start_time=time.monotonic() - 1)
    given.record_tool_call(20.0)
    given.record_tool_call()

    result = await Echo().run(given)

    assert (result.status, result.finish_reason, result.reward) == ("COMPLETED", "stop", None)
    assert [message["content"] for message in result.final_messages] == ["hi", "hello"]
    metrics = result.metrics
    assert metrics is not None and metrics.total_latency_ms >= 1000
    assert (metrics.num_llm_calls, metrics.num_tool_calls, metrics.tool_latency_ms) == (1, 2, 20.0)
    assert context().complete([], reward=0.5).reward == 0.5
    assert isinstance(given.llm, LLMClientProtocol)


async def test_weakness_7_an_error_keeps_its_message_and_what_it_cost() -> None:
    given = context()
    await given.chat([])
    result = given.error("the tool is gone", [{"role": "user", "content": "hi"}])

    assert (result.status, result.finish_reason) == ("ERROR", "error")
    assert result.error_message == "the tool is gone"
    assert result.final_messages == [{"role": "user", "content": "hi"}]
    assert result.metrics is not None and result.metrics.prompt_tokens == 7
    assert context().error("no messages").final_messages == []


def test_debug_events(tmp_path: Path) -> None:
    off = context()
    off.log_event("turn")
    on = context(_debug_dir=tmp_path / "made")
    on.log_event("turn", number=1, where=Path("x"))
    on.log_event("end", keys={(1, 2): "no JSON"})
    on.log_event("end", text="grüß")

    assert (off.debug_enabled, on.debug_enabled) == (False, True)
    (file,) = (tmp_path / "made").iterdir()
    assert file.name == "r1.jsonl"
    assert [json.loads(line) for line in file.read_text("utf-8").splitlines()] == [
        {"event": "turn", "rollout_id": "r1", "number": 1, "where": "x"},
        {"event": "end", "rollout_id": "r1", "text": "grüß"},
    ]
    # A failed write does not stop the rollout.
    (tmp_path / "file").write_text("")
    context(_debug_dir=tmp_path / "file").log_event("turn")


def test_weakness_1_no_id_leads_out_of_the_debug_directory(tmp_path: Path) -> None:
    ids = [
        "../x",
        "..",
        "/etc/passwd",
        "a/b",
        "a_b",
        "a\\b",
        ".hidden",
        "é" * 256,
        "a\0b",
        "x" * 256,
        "x" * 255,
    ]

    for rollout_id in ids:
        context(request=request(rollout_id=rollout_id), _debug_dir=tmp_path / "logs").log_event("e")

    assert [entry.name for entry in tmp_path.iterdir()] == ["logs"]
    assert len(list((tmp_path / "logs").iterdir())) == len(ids), "each has a file of its own"


def test_rollout_context_of_both_protocols() -> None:
    of_a_loop = RolloutContext(request=request(), tools=[], llm=CannedModel())
    by_position = RolloutContext(request(), [], CannedModel())
    of_a_workflow = RolloutContext(chat_completions_url="http://model/v1")

    assert isinstance(of_a_loop, AgentLoopContext) and isinstance(by_position, AgentLoopContext)
    assert isinstance(of_a_loop, RolloutContext) and issubclass(AgentLoopContext, RolloutContext)
    assert isinstance(of_a_workflow, RolloutContext) and not isinstance(of_a_workflow, AgentLoopContext)
    assert not isinstance(object(), RolloutContext)
    assert RolloutContext("http://model/v1") == of_a_workflow

    def run(ctx: RolloutContext) -> None: ...

    assert typing.get_type_hints(run)["ctx"] is RolloutContext


def test_message_helpers() -> None:
    calls = [{"id": "1"}]
    assert m.parse_tool_calls({"tool_calls": calls}) == calls
    assert m.parse_tool_calls({}) == m.parse_tool_calls({"tool_calls": None}) == []
    assert m.get_message_content({"content": "x"}) == "x"
    assert m.get_message_content({"content": None}) == m.get_message_content({}) == ""
    assert (m.get_message_role({"role": "user"}), m.get_message_role({})) == ("user", "unknown")
    assert m.is_user_message({"role": "user"}) and not m.is_user_message({"role": "tool"})
    assert m.is_tool_message({"role": "tool"}) and m.is_assistant_message({"role": "assistant"})
    assert m.count_messages_by_role([{"role": "user"}, {"role": "user"}, {}]) == {"user": 2, "unknown": 1}


@pytest.mark.parametrize(
    ("stop", "read"), [(None, None), ("END", ["END"]), (["a", "b"], ["a", "b"]), ([], []), (3, None)]
)
def test_normalize_stop(stop: Any, read: Any) -> None:
    assert m.normalize_stop(stop) == read


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("a", "a"),
        (8, "8"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        ({"a": 1}, '{"a": 1}'),
        ([1], "[1]"),
    ],
)
def test_serialize_tool_result(result: Any, text: str) -> None:
    assert t.serialize_tool_result(result) == text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("{", "Invalid JSON"),
        ("[" * 200_000, "Invalid JSON"),
        ("[1]", "Expected dict"),
        (3, "Expected str or dict"),
    ],
)
def test_invalid_tool_arguments(arguments: Any, error: str) -> None:
    with pytest.raises(ToolArgumentError, match=error):
        t.parse_tool_arguments(arguments)
    with pytest.raises(ToolExecutionError, match=error) as raised:
        t.get_tool_call_info({"id": "c1", "function": {"name": "add", "arguments": arguments}})
    assert (raised.value.tool_call_id, raised.value.tool_name) == ("c1", "add")


@pytest.mark.parametrize(
    ("arguments", "read"), [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (" ", {}), (None, {})]
)
def test_tool_calls_and_results(arguments: Any, read: Any) -> None:
    function = {"name": "add", "arguments": arguments}
    assert t.get_tool_call_info({"id": "c1", "function": function}) == ("c1", "add", read)
    assert t.get_tool_call_info({"function": function})[0] == "unknown"
    assert t.create_tool_result("c1", "8") == {"role": "tool", "content": "8", "tool_call_id": "c1"}
    assert t.create_tool_error_result("c1", "no")["content"] == "Error: no"


async def test_tool_calls_run_concurrently_in_order() -> None:
    second_is_done = asyncio.Event()

    async def executor(call: dict[str, Any]) -> dict[str, Any]:
        if call["id"] == "1":
            await second_is_done.wait()
        second_is_done.set()
        return t.create_tool_result(call["id"], "done")

    results = await t.execute_tool_calls([{"id": "1"}, {"id": "2"}], executor)

    assert [result["tool_call_id"] for result in results] == ["1", "2"]
    assert await t.execute_tool_calls([], executor) == []


def test_registry() -> None:
    agent = Echo()
    registry.register_agent_loop(agent)

    assert registry.get_agent_loop("echo") is agent and registry.list_agent_loops() == ["echo"]
    with pytest.raises(ValueError, match="already registered"):
        registry.register_agent_loop(Echo())
    with pytest.raises(e.AgentLoopNotFoundError, match=r"'other'.*'echo'") as raised:
        registry.get_agent_loop("other")
    assert (raised.value.name, raised.value.available) == ("other", ["echo"])
    assert (registry.unregister_agent_loop("echo"), registry.unregister_agent_loop("echo")) == (True, False)
    assert registry._REGISTRY.get("echo") is None


def test_api_keys() -> None:
    key = generate_api_key()

    assert key.startswith(API_KEY_PREFIX) and len(key) >= len(API_KEY_PREFIX) + 43
    assert key != generate_api_key()
    assert validate_api_key(key, key)
    for wrong in (None, "", key[:-1], f"{key}x", "ключ", "\udcff"):
        assert not validate_api_key(wrong, key)
    assert not validate_api_key("", "")


def test_address_validation() -> None:
    assert network.validate_ipv4("1.2.3.4")
    assert not any(network.validate_ipv4(text) for text in ("::1", "256.1.1.1", "1.2.3", "", "host"))
    good = ["example.com", "a-b.c", "localhost:80", "1.2.3.4:80", "::1", "[::1]:80", "256.1.1.1"]
    assert all(network.is_valid_hostname_or_ip(text) for text in good)
    bad = ["", "-a.com", "a..b", "a b", "host:port", "x" * 64, ":80", "http://a"]
    assert not any(network.is_valid_hostname_or_ip(text) for text in bad)
    assert all(
        network.is_private_ip(text) for text in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd00::1")
    )
    assert not any(network.is_private_ip(text) for text in ("8.8.8.8", "host"))


def test_detection_of_the_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: dict[str, str] = {}
    requested: list[str] = []

    def answer(url: str, **_: object) -> httpx.Response:
        requested.append(url)
        for host, text in hosts.items():
            if host in url:
                return httpx.Response(200, text=text)
        raise httpx.ConnectError("unreachable")

    monkeypatch.setattr(httpx, "get", answer)
    monkeypatch.setattr(httpx, "put", answer)
    hosts |= {"computeMetadata": "34.1.2.3\n", "ipify": "5.5.5.5"}
    assert network.detect_public_ip() == "34.1.2.3"
    del hosts["computeMetadata"]
    hosts["checkip"] = "<html>"
    assert network.detect_public_ip() == "5.5.5.5"
    assert not any("icanhazip" in url for url in requested)
    hosts.clear()
    with pytest.raises(network.PublicIPDetectionError) as raised:
        network.detect_public_ip()
    assert raised.value.hint == "give it with --public-host"


def agent(**attributes: Any) -> Any:
    """Return an agent loop some of whose attributes are something else."""
    made = type("Agent", (), {"name": "a", "run": Echo.run, "get_tools": Echo.get_tools, **attributes})
    return made()


def codes(result: ValidationResult) -> tuple[list[str], list[str]]:
    return [error.code for error in result.errors], [warning.code for warning in result.warnings]


def validate_tool(tool: Any) -> tuple[list[str], list[str]]:
    return codes(validate_agent_loop(agent(get_tools=lambda self, request: [tool])))


def function(**given: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": "d", **given}}


def test_a_valid_agent() -> None:
    as_schema = OpenAIFunctionToolSchema(
        type="function", function=OpenAIFunctionSchema(name="f", description="")
    )

    result = validate_agent_loop(
        agent(get_tools=lambda self, request: [as_schema, function(name="get-time")])
    )

    assert result and (result.agent_name, result.tool_count) == ("a", 2)
    assert codes(result) == ([], [])
    result.raise_if_invalid()


def test_get_tools_that_exits() -> None:
    result = validate_agent_loop(agent(get_tools=lambda self, request: sys.exit(3)))

    assert not result and codes(result) == (["GET_TOOLS_EXCEPTION"], [])


@pytest.mark.parametrize(
    ("tool", "code", "field"),
    [
        (function(name=3), "INVALID_FUNCTION_NAME", "name"),
        (function(name="1st"), "INVALID_FUNCTION_NAME", "name"),
        (function(parameters="p"), "INVALID_PARAMETERS_TYPE", "parameters"),
        (function(parameters={"properties": 3}), "INVALID_PARAMETERS_TYPE", "parameters.properties"),
        (function(parameters={"properties": {"a": "number"}}), "INVALID_PARAMETERS_TYPE", "parameters"),
        (function(parameters={"required": "a"}), "INVALID_PARAMETERS_TYPE", "parameters.required"),
        (function(strict=[]), "INVALID_FUNCTION_TYPE", "strict"),
    ],
)
def test_weakness_13_validation_refuses_exactly_the_unusable_tools(tool: Any, code: str, field: str) -> None:
    assert validate_tool(tool) == ([code], [])
    for use in (check_tools, normalize_tools):
        with pytest.raises(InvalidToolError, match=rf"tools\[1\]\.function\.{field}"):
            use([function(), tool])
    assert check_tools([function(name="get-time")]) == [function(name="get-time")]


AGENT = """
from osmosis_ai.rollout.core.base import RolloutAgentLoop
class Agent(RolloutAgentLoop):
    name = "a"
    def get_tools(self, request): return []
    async def run(self, ctx): return ctx.complete([])
class Built(Agent):
    def __init__(self):
        self.value = {}["missing"]
class Other: ...
agent_loop = Agent()
number = 3
class FastAPI: ...
app = FastAPI()
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    (tmp_path / "my_server.py").write_text(AGENT)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refusal(path: str) -> str:
    with pytest.raises(AgentLoopLoadError) as raised:
        load_agent_loop(path)
    error = raised.value.message
    assert "\n" not in error
    return f"{error} | {raised.value.hint}"


@pytest.mark.usefixtures("directory")
def test_load_agent_loop() -> None:
    assert load_agent_loop("my_server:agent_loop").name == "a"
    assert load_agent_loop("my_server:Agent").name == "a"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("my_server", "'my_server' does not name the agent: write module:attribute, e.g. server:agent_loop"),
        ("my_server:", "write module:attribute"),
        (":agent_loop", "write module:attribute"),
        ("my_serve:agent_loop", "there is no module 'my_serve'"),
        ("my_serve:agent_loop", "did you mean 'my_server'?"),
        ("my_server.py:agent_loop", "neither slashes nor a suffix: my_server"),
        (
            "my_server:agent_lop",
            "module 'my_server' has no attribute 'agent_lop' | did you mean 'agent_loop'?",
        ),
        ("my_server:number", "is of type int, no RolloutAgentLoop"),
        ("my_server:Other", "is the class Other, which is no RolloutAgentLoop"),
        ("my_server:app", "not the app"),
        (
            "my_server:Built",
            "cannot be built without arguments: KeyError: 'missing' (my_server.py:9, in __init__)",
        ),
    ],
)
def test_references_that_cannot_be_loaded(path: str, error: str) -> None:
    assert error in refusal(path)


@pytest.mark.parametrize(
    ("code", "error", "location"),
    [
        (
            "import json\n\ndef load():\n    json.loads('{')\n\nload()",
            "JSONDecodeError: Expecting property name",
            "(broken.py:4, in load)",
        ),
        (
            "import not_installed_anywhere",
            "No module named 'not_installed_anywhere'",
            "(broken.py:1, in <module>)",
        ),
        ("import sys\nsys.exit(3)", "SystemExit: 3", "(broken.py:2, in <module>)"),
        ("def f(:\n  pass", "SyntaxError", "(broken.py:1)"),
        ("raise ValueError", "failed on import: ValueError", "(broken.py:1"),
    ],
)
def test_a_module_that_fails_on_import(code: str, error: str, location: str, directory: Path) -> None:
    (directory / "broken.py").write_text(code)
    message = refusal("broken:agent")
    assert error in message
    assert location in message


@pytest.mark.parametrize(
    ("source", "holds"),
    [
        ("agent_loop = Calculator()", True),
        ("agent_loop: RolloutAgentLoop = Calculator()", True),
        ("from calculator import agent_loop", True),
        ("if DEBUG:\n    agent_loop = Calculator()\nelse:\n    agent_loop = Other()", True),
        ("try:\n    from fast import agent_loop\nexcept ImportError:\n    agent_loop = Slow()", True),
        ("if __name__ == '__main__':\n    agent_loop = Calculator()", False),
        ("if TYPE_CHECKING:\n    from calculator import agent_loop", False),
        ("from calculator import Calculator as agent_loop", True),
        ("from osmosis_ai.rollout import create_app\napp = create_app(Calculator())", True),
        ("import osmosis_ai.rollout as r\napp = r.create_app(Calculator())", True),
        ("from osmosis_ai.rollout import create_app as make\napp = make(Calculator())", True),
        # A factory of the user's own, which serves a workflow.
        ("def create_app(): ...\napp = create_app()", False),
        ("app = create_app(Calculator())", False),
        ("def agent_loop(): ...", False),
        ("def main():\n    agent_loop = Calculator()", False),
        ("agent_loop = Calculator()\nfrom osmosis_ai.rollout.server import create_rollout_server", False),
        ("agent_loop = (", False),
        ("", False),
    ],
)
def test_detection_of_agent_loops_in_source(source: str, holds: bool, tmp_path: Path) -> None:
    entrypoint = tmp_path / "main.py"
    entrypoint.write_text(source)
    assert holds_an_agent_loop(entrypoint) is holds


def test_references_and_file_names() -> None:
    assert names_an_attribute("server:agent_loop")
    assert names_an_attribute("my.package:Agent")
    for file in ("main.py", "src/main.py", "C:/main.py", "a b:c", ":x", "x:", "main"):
        assert not names_an_attribute(file)
