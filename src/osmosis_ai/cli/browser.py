"""The user's browser: whether one would open a window here, and how to reach a page of this machine from another."""

from __future__ import annotations

import getpass
import os
import socket
import sys


def open_browser(page: str) -> bool:
    """Show a web page in the user's browser; False where none would open a window of its own."""
    return page.startswith(("https://", "http://")) and _shown(page)


def open_own_file(page: str) -> bool:
    """Show a file that this command wrote, by its ``file:`` address; False where no browser opens a window."""
    return page.startswith("file://") and _shown(page)


def _shown(page: str) -> bool:
    if not _has_windows():
        return False
    import webbrowser

    try:
        return webbrowser.open(page)
    except webbrowser.Error:
        return False


def _has_windows() -> bool:
    return not sys.platform.startswith("linux") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def is_remote() -> bool:
    """Tell whether the user sits at another machine, as SSH says."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def tunnel_command(host: str, port: int) -> str:
    """Return what to type on one's own machine so that a port of this one's loopback is there, too."""
    try:
        user = f"{getpass.getuser()}@"
    except (KeyError, OSError):
        user = ""
    here = "" if host == "127.0.0.1" else f"{host}:"
    return f"ssh -N -L {here}{port}:{host}:{port} {user}{socket.gethostname()}"
