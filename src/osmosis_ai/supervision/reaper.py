"""Run a program and end all its descendants, even those that forked and left its group or session.

The orphans of a process belong to its nearest ancestor that is a subreaper (`PR_SET_CHILD_SUBREAPER`
in prctl(2)). This process is one, so all descendants stay below it. They end when the program has ended, on SIGTERM,
and when the other end of the lifeline closes, as it does when the starter is killed. Without subreaper support,
only the program's group ends.

    python -I -S reaper.py LIFELINE_FD GRACE_S SCRATCH PROGRAM ARGUMENT ...

It is run by path and imports very little, because one is started per program.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_LAST_EFFORT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
CANNOT_START = 127


def main(lifeline: int, grace_s: float, scratch: str, command: list[str]) -> int:
    """Run ``command``; return its exit status as :func:`os.waitstatus_to_exitcode` gives it."""
    os.set_inheritable(lifeline, False)
    wakened, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _take_orphans()
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
    status, called_off = None, False
    while status is None:
        ready, _, _ = select.select([lifeline, wakened], [], [])
        if lifeline in ready or signal.SIGTERM in os.read(wakened, 512):
            status, called_off = _ask_to_end(program, wakened, grace_s), True
            break
        status = _reap(program)
    _end_all(program)
    if called_off:
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    return -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)


def _take_orphans() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _ask_to_end(program: int, wakened: int, grace_s: float) -> int | None:
    """Ask the program's group to end; return its status when it has in time."""
    _signal_group(program, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (status := _reap(program)) is None and (left_s := deadline - time.monotonic()) > 0:
        if select.select([wakened], [], [], left_s)[0]:
            os.read(wakened, 512)
    return status


def _reap(program: int) -> int | None:
    """Bury what has ended; return the program's status when it is among it."""
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
    """End every process below this one. What loses its parent on the way comes to this one, and is next."""
    _signal_group(program, signal.SIGKILL)
    deadline, pause_s = time.monotonic() + _LAST_EFFORT_S, _FIRST_PAUSE_S
    while time.monotonic() < deadline:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended, or belongs to another user
                continue
        _reap(program)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _children() -> list[int]:
    """Return the processes whose parent this one is, or has become."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as listed:  # noqa: PTH123 - no pathlib: it is dear
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
        return  # it is empty, or macOS finds only zombies in it


def _end_as(status: int) -> None:
    if status >= 0:
        os._exit(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one of the program is enough
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    _end_as(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
