"""The directory of the demo, and a failing command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.process_state import running_platform
from osmosis_ai.services.demo import CONFIG, prepare_scratch, run_demo


def test_scratch_workspace(home: Path) -> None:
    scratch = prepare_scratch(None)
    assert not scratch.root.is_relative_to(home)
    assert (scratch.workspace / CONFIG).is_file()
    assert list(home.iterdir()) == []


def test_directory_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(OsmosisError, match="is not an empty directory"):
        prepare_scratch(tmp_path)
    assert prepare_scratch(tmp_path / "new" / "place").workspace == tmp_path / "new" / "place" / "workspace"


def test_scratch_environment(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    environment = scratch.environment(
        {
            "PATH": "/bin",
            "OSMOSIS_TOKEN": "t",
            "OSMOSIS_PLATFORM_URL": "https://a.example",
            "OSMOSIS_DEBUG": "1",
            "_OSMOSIS_COMPLETE": "x",
            "GIT_DIR": "/elsewhere/.git",
        }
    )
    assert environment["PATH"] == "/bin"
    assert environment["OSMOSIS_DEBUG"] == "1"
    assert not {"OSMOSIS_TOKEN", "OSMOSIS_PLATFORM_URL", "_OSMOSIS_COMPLETE", "GIT_DIR"} & set(environment)
    assert environment["GIT_CONFIG_GLOBAL"] == "/dev/null"
    for name in ("OSMOSIS_CONFIG_DIR", "OSMOSIS_CACHE_DIR", "OSMOSIS_HOME", "OSMOSIS_ENV_FILE"):
        assert Path(environment[name]).is_relative_to(scratch.root)
        assert Path(environment[name]).exists()


@pytest.mark.e2e
def test_failing_platform_ends_the_demo(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "demo")
    (scratch.root / "data" / "platform.db").write_text("no database")
    shown: list[str] = []

    def show(command: str) -> AbstractContextManager[Callable[[str], None]]:
        shown.append(command)
        return nullcontext(shown.append)

    with pytest.raises(OsmosisError, match=r"^`osmosis platform start` failed: ") as failed:
        run_demo(scratch, show=show, local=False, keep=True, seed=None)
    assert "osmosis demo --local" in (failed.value.hint or "")
    assert shown == ["osmosis platform start --port 0 --login &"]
    assert running_platform(scratch.root / "data") is None
