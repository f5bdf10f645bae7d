"""First program of a sandbox without network: create the one socket that leads out, then exec the next program.

    python -I -S inner_listener.py CHANNEL_FD PORT PROGRAM ARGUMENT ...

The socket is sent through the channel, a Unix socket, and both are closed before the program starts. No rollout code
is loaded here: no site directory, no Python variables.
"""

import os
import socket
import sys

LOOPBACK = "127.0.0.1"
_BACKLOG = 2048


def main(channel: int, port: int, command: list[str]) -> None:
    """Listen at ``port``, send the socket out, and become ``command``."""
    with (
        socket.socket(fileno=channel) as out,
        socket.create_server((LOOPBACK, port), backlog=_BACKLOG) as made,
    ):
        socket.send_fds(out, [b"."], [made.fileno()])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
