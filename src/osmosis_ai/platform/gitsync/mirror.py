"""A bare mirror per connected repository, updated atomically; commits named by runs are kept.

A mirror appears when its first fetch has succeeded, and a failed fetch changes nothing. One process at a time fetches
(with a file lock), and any number may read. Branches deleted upstream are pruned, but commits never are, so submitted
runs can always be resumed.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from osmosis_ai.errors import ErrorCode, NotFoundError, OsmosisError
from osmosis_ai.platform.gitsync.clone_url import parse_clone_url
from osmosis_ai.platform.gitsync.export import ExportedTree, export_commit
from osmosis_ai.platform.gitsync.git import Git, GitError
from osmosis_ai.platform.gitsync.mirror_lock import exclusive_fetch, remove_stale_locks
from osmosis_ai.platform.gitsync.remote import QUERY_TIMEOUT_S, Remote, RemoteRefs, SyncError
from osmosis_ai.platform.gitsync.rollouts import RolloutDirectory, find_rollouts
from osmosis_ai.platform.gitsync.tree import REGULAR, list_tree, read_objects

FETCH_TIMEOUT_S = 300.0
MAX_READ_BYTES = 8 * 1024 * 1024

_STAMP = "osmosis-fetched"

_REPOSITORY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}|[0-9a-fA-F]{64}")


class RepositorySource(Protocol):
    """What a mirror needs to know of a connected repository; its row has it."""

    @property
    def id(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def clone_url(self) -> str: ...

    @property
    def default_branch(self) -> str | None: ...


class RevisionError(OsmosisError):
    """A branch or commit that was asked for is not there."""

    def __init__(
        self,
        message: str,
        *,
        field: str,
        code: ErrorCode = "NOT_FOUND",
        suggestion: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, details={"key": f"experiment.{field}"}, hint=hint)
        self.field = field
        self.suggestion = suggestion


@dataclass(frozen=True)
class Source:
    """A repository that is not connected yet, as :class:`RepositorySource`."""

    identity: str
    clone_url: str
    id: str = ""
    default_branch: str | None = None


@dataclass(frozen=True)
class MirrorHead:
    """The default branch as last fetched; both are None while the repository is empty."""

    branch: str | None
    sha: str | None


class MirrorStore:
    """The mirrors under one directory."""

    def __init__(self, root: Path, *, fetch_timeout_s: float = FETCH_TIMEOUT_S) -> None:
        self.root = root
        self._git = Git(root)
        self._fetch_timeout_s = fetch_timeout_s

    def __repr__(self) -> str:
        return f"MirrorStore({str(self.root)!r})"

    def close(self) -> None:
        """End what Git still does; nothing can be asked afterwards."""
        self._git.close()

    def probe(self, repository: RepositorySource) -> RemoteRefs:
        """Ask the place a repository is cloned from what it has; nothing is fetched, and nothing written."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._remote(repository).refs()

    def sync(self, repository: RepositorySource, *, max_age_s: float = 0.0) -> MirrorHead:
        """Fetch what is new; blocks while it does, and while another thread or process fetches the same."""
        mirror = self._path(repository)
        with self._only_one(repository) as lock:
            if max_age_s > 0 and _age_s(mirror) <= max_age_s:
                return self.head(repository)
            remote = self._remote(repository)
            refs = remote.refs()
            if mirror.is_dir():
                remove_stale_locks(mirror)
                self._fetch(remote, mirror, refs, lock)
            else:
                self._clone(remote, mirror, refs, lock)
            (mirror / _STAMP).touch()
        return self.head(repository)

    def head(self, repository: RepositorySource) -> MirrorHead:
        """Return the default branch as last fetched."""
        branches, checked_out = self._branches(repository)
        branch = repository.default_branch or checked_out
        sha = branches.get(branch) if branch else None
        return MirrorHead(branch if sha else None, sha)

    def branches(self, repository: RepositorySource) -> dict[str, str]:
        """Return the commit of every branch, by the branch's name."""
        return self._branches(repository)[0]

    def resolve(
        self, repository: RepositorySource, *, branch: str | None = None, commit: str | None = None
    ) -> str:
        """Return the full id of the commit meant: a pinned one, a branch's, else the default branch's."""
        if commit is not None:
            return self._commit(repository, commit)
        if branch is not None:
            return self._branch(repository, branch)
        sha = self.head(repository).sha
        if sha is None:
            if repository.default_branch is not None:
                return self._branch(repository, repository.default_branch)
            raise RevisionError(
                f"{repository.identity} has no commit on its default branch.",
                field="branch",
                hint="commit and `git push`, then submit again",
            )
        return sha

    def export(self, repository: RepositorySource, sha: str, target: Path) -> ExportedTree:
        """Write the files of a commit to ``target``, which must not exist yet."""
        return export_commit(self._git, self._existing(repository), sha, target)

    def list_rollouts(self, repository: RepositorySource, sha: str) -> list[RolloutDirectory]:
        """Return the rollouts of a commit, by name."""
        return find_rollouts(self._git, self._existing(repository), sha)

    def read_file(self, repository: RepositorySource, sha: str, path: str) -> bytes:
        """Return the content of one file of a commit."""
        mirror = self._existing(repository)
        is_path = not {"", ".", ".."} & set(path.split("/")) and "\0" not in path
        entries = list_tree(self._git, mirror, sha, path) if is_path else iter(())
        entry = next((entry for entry in entries if entry.path == path and entry.mode in REGULAR), None)
        if entry is None:
            raise NotFoundError(f"there is no file {path} in {repository.identity} at {sha[:12]}.")
        if entry.size > MAX_READ_BYTES:
            raise GitError(f"{path} is too large to be read: {entry.size} bytes.")
        with read_objects(self._git, mirror) as reader:
            return reader.read(entry)

    def remove(self, repository: RepositorySource) -> None:
        """Delete the mirror, to be called when its repository is disconnected; harmless when there is none."""
        with self._only_one(repository):
            shutil.rmtree(self._path(repository), ignore_errors=True)

    def _branches(self, repository: RepositorySource) -> tuple[dict[str, str], str | None]:
        """Return the commit of every branch, and the branch that is the remote's own."""
        # One process tells both: a submit asks several times, and starting Git is what takes the time.
        listed = self._read(
            self._existing(repository),
            "for-each-ref",
            "--format=%(HEAD)%(objectname) %(refname)",
            "refs/heads/",
        )
        branches, checked_out = {}, None
        for line in listed.splitlines():
            sha, _, ref = line[1:].partition(" ")
            name = ref.removeprefix("refs/heads/")
            branches[name] = sha
            if line[0] == "*":
                checked_out = name
        return branches, checked_out

    def _commit(self, repository: RepositorySource, commit: str) -> str:
        if not _COMMIT.fullmatch(commit):
            raise RevisionError(
                f"'{commit[:80]}' is not a commit: write 7 to 40 hexadecimal digits.",
                field="commit_sha",
                code="VALIDATION",
            )
        mirror = self._existing(repository)
        # Unlike `rev-parse <text>`, this never takes a branch of that name for the commit.
        objects = self._read(mirror, "rev-parse", f"--disambiguate={commit.lower()}").split()
        commits = [sha for sha in objects if self._is_commit(mirror, sha)]
        if len(commits) > 1:
            raise RevisionError(
                f"'{commit}' is the beginning of {len(commits)} commits of {repository.identity}: "
                f"{', '.join(sha[:12] for sha in commits[:4])}.",
                field="commit_sha",
                code="VALIDATION",
                hint="write more digits",
            )
        if not commits:
            other = "; something else has that id" if objects else ""
            raise RevisionError(
                f"there is no commit '{commit}' in {repository.identity}, as fetched from "
                f"{self._remote(repository).url.address}{other}.",
                field="commit_sha",
                hint="if it exists on your machine, `git push` it; a commit must be on a branch or tag",
            )
        return commits[0]

    def _is_commit(self, mirror: Path, sha: str) -> bool:
        return self._read(mirror, "cat-file", "-t", sha).strip() == "commit"

    def _branch(self, repository: RepositorySource, branch: str) -> str:
        branches = self.branches(repository)
        if branch in branches:
            return branches[branch]
        near = difflib.get_close_matches(branch, branches, n=3, cutoff=0.6)
        shown = near or sorted(branches)[:5]
        raise RevisionError(
            f"there is no branch '{branch[:200]}' in {repository.identity}"
            + (f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(shown) or 'none'}."),
            field="branch",
            suggestion=near[0] if near else None,
            hint="if it exists on your machine, `git push` it",
        )

    def _remote(self, repository: RepositorySource) -> Remote:
        # Only an administrator connects repositories, so a path on this machine is one they chose.
        url = parse_clone_url(repository.clone_url, allow_local=True)
        return Remote(self._git, repository.identity, url)

    def _path(self, repository: RepositorySource) -> Path:
        if not _REPOSITORY_ID.fullmatch(repository.id):
            raise GitError(f"'{repository.id}' is not a repository id.")
        return self.root / f"{repository.id}.git"

    def _existing(self, repository: RepositorySource) -> Path:
        mirror = self._path(repository)
        if not mirror.is_dir():
            raise SyncError(f"{repository.identity} was not fetched yet.")
        return mirror

    def _read(self, mirror: Path, *arguments: str) -> str:
        result = self._git.run([f"--git-dir={mirror}", *arguments])
        if result.exit_status != 0:
            raise GitError(f"the mirror {mirror.name} cannot be read: {result.reason}.")
        return result.output.decode("utf-8", "surrogateescape")

    @contextlib.contextmanager
    def _only_one(self, repository: RepositorySource) -> Iterator[int]:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._path(repository).with_suffix(".lock")
        try:
            with exclusive_fetch(lock, timeout_s=self._fetch_timeout_s + QUERY_TIMEOUT_S) as descriptor:
                yield descriptor
        except TimeoutError:
            raise SyncError(
                f"another process has been fetching {repository.identity} for too long."
            ) from None

    def _clone(self, remote: Remote, mirror: Path, refs: RemoteRefs, lock: int) -> None:
        for leftover in self.root.glob(f".{mirror.name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{mirror.name}.", suffix=".partial", dir=self.root))
        try:
            self._read(partial, "init", "--bare", "--quiet", "--template=", "--", str(partial))
            self._fetch(remote, partial, refs, lock)
            partial.rename(mirror)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _fetch(self, remote: Remote, mirror: Path, refs: RemoteRefs, lock: int) -> None:
        known = self._known_refs(mirror)
        if refs.commits != known:
            if refs.default and (gone := known.keys() - refs.commits.keys()):
                self._leave_default(remote, mirror, refs.default, gone, lock)
            remote.fetch(mirror, timeout_s=self._fetch_timeout_s, lock=lock)
        if refs.default:
            self._read(mirror, "symbolic-ref", "HEAD", refs.default)

    def _leave_default(
        self, remote: Remote, mirror: Path, default: str, gone: AbstractSet[str], lock: int
    ) -> None:
        """Switch to another default branch before the old one is pruned, so that readers always find one."""
        if self._read(mirror, "symbolic-ref", "HEAD").strip() not in gone:
            return
        # Beside `main` there can be no `main/next`: what is renamed so comes when the former is gone.
        with contextlib.suppress(SyncError):
            remote.fetch(mirror, timeout_s=self._fetch_timeout_s, lock=lock, only=default)
            self._read(mirror, "symbolic-ref", "HEAD", default)

    def _known_refs(self, mirror: Path) -> dict[str, str]:
        listed = self._read(
            mirror, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/", "refs/tags/"
        )
        return {name: sha for sha, _, name in (line.partition(" ") for line in listed.splitlines())}


def _age_s(mirror: Path) -> float:
    """Return how long ago the last fetch ended; a clock that was set back makes it unknown."""
    try:
        age = time.time() - (mirror / _STAMP).stat().st_mtime
    except OSError:
        return float("inf")
    return age if age >= 0 else float("inf")
