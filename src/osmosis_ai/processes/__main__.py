"""Run a third-party program that ends with its starter: ``python -m osmosis_ai.processes PROGRAM ARGUMENT ...``

This process watches the lifeline for a program that does not know it. Both share a process group.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from osmosis_ai.processes.child_process import watch_parent
from osmosis_ai.processes.reaper import end_as

if __name__ == "__main__":
    watch_parent()
    # SIGTERM reaches the whole group: wait until the program has ended in its own way.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        end_as(subprocess.call(sys.argv[1:]))
    except OSError as error:
        sys.exit(f"`{sys.argv[1]}` cannot be started: {error.strerror or error}")
