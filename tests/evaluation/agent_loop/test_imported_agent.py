"""Which files make up an imported agent, for what a resume is locked on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from osmosis_ai.evaluation.agent_loop.imported_agent import imported_files


def test_the_users_own_files_count_and_modules_made_at_run_time_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Path.cwd()
    own = here / "own_agent.py"
    own.write_text("")
    made, imported = ModuleType("_classes_of_a_library"), ModuleType("own_agent")
    made.__file__, imported.__file__ = "_classes.py", str(own)  # as `torch.classes` has it
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(sys.modules, imported.__name__, imported)
    assert imported_files(here.resolve(), "own_agent:agent_loop") == (own.resolve(),)
