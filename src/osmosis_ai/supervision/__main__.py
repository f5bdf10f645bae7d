"""Run a third-party program that ends with its starter.

A child of :class:`osmosis_ai.supervision.ChildProcess` watches a pipe to notice the end of its parent. This process
watches it for programs that do not. Both share a process group, which ends as a whole.

    python -m osmosis_ai.supervision PROGRAM ARGUMENT ...
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys

from osmosis_ai.supervision.child_process import watch_parent


def main(command: list[str]) -> int:
    """Run ``command`` to its end, and end as it did; returns its exit status unless that was a signal."""
    watch_parent()
    # The group is asked to end, the program with it: its own way of ending is waited for.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        status = subprocess.call(command)
    except OSError as error:
        sys.exit(f"`{command[0]}` cannot be started: {error.strerror or error}")
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one of the program is enough
        with contextlib.suppress(OSError):  # nobody may handle SIGKILL anyway
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
