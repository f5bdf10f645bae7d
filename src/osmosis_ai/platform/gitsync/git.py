"""Run Git and reach remote repositories, always with the same hardening.

A repository is untrusted: its hooks, helpers, submodules and configuration are disabled, Git never prompts, and
every command has a deadline at which it ends with all its children. Machine and user settings are ignored. Operators
configure Git (proxy, certificate, credential helper) in the file ``config`` next to the mirrors.

Reads use the Git binary too. GitPython has deprecated its own object reader for security and speed. It would assemble
an untrusted delta in the platform's memory, while Git streams it and ends at its deadline. It also decodes
`packed-refs` strictly, so one branch name that is not UTF-8 would hide all others.

Git accepts more than addresses: ``ext::`` runs a command, and a host that starts with a dash becomes an ssh option.
Such URLs are refused. Credentials reach Git through a pipe and apply to one host. They never appear in a command line,
environment, file or message.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from osmosis_ai.errors import OsmosisError
from osmosis_ai.process_environment import chosen
from osmosis_ai.processes.privacy import pipe_of

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
    # A connection without data for a minute is dead.
    *("-c", "http.lowSpeedLimit=1"),
    *("-c", "http.lowSpeedTime=60"),
    # A run names its commit; it must stay readable after its branch was rewritten or deleted.
    *("-c", "gc.pruneExpire=never"),
    *("-c", "gc.cruftPacks=true"),
    *("-c", "gc.autoDetach=false"),
)
_SSH_COMMAND = "ssh -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=15 -oServerAliveCountMax=4"
# Variables of this process that Git and ssh need. All else stays out: it holds the platform's own secrets.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"),
)
_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/\s@']+@")
_REASON = re.compile(r"^(fatal|error|remote|ERROR|ssh): *|^(?=Host key|Permission denied|ssh: )")


class GitError(OsmosisError):
    default_code = "PLATFORM_ERROR"


@dataclass(frozen=True)
class GitResult:
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
            self.started(
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

    def close(self) -> None:
        """End running commands and start no more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _end(process)

    @contextlib.contextmanager
    def started(
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


QUERY_TIMEOUT_S, FETCH_TIMEOUT_S = 30.0, 300.0

_BRANCHES = "refs/heads/"
_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# Git calls it with `get`, and later with `store` or `erase`.
_CREDENTIAL_HELPER = '!f() { test "$1" != get || cat "/dev/fd/$_OSMOSIS_GIT_FD"; }; f'
_HINTS = (
    (
        re.compile(r"host key", re.IGNORECASE),
        "as the platform's user, connect to the host once with `ssh` and accept its key",
    ),
    (
        re.compile(
            r"permission denied|authentication|could not read (username|password)|403|401", re.IGNORECASE
        ),
        "give the platform's user an ssh key that may read it, or name a `credential.helper` in the file "
        "`git/config` of the platform's data directory",
    ),
    (
        re.compile(r"dubious ownership", re.IGNORECASE),
        "the repository belongs to another user: give it to the platform's user, or name it as `safe.directory` "
        "in the file `git/config` of the platform's data directory",
    ),
    (
        re.compile(r"does not appear to be a git repository|not found|no such file", re.IGNORECASE),
        "check the address with `git ls-remote`, and connect the right one with `osmosis platform connect`",
    ),
)
_SCHEMES = ("https", "http", "ssh", "git", "file")
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SCP_LIKE = re.compile(r"(?:(?P<user>[^/@:]+)@)?(?P<host>\[[^\]/]+\]|[^/:@\[\]]+):(?P<path>.+)")
_HINT = "use an https or ssh address, or the absolute path of a repository on the platform's machine"


@dataclass(frozen=True)
class CloneUrl:
    address: str
    transport: str
    username: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port, to which the credentials apply."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"


def parse_clone_url(text: str) -> CloneUrl:
    text = text.strip()
    if _CONTROL.search(text):
        raise OsmosisError("the clone URL must not contain control characters.")
    if text.encode(errors="replace").decode() != text:
        raise OsmosisError("the clone URL is not valid UTF-8.", hint="rename the directory")
    if not text or text.startswith("-"):
        raise OsmosisError("the clone URL is not the address of a repository.", hint=_HINT)
    if re.match(r"[A-Za-z0-9+.-]*::", text):
        raise OsmosisError(
            f"Git remote helpers (`{text.split('::', 1)[0]}::`) can run commands and are not allowed.",
            hint=_HINT,
        )
    if "://" in text:
        return _parse_url(text)
    if text.startswith("/"):
        return CloneUrl(text, "file")
    match = _SCP_LIKE.fullmatch(text)
    if match is None or _UNSEEN.search(text):
        raise OsmosisError("the clone URL is not the address of a repository.", hint=_HINT)
    _refuse_options(match["user"] or "", match["host"], match["path"])
    return CloneUrl(text, "ssh")


def _parse_url(text: str) -> CloneUrl:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OsmosisError("the clone URL is malformed.", hint=_HINT) from None
    scheme = "ssh" if parts.scheme in ("git+ssh", "ssh+git") else parts.scheme
    if scheme not in _SCHEMES:
        raise OsmosisError(f"the clone URL has the unknown scheme '{scheme}'.", hint=_HINT)
    if scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not Path(path).is_absolute() or _CONTROL.search(path):
            raise OsmosisError("a file:// clone URL must name an absolute path on this machine.", hint=_HINT)
        return CloneUrl(path, "file")
    if not parts.hostname or _UNSEEN.search(text):
        raise OsmosisError("the clone URL names no host.", hint=_HINT)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    if _CONTROL.search(username + password):
        raise OsmosisError("the credentials in the clone URL must not contain control characters.")
    _refuse_options(username, parts.hostname, "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    if scheme == "ssh":
        # The user of an ssh address is no secret, and ssh does not use a password from there.
        netloc = f"{username}@{netloc}" if username else netloc
        return CloneUrl(urlunsplit(("ssh", netloc, parts.path, "", "")), "ssh")
    address = urlunsplit((scheme, netloc, parts.path, parts.query, ""))
    return CloneUrl(address, scheme, username or None, password)


def _refuse_options(*parts: str) -> None:
    if any(part.startswith("-") for part in parts):
        raise OsmosisError("no part of a clone URL may start with a dash.", hint=_HINT)


class SyncError(GitError):
    """A repository cannot be fetched."""


@dataclass(frozen=True)
class RemoteRefs:
    """The branches and tags of a repository, and its default branch."""

    commits: Mapping[str, str]
    default: str | None


@dataclass(frozen=True)
class Remote:
    git: Git
    identity: str
    url: CloneUrl

    def refs(self) -> RemoteRefs:
        """Return branches, tags and the default branch, which a fetch alone does not report."""
        listed = self._run(["ls-remote", "--symref", "--", self.url.address], QUERY_TIMEOUT_S)
        commits: dict[str, str] = {}
        head, head_commit = "", ""
        for line in listed.output.decode("utf-8", "surrogateescape").splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: "):
                head = value.removeprefix("ref: ")
            elif name == "HEAD":
                head_commit = value
            elif name.startswith((_BRANCHES, "refs/tags/")) and not name.endswith("^{}"):
                commits[name] = value
        if head in commits:
            return RemoteRefs(commits, head)
        # The head is detached: it is main or master, the branch at the head's commit, or the only branch.
        branches = [name for name in commits if name.startswith(_BRANCHES)]
        usual = [name for name in (f"{_BRANCHES}main", f"{_BRANCHES}master") if name in commits]
        at_head = [name for name in branches if commits[name] == head_commit]
        only = branches if len(branches) == 1 else []
        return RemoteRefs(commits, next(iter([*usual, *at_head, *only]), None))

    def fetch(self, mirror: Path, lock: int, only: str | None = None) -> None:
        """Update the branches and tags of ``mirror`` to those of the repository, or one of them."""
        options = ["--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
        # A shallow clone can be connected as well.
        options += ["--update-shallow"] if only is not None else ["--update-shallow", "--prune"]
        names = _REFSPECS if only is None else (f"+{only}:{only}",)
        self._run(
            [f"--git-dir={mirror}", "fetch", *options, "--", self.url.address, *names], FETCH_TIMEOUT_S, lock
        )

    def _run(self, arguments: list[str], timeout_s: float, *keep_open: int) -> GitResult:
        shown = f"{self.identity} cannot be fetched from {self.url.address}"
        # A server may redirect from http to https, never the other way.
        transports = "http:https" if self.url.transport == "http" else self.url.transport
        try:
            with self._credentials() as (variables, descriptors):
                result = self.git.run(
                    arguments,
                    timeout_s=timeout_s,
                    environment={"GIT_ALLOW_PROTOCOL": transports, **variables},
                    keep_open=(*keep_open, *descriptors),
                )
        except GitError as error:
            raise SyncError(f"{shown}: {error.message}") from None
        if result.exit_status != 0:
            reason = result.reason
            if self.url.password:
                reason = reason.replace(self.url.password, "[REDACTED]")
            hint = next((hint for pattern, hint in _HINTS if pattern.search(reason)), None)
            raise SyncError(f"{shown}: {reason}.", hint=hint)
        return result

    @contextmanager
    def _credentials(self) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
        """Yield the variables and descriptors that pass the credentials to one command."""
        if self.url.username is None:
            yield {}, ()
            return
        reply = f"username={self.url.username}\npassword={self.url.password}\n"
        pipe = pipe_of(reply.encode("utf-8", "surrogateescape"))
        variables = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"credential.{self.url.origin}.helper",
            "GIT_CONFIG_VALUE_0": _CREDENTIAL_HELPER,
            "_OSMOSIS_GIT_FD": str(pipe),
        }
        try:
            yield variables, (pipe,)
        finally:
            os.close(pipe)
