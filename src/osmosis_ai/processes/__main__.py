"""Run a third-party program that ends with its starter: ``python -m osmosis_ai.processes PROGRAM ARGUMENT ...``

This process watches the lifeline for a program that does not know it. Both share a process group.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys

from osmosis_ai.processes.child_process import watch_parent


def main(command: list[str]) -> int:
    """Run ``command`` and end as it did; returns its exit status unless that was a signal."""
    watch_parent()
    # SIGTERM reaches the whole group: wait until the program has ended in its own way.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        status = subprocess.call(command)
    except OSError as error:
        sys.exit(f"`{command[0]}` cannot be started: {error.strerror or error}")
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has written its own core file
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
