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
"""How long a command that only reads a mirror may take."""

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
    """Git could not do what it was asked."""

    default_code = "PLATFORM_ERROR"


@dataclass(frozen=True)
class GitResult:
    """How a command ended."""

    exit_status: int
    output: bytes
    errors: str

    @property
    def reason(self) -> str:
        """What Git said went wrong, in one line and without credentials."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        told = [line for line in lines if _REASON.search(line)] or lines[-1:]
        text = "; ".join(dict.fromkeys(_REASON.sub("", line).strip().rstrip(".") for line in told))
        return without_credentials(text) or f"Git ended with exit status {self.exit_status}"


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
    ) -> GitResult:
        """Run one command to its end, whatever its exit status."""
        started = self._started(arguments, environment or {}, stdin=subprocess.DEVNULL, keep_open=keep_open)
        with started as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise GitError(
                    f"`git {_subcommand(arguments)}` did not finish within {timeout_s:g} s."
                ) from None
        return GitResult(process.returncode, output, errors.decode("utf-8", "replace"))

    def listing(
        self, arguments: Sequence[str], *, most_bytes: int, timeout_s: float = LOCAL_TIMEOUT_S
    ) -> GitResult:
        """Run with an output limit, for untrusted sizes: a few objects can form a tree of billions of files."""
        with (
            tempfile.TemporaryFile() as errors,
            self._started(arguments, {}, stdin=subprocess.DEVNULL, stderr=errors.fileno()) as process,
        ):
            assert process.stdout is not None
            is_late = threading.Event()

            def give_up() -> None:
                is_late.set()
                _end(process)

            deadline = threading.Timer(timeout_s, give_up)
            deadline.daemon = True
            deadline.start()
            try:
                output = process.stdout.read(most_bytes + 1)
                if len(output) > most_bytes:
                    raise GitError(f"`git {_subcommand(arguments)}` says more than can be read.")
                status = process.wait()
            finally:
                deadline.cancel()
            if is_late.is_set():
                raise GitError(f"`git {_subcommand(arguments)}` did not finish within {timeout_s:g} s.")
            errors.seek(0)
            return GitResult(status, output, errors.read().decode("utf-8", "replace"))

    @contextlib.contextmanager
    def conversation(
        self, arguments: Sequence[str], *, timeout_s: float = LOCAL_TIMEOUT_S
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command that answers on its output what it is asked on its input, while the block lasts."""
        with self._started(arguments, {}, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            deadline = threading.Timer(timeout_s, _end, [process])
            deadline.daemon = True
            deadline.start()
            try:
                yield process
            finally:
                deadline.cancel()

    def close(self) -> None:
        """End what runs and start nothing more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _end(process)

    @contextlib.contextmanager
    def _started(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stderr: int = subprocess.PIPE,
        keep_open: Sequence[int] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start Git in a process group of its own; when the block ends, the whole group does."""
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
        try:
            with process:
                try:
                    yield process
                finally:
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


def without_credentials(text: str) -> str:
    """Return ``text`` with the user and password of every URL in it taken out."""
    return _CREDENTIALS_IN_URL.sub("[REDACTED]@", text)


def _end(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its leader while a transport helper hangs; macOS forbids signalling zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _subcommand(arguments: Sequence[str]) -> str:
    return next((argument for argument in arguments if not argument.startswith("-")), "")
