"""Processes that are forked warm stand for their clients, and for nobody who has a client's number later."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.warm_osmosis import process_of, warm_python

pytestmark = pytest.mark.integration


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
