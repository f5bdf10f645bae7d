"""A sync of a repository that was killed with SIGKILL is repeated completely."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.platform.gitsync.mirror import MirrorStore
from tests.platform.gitsync.repositories import Repository

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

MOMENTS = (
    "the platform, while Git clones",
    "Git and the platform, while Git fetches",
    "the platform, after a fetch",
)

_BRANCHES = 300
_KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from osmosis_ai.platform.gitsync import mirror
from osmosis_ai.platform.gitsync.git import Git
from tests.platform.gitsync.repositories import Source

root, url, with_git, at = sys.argv[1:5]
real = Git.run

def die(process=None):
    if process is not None and with_git == "1":
        os.killpg(process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

def run(self, arguments, **options):
    if "fetch" not in arguments:
        return real(self, arguments, **options)
    if at == "after":
        real(self, arguments, **options)
        die()
    known = set(self._running)

    def watch():
        # Git has begun to write: refs are locked, or objects are there.
        directory = Path(next(a for a in arguments if a.startswith("--git-dir=")).partition("=")[2])
        before = len(list(directory.rglob("*")))
        while len(list(directory.rglob("*"))) < before + 3:
            pass
        die(next(iter(self._running - known), None))

    threading.Thread(target=watch, daemon=True).start()
    return real(self, arguments, **options)

Git.run = run
mirror.MirrorStore(Path(root)).sync(Source(url))
threading.Event().wait()  # until the other thread has seen that Git has written
"""


def many_branches(repository: Repository, name: str) -> str:
    """Commit and create many branches of the commit; return it."""
    sha = repository.commit(f"{name}.txt", **{f"{name}.txt": name * 100_000})
    lines = "".join(f"create refs/heads/{name}-{number} {sha}\n" for number in range(_BRANCHES))
    repository.git("update-ref", "--stdin", stdin=lines.encode())
    return sha


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_sync_is_repeated(tmp_path: Path, moment: str) -> None:
    repository = Repository(tmp_path / "work")
    first = many_branches(repository, "first")
    root = tmp_path / "home" / "git"
    store = MirrorStore(root)
    if moment != MOMENTS[0]:
        store.sync(repository.source)
    newest = many_branches(repository, "second")
    at = "after" if moment == MOMENTS[2] else "within"
    with_git = "1" if moment == MOMENTS[1] else "0"
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(root), repository.source.clone_url, with_git, at],
        cwd=Path(__file__).parents[2],
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert store.sync(repository.source) == newest
    assert len(store.branches(repository.source)) == 2 * _BRANCHES + 1
    store.export(repository.source, first, tmp_path / "out")
    assert (tmp_path / "out" / "first.txt").stat().st_size == 500_000
    assert not list(root.glob(".*.partial"))
    store.close()
