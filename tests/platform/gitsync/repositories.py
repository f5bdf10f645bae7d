"""Real repositories to fetch from, and the crafted ones that Git itself would not write."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.platform.gitsync.mirror import MirrorStore
from osmosis_ai.platform.worker.work import unpack_source


@dataclass(frozen=True)
class Source:
    """What a mirror needs to know of a repository."""

    clone_url: str
    id: str = "repo_1"
    identity: str = "acme/agents"
    default_branch: str | None = None


class Repository:
    """A repository somebody works in, made in ``root``."""

    def __init__(self, root: Path, branch: str = "main") -> None:
        self.root = root
        root.mkdir(parents=True)
        self.git("init", "--quiet", f"--initial-branch={branch}")

    @property
    def source(self) -> Source:
        return Source(str(self.root))

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        environment = {
            **os.environ,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_NAME": "A" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "a@example.test" for who in ("AUTHOR", "COMMITTER")},
        }
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=environment, input=stdin, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    def write(self, path: str, content: str | bytes = "x\n") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def commit(self, *files: str, **contents: str) -> str:
        """Commit everything, after writing ``files`` (with any content); return the commit."""
        for path in files:
            self.write(path, contents.get(path, f"{path}\n"))
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")

    def commit_tree(self, *entries: tuple[str, bytes, bytes], branch: str = "main") -> str:
        """Commit a tree with these entries (mode, name, content), unchecked; return the commit."""
        raw = b""
        for mode, name, content in entries:
            kind = "tree" if mode == "40000" else "blob"
            raw += mode.encode() + b" " + name + b"\0" + bytes.fromhex(self.store(kind, content))
        tree = self.store("tree", raw)
        commit = self.git("commit-tree", "-m", "crafted", tree)
        self.git("update-ref", f"refs/heads/{branch}", commit)
        return commit

    def tree(self, *entries: tuple[str, bytes, bytes]) -> bytes:
        """Return the raw content of a tree, to be nested in another."""
        return b"".join(
            mode.encode() + b" " + name + b"\0" + bytes.fromhex(self.store("blob", content))
            for mode, name, content in entries
        )

    def store(self, kind: str, content: bytes) -> str:
        """Put an object into the repository behind Git's back."""
        whole = f"{kind} {len(content)}\0".encode() + content
        object_id = hashlib.sha1(whole).hexdigest()
        file = self.root / ".git/objects" / object_id[:2] / object_id[2:]
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            file.write_bytes(zlib.compress(whole))
        return object_id


def unpack(mirrors: MirrorStore, repository: Repository, sha: str, target: Path) -> None:
    """Unpack a commit's archive as a worker does."""
    archive = mirrors.root / "packed.tar.gz"
    with archive.open("wb") as file:
        mirrors.archive(repository.source, sha, file)  # type: ignore[arg-type]
    unpack_source(archive, target)
