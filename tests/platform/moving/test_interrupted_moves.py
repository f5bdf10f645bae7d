"""A move back, killed and repeated: what it replaces is kept once, its file is told, and nothing else is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.platform.services import PlatformServices
from tests.cli.conftest import Cli

_KILLED = """
import importlib, os, sys
from osmosis_ai.cli.main import main
from osmosis_ai.files import replacing
from osmosis_ai.platform import backup
from osmosis_ai.platform.moving.database_move import DatabaseMove
from osmosis_ai.platform.moving.files_move import FilesMove

def end(*_, **__):
    os.kill(os.getpid(), 9)

def begin_to_write(stage, target, **_):
    with replacing(target) as file:
        file.write(b"a part")
        file.flush()
        end()

match sys.argv.pop(1):
    case "while the backup is written":
        backup.write = begin_to_write
    case "before the backup is used":
        DatabaseMove.begin = end
    case "while rows are copied":
        DatabaseMove.copy = end
    case "at the end":
        DatabaseMove.arrive = end
    case "before it is told":
        importlib.import_module("osmosis_ai.cli.platform.move")._message = end
main()
"""
_MOMENTS = [
    "while the backup is written",
    "before the backup is used",
    "while rows are copied",
    "at the end",
    "before it is told",
]


@pytest.fixture
def back(services: PlatformServices, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a move back to where the platform was: to its data directory."""
    home = services.config.home
    monkeypatch.setenv("OSMOSIS_HOME", str(home))
    there = f"sqlite:///{tmp_path / 'other.db'}"
    moved = cli("platform", "move", "--database", there)
    assert moved.status == 0, moved.err
    assert f"export OSMOSIS_DATABASE_URL='{there}'" in moved.out
    monkeypatch.setenv("OSMOSIS_DATABASE_URL", there)
    return ["platform", "move", "--database", "sqlite", "--replace"]


def killed(moment: str, *words: str) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, moment, *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, (done.stdout, done.stderr)


def beside(services: PlatformServices) -> list[Path]:
    home = services.config.home
    return sorted(path for path in home.parent.iterdir() if "before-move" in path.name)


@pytest.mark.parametrize(
    "moment",
    [pytest.param(moment, marks=[pytest.mark.nightly] * (moment != "at the end")) for moment in _MOMENTS],
)
def test_a_move_back_that_was_killed_leaves_one_backup_and_says_where_it_is(
    services: PlatformServices, cli: Cli, back: list[str], moment: str
) -> None:
    killed(moment, *back)
    left = beside(services)
    assert len(left) == 1 and left[0].name.startswith(".") == (moment == _MOMENTS[0])
    done = cli(*back)
    assert done.status == 0, done.err
    (kept,) = beside(services)
    assert not kept.name.startswith(".") and (moment == _MOMENTS[0] or [kept] == left)
    assert f"What was replaced: {kept}" in done.out
    again = cli(*back, "--json")
    assert json.loads(again.out)["resource"]["backup"] == str(kept)


def test_the_file_that_was_named_for_the_backup_is_taken_as_it_is_when_the_move_goes_on(
    services: PlatformServices, cli: Cli, back: list[str], tmp_path: Path
) -> None:
    named = tmp_path / "kept [1].tar.gz"
    back += ["--backup", str(named)]
    killed("while the backup is written", *back)
    killed("before the backup is used", *back)
    written = named.read_bytes()
    assert not list(tmp_path.glob(".kept*"))
    done = cli(*back)
    assert done.status == 0, done.err
    assert f"What was replaced: {named}" in done.out
    assert named.read_bytes() == written and beside(services) == []


def test_a_file_that_is_somebody_elses_is_not_taken_for_the_backup(
    cli: Cli, back: list[str], tmp_path: Path
) -> None:
    named = tmp_path / "mine.tar.gz"
    named.write_bytes(b"mine")
    for _ in range(2):
        refused = cli(*back, "--backup", str(named))
        assert refused.status == 1 and f"{named} exists already" in refused.err
    assert named.read_bytes() == b"mine"
