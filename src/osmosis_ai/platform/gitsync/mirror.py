"""A bare mirror per connected repository, updated atomically; commits named by runs are kept.

A mirror appears when its first fetch has succeeded, and a failed fetch changes nothing. One process at a time fetches
(with a file lock), and any number may read. Branches deleted upstream are pruned, but commits never are, so submitted
runs can always be resumed.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from osmosis_ai.errors import ErrorCode, NotFoundError, OsmosisError
from osmosis_ai.platform.db.tables import DbRepository
from osmosis_ai.platform.gitsync.git import Git, GitError
from osmosis_ai.platform.gitsync.remote import (
    QUERY_TIMEOUT_S,
    Remote,
    RemoteRefs,
    SyncError,
    parse_clone_url,
)
from osmosis_ai.platform.gitsync.tree import (
    REGULAR,
    RolloutDirectory,
    export_commit,
    find_rollouts,
    list_tree,
    read_objects,
)

FETCH_TIMEOUT_S = 300.0
MAX_READ_BYTES = 8 * 1024 * 1024

_STAMP = "osmosis-fetched"
_LOCK_POLL_S = 0.05
_REPOSITORY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}|[0-9a-fA-F]{64}")


class RevisionError(OsmosisError):
    """The repository does not have a branch or commit."""

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


class MirrorStore:
    """The mirrors under one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._git = Git(root)

    def close(self) -> None:
        """End running commands; later calls fail."""
        self._git.close()

    def probe(self, identity: str, clone_url: str) -> RemoteRefs:
        """Return the branches and tags of a remote repository, without a fetch."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._remote(identity, clone_url).refs()

    def sync(self, repository: DbRepository, *, max_age_s: float = 0.0) -> str | None:
        """Fetch changes and return the head of the default branch; None if the repository is empty.

        Blocks, also while another thread or process fetches the same repository.
        """
        mirror = self._path(repository)
        with self._locked(repository) as lock:
            if max_age_s > 0 and _age_s(mirror) <= max_age_s:
                return self.head(repository)
            remote = self._remote(repository.identity, repository.clone_url)
            refs = remote.refs()
            if mirror.is_dir():
                # Only the holder of the mirror's lock may do this: they belong to a killed Git.
                for stale in (*mirror.glob("*.lock"), *(mirror / "refs").rglob("*.lock")):
                    stale.unlink(missing_ok=True)
                self._fetch(remote, mirror, refs, lock)
            else:
                self._clone(remote, mirror, refs, lock)
            (mirror / _STAMP).touch()
        return self.head(repository)

    def head(self, repository: DbRepository) -> str | None:
        """Return the head of the default branch as last fetched."""
        branches, checked_out = self._branches(repository)
        branch = repository.default_branch or checked_out
        return branches.get(branch) if branch else None

    def branches(self, repository: DbRepository) -> dict[str, str]:
        """Return the commit of every branch, by the branch's name."""
        return self._branches(repository)[0]

    def resolve(
        self, repository: DbRepository, *, branch: str | None = None, commit: str | None = None
    ) -> str:
        """Return the full id of a commit: the given one, a branch's, or else the default branch's."""
        if commit is not None:
            return self._commit(repository, commit)
        if branch is not None:
            return self._branch(repository, branch)
        sha = self.head(repository)
        if sha is None:
            if repository.default_branch is not None:
                return self._branch(repository, repository.default_branch)
            raise RevisionError(
                f"{repository.identity} has no commit on its default branch.",
                field="branch",
                hint="commit and `git push`, then submit again",
            )
        return sha

    def export(self, repository: DbRepository, sha: str, target: Path) -> None:
        """Write the files of a commit to ``target``, which must not exist yet."""
        export_commit(self._git, self._existing(repository), sha, target)

    def list_rollouts(self, repository: DbRepository, sha: str) -> list[RolloutDirectory]:
        """Return the rollouts of a commit, by name."""
        return find_rollouts(self._git, self._existing(repository), sha)

    def read_file(self, repository: DbRepository, sha: str, path: str) -> bytes:
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

    def remove(self, repository: DbRepository) -> None:
        """Delete the mirror of a disconnected repository; harmless without one."""
        with self._locked(repository):
            shutil.rmtree(self._path(repository), ignore_errors=True)

    def _branches(self, repository: DbRepository) -> tuple[dict[str, str], str | None]:
        """Return the commit of every branch, and the remote's default branch."""
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

    def _commit(self, repository: DbRepository, commit: str) -> str:
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
            other = "; that id belongs to another object" if objects else ""
            raise RevisionError(
                f"{repository.identity} has no commit '{commit}' (fetched from "
                f"{self._remote(repository.identity, repository.clone_url).url.address}){other}.",
                field="commit_sha",
                hint="if it exists on your machine, `git push` it; a commit must be on a branch or tag",
            )
        return commits[0]

    def _is_commit(self, mirror: Path, sha: str) -> bool:
        return self._read(mirror, "cat-file", "-t", sha).strip() == "commit"

    def _branch(self, repository: DbRepository, branch: str) -> str:
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

    def _remote(self, identity: str, clone_url: str) -> Remote:
        # Only administrators connect repositories, so local paths are allowed.
        return Remote(self._git, identity, parse_clone_url(clone_url, allow_local=True))

    def _path(self, repository: DbRepository) -> Path:
        if not _REPOSITORY_ID.fullmatch(repository.id):
            raise GitError(f"'{repository.id}' is not a repository id.")
        return self.root / f"{repository.id}.git"

    def _existing(self, repository: DbRepository) -> Path:
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
    def _locked(self, repository: DbRepository) -> Iterator[int]:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._path(repository).with_suffix(".lock")
        try:
            with exclusive_fetch(lock, timeout_s=FETCH_TIMEOUT_S + QUERY_TIMEOUT_S) as descriptor:
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
            remote.fetch(mirror, timeout_s=FETCH_TIMEOUT_S, lock=lock)
        if refs.default:
            self._read(mirror, "symbolic-ref", "HEAD", refs.default)

    def _leave_default(
        self, remote: Remote, mirror: Path, default: str, gone: AbstractSet[str], lock: int
    ) -> None:
        """Switch to another default branch before the old one is pruned, so that readers always find one."""
        if self._read(mirror, "symbolic-ref", "HEAD").strip() not in gone:
            return
        # `main/next` cannot exist next to `main`; it is fetched after `main` was pruned.
        with contextlib.suppress(SyncError):
            remote.fetch(mirror, timeout_s=FETCH_TIMEOUT_S, lock=lock, only=default)
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


@contextlib.contextmanager
def exclusive_fetch(path: Path, *, timeout_s: float) -> Iterator[int]:
    """Hold the lock of ``path`` while the block lasts; yields its descriptor for Git to inherit.

    If the platform is killed, its Git may continue for a while, and other fetches wait for it as well.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                time.sleep(_LOCK_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)
