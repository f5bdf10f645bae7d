"""Run a program and end all its descendants, even those that forked and left its group or session.

Orphans belong to their nearest ancestor that is a subreaper (`PR_SET_CHILD_SUBREAPER` in prctl(2)), as this process
is. All descendants end when the program has ended, on SIGTERM, and when the lifeline closes, as it does when the
starter is killed. Without subreaper support, only the program's group ends.

    python -I -S reaper.py GRACE_S SCRATCH PROGRAM ARGUMENT ...

It is run by path and imports little, because one is started per program.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

LIFELINE_ENV = "_OSMOSIS_LIFELINE_FD"
_PR_SET_CHILD_SUBREAPER = 36
_LAST_EFFORT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
CANNOT_START = 127


def main(grace_s: float, scratch: str, command: list[str]) -> int:
    """Run ``command``; return its exit status as :func:`os.waitstatus_to_exitcode` gives it."""
    lifeline = int(os.environ.pop(LIFELINE_ENV))
    os.set_inheritable(lifeline, False)
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        program = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setpgroup=0,
            setsigdef=[signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE],
        )
    except OSError as error:
        sys.stderr.write(f"`{command[0]}` cannot be started: {error.strerror}\n")
        return CANNOT_START
    status, cancelled = None, False
    while status is None:
        ready, _, _ = select.select([lifeline, wake_reader], [], [])
        if lifeline in ready or signal.SIGTERM in os.read(wake_reader, 512):
            status, cancelled = _terminate(program, wake_reader, grace_s), True
            break
        status = _reap(program)
    _end_all(program)
    if cancelled:
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    return -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)


def _terminate(program: int, wake_reader: int, grace_s: float) -> int | None:
    """Terminate the program's group; return its status if it ends in time."""
    _signal_group(program, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (status := _reap(program)) is None and (left_s := deadline - time.monotonic()) > 0:
        if select.select([wake_reader], [], [], left_s)[0]:
            os.read(wake_reader, 512)
    return status


def _reap(program: int) -> int | None:
    """Collect ended children; return the program's status if it is one of them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == program:
            found = status


def _end_all(program: int) -> None:
    """Kill all descendants. One that loses its parent meanwhile becomes a child of this process."""
    _signal_group(program, signal.SIGKILL)
    deadline, pause_s = time.monotonic() + _LAST_EFFORT_S, _FIRST_PAUSE_S
    while time.monotonic() < deadline:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # ended, or another user's
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as listed:  # noqa: PTH123 - pathlib is slow to import
            return [int(pid) for pid in listed.read().split()]
    except OSError:
        pass
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
    return [pid for pid in pids if _parent(pid) == own]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            # The name in parentheses may hold anything; the state and the parent come after it.
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        return  # empty, or only zombies (macOS)


def end_as(status: int) -> None:
    """End this process as a program did that had this exit status."""
    if status >= 0:
        os._exit(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has written its own core file
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    end_as(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
