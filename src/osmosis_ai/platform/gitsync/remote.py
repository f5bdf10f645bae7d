"""List and fetch from a remote repository.

Credentials reach Git through a pipe and apply to one host. They are in no command line, environment, file or
message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.platform.gitsync.clone_url import CloneUrl
from osmosis_ai.platform.gitsync.git import Git, GitError, GitResult
from osmosis_ai.processes.privacy import pipe_of

QUERY_TIMEOUT_S = 30.0

_BRANCHES = "refs/heads/"
_REFSPECS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# Git asks once (`get`), and then says whether it was right (`store`, `erase`).
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


class SyncError(GitError):
    """A repository cannot be fetched; the message has Git's own reason."""


@dataclass(frozen=True)
class RemoteRefs:
    """What a repository has."""

    commits: Mapping[str, str]
    default: str | None


class Remote:
    """Where a repository comes from."""

    def __init__(self, git: Git, identity: str, url: CloneUrl) -> None:
        self._git = git
        self._identity = identity
        self.url = url

    def refs(self) -> RemoteRefs:
        """Ask for branches, tags and the default branch; a fetch alone would not tell which that is."""
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
        """Make the branches and tags of ``mirror`` those of the repository."""
        options = ["--quiet", "--force", "--no-tags", "--no-write-fetch-head"]
        # A checkout that was itself cloned without its history can be connected as well.
        options += ["--no-recurse-submodules", "--update-shallow"]
        options += ["--prune"] if only is None else []
        names = _REFSPECS if only is None else (f"+{only}:{only}",)
        self._run([f"--git-dir={mirror}", "fetch", *options, "--", self.url.address, *names], timeout_s, lock)

    def _run(self, arguments: list[str], timeout_s: float, *keep_open: int) -> GitResult:
        shown = f"{self._identity} cannot be fetched from {self.url.address}"
        try:
            with self._credentials() as (variables, descriptors):
                result = self._git.run(
                    arguments,
                    timeout_s=timeout_s,
                    environment={**self._environment(), **variables},
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

    def _environment(self) -> dict[str, str]:
        # A server may send a client on from http to https, never the other way.
        transports = "http:https" if self.url.transport == "http" else self.url.transport
        return {"GIT_ALLOW_PROTOCOL": transports}

    @contextmanager
    def _credentials(self) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
        """Yield the variables and descriptors by which Git has the credentials of one command."""
        if self.url.username is None:
            yield {}, ()
            return
        said = f"username={self.url.username}\npassword={self.url.password}\n"
        pipe = pipe_of(said.encode("utf-8", "surrogateescape"))
        try:
            yield (
                {
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": f"credential.{self.url.origin}.helper",
                    "GIT_CONFIG_VALUE_0": _CREDENTIAL_HELPER,
                    "_OSMOSIS_GIT_FD": str(pipe),
                },
                (pipe,),
            )
        finally:
            os.close(pipe)


def _likely_default(commits: Mapping[str, str], head_commit: str) -> str | None:
    """Choose a branch where the repository names none: the head of a checkout may be detached."""
    branches = [name for name in commits if name.startswith(_BRANCHES)]
    usual = [name for name in (f"{_BRANCHES}main", f"{_BRANCHES}master") if name in commits]
    checked_out = [name for name in branches if commits[name] == head_commit]
    only = branches if len(branches) == 1 else []
    return next(iter([*usual, *checked_out, *only]), None)
