"""That a test with a full disk leaves nothing behind that breaks the tests after it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.full_disk import NO_CACHED_CODE, files_of_at_most, limit_files

# Its cached code is larger than what is allowed.
MODULE = "words = [" + ", ".join(f"'word {number}'" for number in range(1000)) + "]\n"
ROOM = 4096


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "wordy.py").write_text(MODULE)
    return tmp_path


def test_what_is_imported_on_a_full_disk_is_imported_anew_later(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(module))
    with files_of_at_most(ROOM):
        with pytest.raises(OSError, match="File too large"):
            (module / "file").write_bytes(b"x" * 2 * ROOM)
        importlib.import_module("wordy")
    monkeypatch.delitem(sys.modules, "wordy")
    assert len(importlib.import_module("wordy").words) == 1000
    monkeypatch.delitem(sys.modules, "wordy")


def test_what_a_process_on_a_full_disk_imports_is_imported_anew_later(module: Path) -> None:
    for limited in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", "import wordy; print(len(wordy.words))"],
            cwd=module,
            env={**os.environ, **(NO_CACHED_CODE if limited else {})},
            preexec_fn=partial(limit_files, ROOM) if limited else None,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
