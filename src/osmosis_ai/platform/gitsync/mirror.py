"""A bare mirror per connected repository, updated atomically and read without a work tree.

A mirror appears when its first fetch has succeeded, and a failed fetch changes nothing. One process at a time fetches
(with a file lock), and any number may read. Branches deleted upstream are pruned, but commits never are, so submitted
runs can always be resumed.

Names are untrusted bytes. Contents are read by object id, so file and branch names never become arguments of Git.

An archive contains exactly the commit's files as stored (no filter, no line-end conversion, no ``export-ignore``), and
no links out of it. Packing is reproducible: names are sorted, and times and owners omitted.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from osmosis_ai.errors import ErrorCode, NotFoundError, OsmosisError
from osmosis_ai.platform.db.tables import DbRepository
from osmosis_ai.platform.gitsync.git import (
    FETCH_TIMEOUT_S,
    LOCAL_TIMEOUT_S,
    QUERY_TIMEOUT_S,
    Git,
    GitError,
    Remote,
    RemoteRefs,
    SyncError,
    parse_clone_url,
)

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
        super().__init__(message, code=code, details={"field": f"experiment.{field}"}, hint=hint)
        self.field = field
        self.suggestion = suggestion


class MirrorStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._git = Git(root)

    def close(self) -> None:
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
            age_s = -1.0
            with contextlib.suppress(OSError):
                age_s = time.time() - (mirror / _STAMP).stat().st_mtime
            # If the clock was set back, the age of the last fetch is unknown.
            if max_age_s > 0 and 0 <= age_s <= max_age_s:
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
                hint="commit and `git push origin HEAD`, then submit again",
            )
        return sha

    def archive(self, repository: DbRepository, sha: str, target: IO[bytes]) -> None:
        """Write the files of a commit as a compressed tar archive."""
        mirror = self._existing(repository)
        entries = sorted(self._list_tree(mirror, sha), key=lambda entry: entry.path)
        _refuse_unsafe_paths(entries)
        size = sum(entry.size for entry in entries)
        if size > MAX_EXPORT_BYTES:
            raise GitError(
                f"the commit {sha} holds {size / 1024**3:.1f} GiB of files, and {MAX_EXPORT_BYTES // 1024**3} GiB is "
                "the most a run can take.",
                hint=_LESS_DATA,
            )
        links = {entry.path for entry in entries if entry.mode == _SYMLINK}
        with (
            self._objects(mirror, timeout_s=EXPORT_TIMEOUT_S) as reader,
            gzip.GzipFile("", "wb", 6, target, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            for entry in entries:
                member = tarfile.TarInfo(entry.path)
                if entry.mode in REGULAR:
                    member.size = entry.size
                    member.mode = 0o755 if entry.mode == _EXECUTABLE else 0o644
                    with reader.content(entry) as content:
                        archive.addfile(member, content)
                elif entry.mode == _SYMLINK and entry.size <= _LONGEST_LINK:
                    member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(reader.read(entry))
                    if _stays_inside(entry.path, member.linkname, links):
                        archive.addfile(member)

    def list_rollouts(self, repository: DbRepository, sha: str) -> list[RolloutDirectory]:
        """Return the rollouts of a commit by name: the directories under ``rollouts/`` that contain a file."""
        mirror, projects = self._existing(repository), dict[str, TreeEntry | None]()
        for entry in self._list_tree(mirror, sha, "rollouts/"):
            _, name, *inside = entry.path.split("/", 2)
            # Directories of tools are none, nor is a name that a config cannot contain.
            is_name = name.isprintable() and len(name) <= _LONGEST_NAME and not name.startswith((".", "__"))
            if not inside or not is_name:
                continue
            projects.setdefault(name, None)
            if inside == ["pyproject.toml"] and entry.mode in REGULAR and entry.size <= MAX_PYPROJECT_BYTES:
                projects[name] = entry
        with self._objects(mirror) as reader:
            return [RolloutDirectory(name, _description(reader, projects[name])) for name in sorted(projects)]

    def read_file(self, repository: DbRepository, sha: str, path: str) -> bytes:
        mirror = self._existing(repository)
        is_path = not {"", ".", ".."} & set(path.split("/")) and "\0" not in path
        entries = self._list_tree(mirror, sha, path) if is_path else iter(())
        entry = next((entry for entry in entries if entry.path == path and entry.mode in REGULAR), None)
        if entry is None:
            raise NotFoundError(f"there is no file {path} in {repository.identity} at {sha[:12]}.")
        if entry.size > MAX_READ_BYTES:
            raise GitError(f"{path} is too large to be read: {entry.size} bytes.")
        with self._objects(mirror) as reader:
            return reader.read(entry)

    def remove(self, repository: DbRepository) -> None:
        """Delete the mirror of a disconnected repository; harmless without one."""
        with self._locked(repository):
            shutil.rmtree(self._path(repository), ignore_errors=True)

    def _list_tree(self, mirror: Path, sha: str, path: str = "") -> Iterator[TreeEntry]:
        """Yield the files of the commit ``sha``: all, those below the directory ``path/``, or the file ``path``."""
        if not _SHA.fullmatch(sha):
            raise GitError(f"'{sha}' is not a full commit id.")
        only = ["--", path] if path else []
        asked = [f"--git-dir={mirror}", "ls-tree", "-r", "-z", "-l", "--full-tree", sha, *only]
        try:
            listed = self._git.run(asked, most_bytes=_MOST_LISTED_BYTES)
        except GitError as error:
            raise GitError(f"the files of the commit {sha} cannot be listed: {error.message}") from None
        if listed.exit_status != 0:
            raise GitError(f"the commit {sha} cannot be read: {listed.reason}.")
        if listed.output.count(b"\0") > MOST_FILES:
            raise GitError(
                f"the commit {sha} holds more than {MOST_FILES:,} files, which is the most a run can take.",
                hint=_LESS_DATA,
            )
        for record in listed.output.split(b"\0"):
            if record:
                facts, _, name = record.partition(b"\t")
                mode, _kind, object_id, size = facts.decode("ascii").split()
                yield TreeEntry(mode, object_id, int(size) if size.isdigit() else 0, os.fsdecode(name))

    @contextlib.contextmanager
    def _objects(self, mirror: Path, *, timeout_s: float = LOCAL_TIMEOUT_S) -> Iterator[ObjectReader]:
        """Read many objects with one process while the block lasts."""
        arguments = [f"--git-dir={mirror}", "cat-file", "--batch"]
        with self._git.started(arguments, timeout_s, {}, stdin=subprocess.PIPE) as (process, is_late):
            try:
                yield ObjectReader(process)
            except OSError:
                if is_late.is_set():
                    raise GitError(f"the files of {mirror.name} were not read in time.") from None
                raise

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
        commits = [sha for sha in objects if self._read(mirror, "cat-file", "-t", sha).strip() == "commit"]
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
                hint="if it exists on your machine, push a branch with it: `git push origin HEAD`",
            )
        return commits[0]

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
            hint=f"if it exists on your machine: `git push origin {branch[:200]}`",
        )

    def _remote(self, identity: str, clone_url: str) -> Remote:
        return Remote(self._git, identity, parse_clone_url(clone_url))

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
        asked = ("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads/", "refs/tags/")
        listed = (line.partition(" ") for line in self._read(mirror, *asked).splitlines())
        known = {name: sha for sha, _, name in listed}
        if refs.commits != known:
            gone = known.keys() - refs.commits.keys()
            if refs.default and gone and self._read(mirror, "symbolic-ref", "HEAD").strip() in gone:
                # Another default branch comes before the old one is pruned, so that readers always find one. Only
                # `main/next` cannot exist next to `main`; it is fetched after `main` was pruned.
                with contextlib.suppress(SyncError):
                    remote.fetch(mirror, lock, only=refs.default)
                    self._read(mirror, "symbolic-ref", "HEAD", refs.default)
            remote.fetch(mirror, lock)
        if refs.default:
            self._read(mirror, "symbolic-ref", "HEAD", refs.default)


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


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_EXPORT_BYTES = 4 * 1024**3
EXPORT_TIMEOUT_S = 600.0
MAX_PYPROJECT_BYTES = 1024 * 1024
MOST_FILES = 250_000
"""Maximum number of files of a commit, or of one of its directories."""
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST_LISTED_BYTES = 64 << 20
_LONGEST_LINK = 4096
_DEEPEST = 256
_LONGEST_NAME = 255
_LONGEST_DESCRIPTION = 1000
_LESS_DATA = "keep data in datasets rather than in the repository"

REGULAR = frozenset({"100644", "100755", "100664"})
_EXECUTABLE = "100755"
_SYMLINK = "120000"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    mode: str
    object_id: str
    size: int
    path: str


class ObjectReader:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._requests: IO[bytes] = process.stdin
        self._replies: IO[bytes] = process.stdout

    def read(self, entry: TreeEntry) -> bytes:
        """Return the content of a file that fits into memory."""
        with self.content(entry) as content:
            return content.read(entry.size)

    @contextlib.contextmanager
    def content(self, entry: TreeEntry) -> Iterator[IO[bytes]]:
        """Yield a stream that begins with the content of a file; the caller must read all of the content."""
        try:
            self._requests.write(entry.object_id.encode("ascii") + b"\n")
            self._requests.flush()
            header = self._replies.readline().split()
        except OSError:
            header = []
        if header[1:] != [b"blob", str(entry.size).encode()]:
            raise GitError(f"the content of {entry.path!r} cannot be read: the mirror is damaged.")
        yield self._replies
        self._replies.read(1)  # the newline that ends every reply


@dataclass(frozen=True)
class RolloutDirectory:
    """A rollout: the name of its directory, and the description in its ``pyproject.toml``."""

    name: str
    description: str | None


def _description(reader: ObjectReader, project: TreeEntry | None) -> str | None:
    if project is None:
        return None
    try:
        document: dict[str, Any] = tomllib.loads(reader.read(project).decode("utf-8"))
        text = document["project"]["description"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return text.strip()[:_LONGEST_DESCRIPTION] or None if isinstance(text, str) else None


def _refuse_unsafe_paths(entries: Iterable[TreeEntry]) -> None:
    """Refuse crafted trees, which Git itself does not write."""
    files = Counter(entry.path for entry in entries)
    for path, times in files.items():
        if path.count("/") > _DEEPEST:
            # Python before 3.13 cannot walk or delete a tree deeper than its recursion limit.
            raise GitError(
                f"the repository holds a file below more than {_DEEPEST} directories: {path[:80]!r}…"
            )
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        if times > 1 or not files.keys().isdisjoint(parents):
            raise _clash(path)
        for part in path.split("/"):
            # `.git` in the spellings that case-folding and Windows-like file systems take for it.
            folded = part.casefold().rstrip(" .").replace("\u200c", "")
            if part in ("", ".", "..") or folded in (".git", "git~1"):
                raise GitError(f"the repository holds a path that no checkout may have: {path!r}.")


def _stays_inside(path: str, destination: str, links: Collection[str]) -> bool:
    """Return whether a link stays inside the tree; ``..`` after another link is refused because it may lead anywhere."""
    if not destination or destination.startswith("/") or "\0" in destination:
        return False
    place, is_through_link = list(PurePosixPath(path).parent.parts), False
    for part in destination.split("/"):
        if part == "..":
            if is_through_link or not place:
                return False
            place.pop()
        elif part not in ("", "."):
            place.append(part)
            is_through_link |= "/".join(place) in links
    return True


def _clash(path: str) -> GitError:
    return GitError(f"two paths of the repository are the same file here: {path!r}.")
