"""Processes that are forked warm stand for their clients, and for nobody who has a client's number later."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.warm_osmosis import process_of, remove_left, warm_python

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.integration


STARTED = """
import os, time
from tests.warm_osmosis import _SERVERS, warm_python
_SERVERS.clear()  # of the process that this one is forked from
print(os.path.dirname(warm_python()), flush=True)
time.sleep(600)
"""


def test_nothing_stays_of_a_session_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = warm_python()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([python, "-c", STARTED], cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        try:
            assert session.stdout is not None
            directory = Path(session.stdout.readline().strip())
            assert directory.parent == tmp_path and (directory / "owner").read_text().split()[0].isdigit()
            remove_left(tmp_path)
            assert (directory / "python").exists(), "the session that started it is still there"
        finally:
            session.kill()
    by = time.monotonic() + 60
    while directory.exists() and time.monotonic() < by:
        time.sleep(0.01)
    assert not directory.exists()


def test_what_killed_servers_left_goes_with_the_next_session_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    owners = {
        "osmosis-warm-of-gone": f"{gone.pid} 1",
        "osmosis-warm-of-namesake": f"{os.getpid()} 1",  # another process had this number
        "osmosis-warm-of-us": f"{os.getpid()} {began}",
        "osmosis-warm-begun": None,
        "osmosis-warm-odd": "nobody",
        "warm": f"{gone.pid} 1",
    }
    for name, owner in owners.items():
        (tmp_path / name).mkdir()
        if owner is not None:
            (tmp_path / name / "owner").write_text(owner)
    (tmp_path / "osmosis-warm-linked").symlink_to(tmp_path / "warm")
    remove_left(tmp_path)
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == [
        "osmosis-warm-begun",
        "osmosis-warm-linked",
        "osmosis-warm-odd",
        "osmosis-warm-of-us",
        "warm",
    ]
    assert (tmp_path / "warm" / "owner").exists()


def test_a_client_that_has_ended_stands_for_no_process_any_more() -> None:
    python = Path(warm_python())
    words = [python, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None and client.stdout.readline() == b"ready\n"
        forked = process_of(client.pid)
        note = python.parent / "processes" / str(client.pid)
        assert forked != client.pid and note.read_text() == str(forked)
    assert client.returncode == 1, "its input ended"
    assert not note.exists()
    assert process_of(client.pid) == client.pid
