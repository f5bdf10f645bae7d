"""The program's entry: the version needs no command, and no failure leaves a traceback behind.

This module imports nothing at its top; what a call needs is imported by the call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

BROKEN_PIPE_STATUS = 141  # what a shell reports for a process that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; never raises but on a bug in the frame.

    Args:
        argv: the arguments without the program's name; this process's own when None.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments in (["-V"], ["--version"]):
            from osmosis_ai._version import __version__

            sys.stdout.write(f"osmosis-ai {__version__}\n")
            status = 0
        else:
            from osmosis_ai.cli.application import run

            status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()
        return BROKEN_PIPE_STATUS
    return status


def _let_go_of_stdout() -> None:
    """Keep the interpreter's own flush at exit from complaining about the reader that left."""
    import os

    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
