"""Loading an agent loop that the user names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.rollout.loop.exceptions import AgentLoopLoadError
from osmosis_ai.rollout.loop.loading import load_agent_loop

AGENT = """
from osmosis_ai.rollout.loop.agent import RolloutAgentLoop
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


@pytest.fixture(autouse=True)
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
    told = raised.value.message
    assert "\n" not in told
    return f"{told} | {raised.value.hint}"


def test_an_object_and_a_class_are_loaded_from_the_working_directory() -> None:
    assert load_agent_loop("my_server:agent_loop").name == "a"
    assert load_agent_loop("my_server:Agent").name == "a"


@pytest.mark.parametrize(
    ("path", "told"),
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
def test_what_cannot_be_loaded_says_why_in_one_line(path: str, told: str) -> None:
    assert told in refusal(path)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "import json\n\ndef load():\n    json.loads('{')\n\nload()",
            "JSONDecodeError: Expecting property name",
        ),
        ("import json\n\ndef load():\n    json.loads('{')\n\nload()", "(broken.py:4, in load)"),
        (
            "import not_installed_anywhere",
            "No module named 'not_installed_anywhere' (broken.py:1, in <module>)",
        ),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (broken.py:2, in <module>)"),
        ("def f(:\n  pass", "SyntaxError"),
        ("def f(:\n  pass", "(broken.py:1)"),
        ("raise ValueError", "failed on import: ValueError (broken.py:1"),
    ],
)
def test_a_module_that_fails_on_import_names_the_users_last_line(
    code: str, told: str, directory: Path
) -> None:
    (directory / "broken.py").write_text(code)
    assert told in refusal("broken:agent")


def test_a_file_that_is_hidden_by_a_module_of_python_s_is_pointed_out(directory: Path) -> None:
    (directory / "json.py").write_text(AGENT)
    assert "there is another module 'json' (" in refusal("json:agent_loop")
    assert "call json.py something else" in refusal("json:agent_loop")
    assert "another module" not in refusal("my_server:missing")
