"""A commit as an archive: its files, and nothing that leads out of it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.gitsync import mirror
from osmosis_ai.platform.gitsync.git import GitError
from osmosis_ai.platform.gitsync.mirror import MirrorStore
from tests.platform.gitsync.repositories import Repository, unpack


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_an_export_has_exactly_the_files_of_the_commit(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path
) -> None:
    repository.write("bin/run", "#!/bin/sh\n")
    (repository.root / "bin/run").chmod(0o755)
    repository.write("crlf.txt", b"a\r\nb\n")
    repository.write("ignored.txt", "kept")
    repository.write(".gitattributes", "ignored.txt export-ignore\n*.txt text eol=lf ident\n")
    repository.write("ä ö\n\t.bin", bytes(range(256)) * 9000)
    repository.write("empty", b"")
    (repository.root / "link").symlink_to("bin/run")
    sha = repository.commit()
    repository.commit("later")
    mirrors.sync(repository.source)

    out = tmp_path / "deep" / "out"
    unpack(mirrors, repository, sha, out)

    assert _files(out) == {
        *("bin/run", "crlf.txt", "ignored.txt", ".gitattributes", "ä ö\n\t.bin", "empty", "link")
    }
    assert (out / "ä ö\n\t.bin").read_bytes() == bytes(range(256)) * 9000
    assert (out / "link").read_text() == "#!/bin/sh\n"
    assert stat.S_IMODE((out / "bin/run").stat().st_mode) & 0o111
    assert not stat.S_IMODE((out / "empty").stat().st_mode) & 0o111


def test_links_that_lead_out_are_left_out_and_named(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    links = {
        "absolute": str(secret),
        "upwards": "../secret",
        "rollouts/a/upwards": "../../../secret",
        # Each of these two is harmless alone; together they climb out.
        "rollouts/a/step": "../../docs",
        "rollouts/a/chain": "step/../../secret",
        "inside": "rollouts/../docs/page",
        "dangling": "docs/missing",
        "loop": "loop",
    }
    repository.write("docs/page", "inside")
    repository.write("rollouts/a/main.py")
    for link, destination in links.items():
        (repository.root / link).symlink_to(destination)
    sha = repository.commit()
    mirrors.sync(repository.source)

    out = tmp_path / "out"
    unpack(mirrors, repository, sha, out)

    refused = {"absolute", "upwards", "rollouts/a/upwards", "rollouts/a/chain"}
    assert _files(out) == {"docs/page", "rollouts/a/main.py", *links} - refused
    assert (out / "inside").read_text() == "inside"

    crafted = (
        ("120000", name, to) for name, to in ((b"nul", b"f\0"), (b"empty", b""), (b"long", b"f" * 5000))
    )
    sha = repository.commit_tree(("100644", b"f", b"x"), *crafted)
    mirrors.sync(repository.source)
    unpack(mirrors, repository, sha, tmp_path / "crafted")
    assert _files(tmp_path / "crafted") == {"f"}


def test_a_link_followed_by_a_file_inside_of_it_writes_nothing_outside(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    sha = repository.commit_tree(
        ("120000", b"a", str(outside).encode()), ("40000", b"a", repository.tree(("100644", b"owned", b"!")))
    )
    mirrors.sync(repository.source)

    with pytest.raises(GitError, match="two paths of the repository are the same file"):
        unpack(mirrors, repository, sha, tmp_path / "out")
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", [b"..", b".", b".git", b".GIT", b".git. ", b"git~1", b"a/../../owned", b"/owned"]
)
def test_a_path_that_leaves_the_directory_or_becomes_a_repository_is_refused(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path, name: bytes
) -> None:
    sha = repository.commit_tree(("40000", name, repository.tree(("100644", b"owned", b"!"))))
    mirrors.sync(repository.source)

    with pytest.raises(GitError, match="a path that no checkout may have"):
        unpack(mirrors, repository, sha, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("owned"))


def test_a_file_that_is_deeper_than_programs_can_follow_is_refused(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path
) -> None:
    good, bad = repository.commit("d/" * 256 + "f"), repository.commit("d/" * 257 + "f")
    mirrors.sync(repository.source)

    unpack(mirrors, repository, good, tmp_path / "good")
    assert (tmp_path / "good" / ("d/" * 256) / "f").exists()
    with pytest.raises(GitError, match="below more than 256 directories"):
        unpack(mirrors, repository, bad, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_only_a_commit_of_the_mirror_is_exported(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path
) -> None:
    repository.commit("a")
    mirrors.sync(repository.source)
    for other in ("HEAD", "main", "--output=x", "a" * 39, "0" * 40):
        with pytest.raises(GitError, match=r"is not a full commit id|cannot be read"):
            unpack(mirrors, repository, other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("limit", "most", "problem"),
    [("MAX_EXPORT_BYTES", 999, "is the most a run can take"), ("MOST_FILES", 2, "more than 2 files")],
)
def test_a_commit_that_is_too_large_is_refused_before_anything_is_written(
    mirrors: MirrorStore,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    most: int,
    problem: str,
) -> None:
    repository.write("a", b"x" * 1000)
    sha = repository.commit("b", "c")
    mirrors.sync(repository.source)
    monkeypatch.setattr(mirror, limit, most)

    with pytest.raises(GitError, match=problem):
        unpack(mirrors, repository, sha, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_few_objects_that_are_a_billion_files_are_refused(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Git takes ten seconds to write as much as is read of a list; with less it is the same refusal.
    monkeypatch.setattr(mirror, "_MOST_LISTED_BYTES", 1 << 20)
    raw = repository.tree(*(("100644", b"%d" % name, b"") for name in range(10)))
    for _ in range(7):
        below = bytes.fromhex(repository.store("tree", raw))
        raw = b"".join(b"40000 %d\0" % name + below for name in range(10))
    sha = repository.commit_tree(("40000", b"rollouts", raw))
    mirrors.sync(repository.source)

    with pytest.raises(GitError, match=r"cannot be listed: .* produced too much output"):
        unpack(mirrors, repository, sha, tmp_path / "out")
    with pytest.raises(GitError, match="cannot be listed"):
        mirrors.list_rollouts(repository.source, sha)
    assert not (tmp_path / "out").exists()


def test_a_file_is_read_without_a_checkout(mirrors: MirrorStore, repository: Repository) -> None:
    repository.write("rollouts/a/main.py", "print()\n")
    repository.write("top", "t")
    (repository.root / "link").symlink_to("top")
    sha = repository.commit()
    mirrors.sync(repository.source)

    assert mirrors.read_file(repository.source, sha, "rollouts/a/main.py") == b"print()\n"
    assert mirrors.read_file(repository.source, sha, "top") == b"t"
    for path in (
        *("missing", "rollouts/a", "link", "../top", "/etc/passwd", "--help", "rollouts/*/main.py"),
        *("a\0b", ""),
    ):
        with pytest.raises(NotFoundError):
            mirrors.read_file(repository.source, sha, path)


def test_rollouts_are_the_directories_under_rollouts_with_their_descriptions(
    mirrors: MirrorStore, repository: Repository
) -> None:
    for path in (
        "rollouts/b/main.py",
        "rollouts/README.md",
        "rollouts/.hidden/x",
        "rollouts/__pycache__/x",
        "other/x",
    ):
        repository.write(path)
    repository.write("rollouts/a/src/deep/main.py")
    repository.write(
        "rollouts/a/pyproject.toml", '[project]\nname = "a"\ndescription = "Multiplies\\u00e4."\n'
    )
    repository.write("rollouts/damaged/pyproject.toml", b"\xff[not toml")
    repository.write("rollouts/odd/pyproject.toml", "[project]\ndescription = 7\n")
    repository.write("rollouts/deeper/x/pyproject.toml", '[project]\ndescription = "not its own"\n')
    (repository.root / "rollouts/linked").symlink_to("a")
    sha = repository.commit()
    mirrors.sync(repository.source)

    found = {entry.name: entry.description for entry in mirrors.list_rollouts(repository.source, sha)}

    assert found == {"a": "Multipliesä.", "b": None, "damaged": None, "deeper": None, "odd": None}
