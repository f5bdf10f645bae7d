"""What is known of an entrypoint before it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.rollout.loop.entrypoints import holds_an_agent_loop, names_an_attribute


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
def test_an_entrypoint_that_holds_an_agent_loop_is_known_by_its_text(
    source: str, holds: bool, tmp_path: Path
) -> None:
    entrypoint = tmp_path / "main.py"
    entrypoint.write_text(source)
    assert holds_an_agent_loop(entrypoint) is holds


def test_a_reference_is_told_from_a_file() -> None:
    assert names_an_attribute("server:agent_loop")
    assert names_an_attribute("my.package:Agent")
    for file in ("main.py", "src/main.py", "C:/main.py", "a b:c", ":x", "x:", "main"):
        assert not names_an_attribute(file)
