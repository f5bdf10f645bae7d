"""Remote repositories: check clone URLs, list and fetch.

Git accepts more than addresses: ``ext::`` runs a command, and a host that starts with a dash becomes an ssh option.
Such URLs are refused. Credentials reach Git through a pipe and apply to one host. They are in no command line,
environment, file or message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.gitsync.git import Git, GitError, GitResult
from osmosis_ai.processes.privacy import pipe_of

QUERY_TIMEOUT_S = 30.0

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
    """A checked clone URL."""

    address: str
    transport: str
    username: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port, to which the credentials apply."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"


def parse_clone_url(text: str, *, allow_local: bool) -> CloneUrl:
    """Check a clone URL."""
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
    url = _parse_url(text) if "://" in text else _parse_short(text)
    if url.transport == "file" and not allow_local:
        raise OsmosisError(
            "a path on the platform's machine can only be connected there.",
            hint="ask an administrator for `osmosis platform connect PATH`, or use an https or ssh address",
        )
    return url


def _parse_short(text: str) -> CloneUrl:
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
        return _file_url(parts)
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


def _file_url(parts: SplitResult) -> CloneUrl:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not Path(path).is_absolute() or _CONTROL.search(path):
        raise OsmosisError("a file:// clone URL must name an absolute path on this machine.", hint=_HINT)
    return CloneUrl(path, "file")


def _refuse_options(*parts: str) -> None:
    if any(part.startswith("-") for part in parts):
        raise OsmosisError("no part of a clone URL may start with a dash.", hint=_HINT)


# -- remotes -------------------------------------------------------------------------------------------


class SyncError(GitError):
    """A repository cannot be fetched."""


@dataclass(frozen=True)
class RemoteRefs:
    """The branches and tags of a repository, and its default branch."""

    commits: Mapping[str, str]
    default: str | None


class Remote:
    """A remote repository."""

    def __init__(self, git: Git, identity: str, url: CloneUrl) -> None:
        self._git = git
        self._identity = identity
        self.url = url

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
        return RemoteRefs(commits, head if head in commits else _likely_default(commits, head_commit))

    def fetch(self, mirror: Path, *, timeout_s: float, lock: int, only: str | None = None) -> None:
        """Update the branches and tags of ``mirror`` to those of the repository, or one of them."""
        options = ["--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
        # A shallow clone can be connected as well.
        options += ["--update-shallow"] if only is not None else ["--update-shallow", "--prune"]
        names = _REFSPECS if only is None else (f"+{only}:{only}",)
        self._run([f"--git-dir={mirror}", "fetch", *options, "--", self.url.address, *names], timeout_s, lock)

    def _run(self, arguments: list[str], timeout_s: float, *keep_open: int) -> GitResult:
        shown = f"{self._identity} cannot be fetched from {self.url.address}"
        # A server may redirect from http to https, never the other way.
        transports = "http:https" if self.url.transport == "http" else self.url.transport
        try:
            with self._credentials() as (variables, descriptors):
                result = self._git.run(
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


def _likely_default(commits: Mapping[str, str], head_commit: str) -> str | None:
    """Choose a branch for a detached head: main or master, the branch at the head's commit, or the only branch."""
    branches = [name for name in commits if name.startswith(_BRANCHES)]
    usual = [name for name in (f"{_BRANCHES}main", f"{_BRANCHES}master") if name in commits]
    at_head = [name for name in branches if commits[name] == head_commit]
    only = branches if len(branches) == 1 else []
    return next(iter([*usual, *at_head, *only]), None)
