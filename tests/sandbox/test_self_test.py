"""What a trial of the sandbox leaves behind: nothing, whatever ends it, and nothing of those before it that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from osmosis_ai.sandbox.isolation import SandboxCapability, check_sandbox

pytestmark = pytest.mark.integration

LONG_AGO = time.time() - 3600
TRIED = """
import os, pathlib, shutil, signal, subprocess, sys
from osmosis_ai.sandbox.isolation import check_sandbox
home, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
def interrupted(owner, name):
    call = getattr(owner, name)
    def interrupted_call(*arguments, **options):
        if any(home.iterdir()):
            setattr(owner, name, call)
            os.kill(os.getpid(), signal.SIGINT)
        return call(*arguments, **options)
    setattr(owner, name, interrupted_call)
if moment == "while it removes":
    interrupted(shutil, "rmtree")
else:
    interrupted(subprocess.Popen, "communicate")
check_sandbox(home)
"""


def left(place: Path, name: str, *, age_s: float = 3600) -> Path:
    """Make a directory as a trial of some time ago left it."""
    directory = place / name
    (directory / "source").mkdir(parents=True)
    (directory / "canary").write_text("left")
    os.utime(directory, (time.time() - age_s,) * 2)
    return directory


@pytest.mark.parametrize("moment", ["while it tries", "while it removes"])
def test_a_trial_that_is_interrupted_leaves_no_directory(
    tmp_path: Path, capability: SandboxCapability, moment: str
) -> None:
    command = [sys.executable, "-c", TRIED, str(tmp_path), moment]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert tried.returncode == -signal.SIGINT and "KeyboardInterrupt" in tried.stderr
    assert list(tmp_path.iterdir()) == []


def test_only_what_a_killed_trial_left_is_removed(tmp_path: Path, capability: SandboxCapability) -> None:
    old = left(tmp_path, ".osmosis-canary-ab12_xyz")
    others = [
        left(tmp_path, ".osmosis-canary-ab12_new", age_s=10),  # a trial of another process
        left(tmp_path, ".osmosis-canary-of-mine"),
        left(tmp_path, "osmosis-canary-ab12_xyz"),
        left(tmp_path, "elsewhere"),
    ]
    link = tmp_path / ".osmosis-canary-linked_1"
    link.symlink_to(tmp_path / "elsewhere")
    os.utime(link, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    file = tmp_path / ".osmosis-canary-ab12file"
    file.write_text("mine")
    os.utime(file, (LONG_AGO, LONG_AGO))
    check_sandbox(tmp_path)
    assert not old.exists()
    assert [each for each in (*others, *(each / "canary" for each in others)) if not each.exists()] == []
    assert link.is_symlink() and file.read_text() == "mine"
