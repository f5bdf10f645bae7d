"""Run Git, always with the same hardening.

A repository is untrusted: its hooks, helpers, submodules and configuration are disabled, Git never prompts, and
every command has a deadline at which it ends with all its children. Machine and user settings are ignored. Operators
configure Git (proxy, certificate, credential helper) in the file ``config`` next to the mirrors.

Reads use the Git binary too. GitPython has deprecated its own object reader for security and speed. It would assemble
an untrusted delta in the platform's memory, while Git streams it and ends at its deadline. It also decodes
`packed-refs` strictly, so one branch name that is not UTF-8 would hide all others.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.process_environment import chosen

LOCAL_TIMEOUT_S = 60.0
"""Timeout of commands that only read a mirror."""
_MOST_BYTES = 256 << 20
_MOST_ERROR_BYTES = 1 << 20

_OPTIONS = (
    *("-c", "protocol.ext.allow=never"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false"),
    *("-c", "fetch.recurseSubmodules=false"),
    # A connection over which nothing comes for a minute is dead.
    *("-c", "http.lowSpeedLimit=1"),
    *("-c", "http.lowSpeedTime=60"),
    # A run names its commit; it must stay readable after its branch was rewritten or deleted.
    *("-c", "gc.pruneExpire=never"),
    *("-c", "gc.cruftPacks=true"),
    *("-c", "gc.autoDetach=false"),
)
_SSH_COMMAND = "ssh -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=15 -oServerAliveCountMax=4"
# What Git and ssh need of this process's environment. All else stays out: it holds the platform's own secrets.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"),
)
_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/\s@']+@")
_REASON = re.compile(r"^(fatal|error|remote|ERROR|ssh): *|^(?=Host key|Permission denied|ssh: )")


class GitError(OsmosisError):
    """A Git command failed."""

    default_code = "PLATFORM_ERROR"


@dataclass(frozen=True)
class GitResult:
    """The result of a command."""

    exit_status: int
    output: bytes
    errors: str

    @property
    def reason(self) -> str:
        """Git's error message in one line, without users and passwords of URLs."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        reasons = [line for line in lines if _REASON.search(line)] or lines[-1:]
        text = "; ".join(dict.fromkeys(_REASON.sub("", line).strip().rstrip(".") for line in reasons))
        shown = _CREDENTIALS_IN_URL.sub("[REDACTED]@", text)
        return shown or f"Git ended with exit status {self.exit_status}"


class Git:
    """Starts Git."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float = LOCAL_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
        keep_open: Sequence[int] = (),
        most_bytes: int = _MOST_BYTES,
    ) -> GitResult:
        """Run one command to its end, whatever its exit status.

        The output is limited because its size is untrusted: a few objects can form a tree of billions of files.
        """
        shown = f"`git {next((argument for argument in arguments if not argument.startswith('-')), '')}`"
        with (
            tempfile.TemporaryFile() as errors,
            self._started(
                arguments, timeout_s, environment or {}, stderr=errors.fileno(), keep_open=keep_open
            ) as (process, is_late),
        ):
            assert process.stdout is not None
            output = process.stdout.read(most_bytes + 1)
            if len(output) > most_bytes:
                raise GitError(f"{shown} produced too much output.")
            status = process.wait()
            if is_late.is_set():
                raise GitError(f"{shown} did not finish within {timeout_s:g} s.")
            errors.seek(0)
            return GitResult(status, output, errors.read(_MOST_ERROR_BYTES).decode("utf-8", "replace"))

    @contextlib.contextmanager
    def conversation(
        self, arguments: Sequence[str], *, timeout_s: float = LOCAL_TIMEOUT_S
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command that reads requests from its input and writes replies, while the block lasts."""
        with self._started(arguments, timeout_s, {}, stdin=subprocess.PIPE) as (process, _):
            yield process

    def close(self) -> None:
        """End running commands and start no more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _end(process)

    @contextlib.contextmanager
    def _started(
        self,
        arguments: Sequence[str],
        timeout_s: float,
        environment: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        keep_open: Sequence[int] = (),
    ) -> Iterator[tuple[subprocess.Popen[bytes], threading.Event]]:
        """Start Git in its own process group, which ends with the block or the timeout, which sets the event."""
        is_late = threading.Event()
        with self._lock:
            if self._closed:
                raise GitError("the platform is stopping.")
            try:
                process = subprocess.Popen(
                    ["git", *_OPTIONS, *arguments],
                    cwd=self.directory,
                    env={**self._environment(), **environment},
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    pass_fds=keep_open,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise GitError("Git is not installed: no `git` was found on PATH.") from None
            self._running.add(process)

        def give_up() -> None:
            is_late.set()
            _end(process)

        deadline = threading.Timer(timeout_s, give_up)
        deadline.daemon = True
        try:
            with process:
                try:
                    deadline.start()
                    yield process, is_late
                finally:
                    deadline.cancel()
                    _end(process)
        finally:
            with self._lock:
                self._running.discard(process)

    def _environment(self) -> dict[str, str]:
        config = self.directory / "config"
        return {
            **chosen(os.environ, _INHERITED),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(config) if config.is_file() else os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_SSH_COMMAND": _SSH_COMMAND,
            "GIT_SSH_VARIANT": "ssh",
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its leader while a transport helper hangs; macOS forbids signalling zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
