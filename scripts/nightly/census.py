"""Watches the processes of workers and all their descendants, including orphaned ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.e2e.platform_process import WORKER

OUTLIVED_S = 10.0
"""How long descendants of a worker may outlive it, in seconds."""
_LOOK_S = 0.15


class Living(NamedTuple):
    """A process; its id alone may be reused later."""

    pid: int
    began: int


@dataclass(eq=False)
class WatchedWorker:
    """A worker and its descendants.

    Attributes:
        ended_at: When it was found to have ended, in monotonic seconds.
        quiet_at: When all its descendants had ended, too.
    """

    process: Living
    host: int
    shard_id: str
    below: set[Living] = field(default_factory=set)
    ended_at: float | None = None
    quiet_at: float | None = None

    @property
    def outlived_s(self) -> float:
        """How long its descendants have outlived it."""
        if self.ended_at is None:
            return 0.0
        return (self.quiet_at or time.monotonic()) - self.ended_at


class Census:
    """Looks at all processes at short intervals, in a thread.

    Args:
        hosts: Returns the processes that start workers.
    """

    def __init__(self, hosts: Callable[[], Iterable[int]]) -> None:
        self._hosts = hosts
        self._lock = threading.Lock()
        self._workers: dict[Living, WatchedWorker] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="census", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()

    def worker_of(self, host: int) -> WatchedWorker | None:
        """Return the current worker of a host."""
        with self._lock:
            at_work = (each for each in self._workers.values() if each.host == host and each.ended_at is None)
            return next(at_work, None)

    def below(self, worker: WatchedWorker, words: str = "") -> list[int]:
        """Return the living descendants of a worker whose command contains ``words``."""
        with self._lock:
            members = list(worker.below)
        return [
            member.pid
            for member in members
            if _began(member.pid) == member.began and words in _command(member.pid)
        ]

    def command(self, pid: int) -> str:
        """Return the start of a process's command."""
        return _command(pid).replace("\0", " ")[:200]

    def workers(self) -> list[WatchedWorker]:
        """Return all workers seen so far."""
        with self._lock:
            return list(self._workers.values())

    def _work(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        alive, children = _processes()
        with self._lock:
            for host in self._hosts():
                for pid in children.get(host, ()):
                    process = Living(pid, alive[pid])
                    if process not in self._workers and WORKER in _command(pid).split("\0"):
                        with suppress(OSError):  # it has just ended
                            # Workers run in the directory of their shard.
                            shard_id = Path(f"/proc/{pid}/cwd").readlink().name
                            self._workers[process] = WatchedWorker(process, host, shard_id)
            for worker in self._workers.values():
                if worker.quiet_at is None:
                    self._update(worker, alive, children)

    def _update(self, worker: WatchedWorker, alive: dict[int, int], children: dict[int, list[int]]) -> None:
        seen = {worker.process, *worker.below}
        for root in [each for each in seen if alive.get(each.pid) == each.began]:
            worker.below |= {Living(pid, alive[pid]) for pid in _descendants(root.pid, children)}
        if alive.get(worker.process.pid) != worker.process.began:
            worker.ended_at = worker.ended_at or time.monotonic()
            if all(alive.get(each.pid) != each.began for each in worker.below):
                worker.quiet_at = time.monotonic()


def _processes() -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the start time of each living process, and the children of each."""
    alive: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and (stat := _stat(int(directory.name))) is not None:
            state, parent, began = stat
            if state not in "ZX":
                alive[int(directory.name)] = began
                children.setdefault(parent, []).append(int(directory.name))
    return alive, children


def _stat(pid: int) -> tuple[str, int, int] | None:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return words[0], int(words[1]), int(words[19])
    return None


def _began(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[2]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _descendants(root: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(root, ()):
        yield child
        yield from _descendants(child, children)
