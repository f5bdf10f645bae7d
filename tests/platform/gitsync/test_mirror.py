"""Mirrors of repositories: what a sync follows, what it never runs, and where credentials go."""

from __future__ import annotations

import http.server
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.gitsync.git import GitError, GitResult, SyncError, parse_clone_url
from osmosis_ai.platform.gitsync.mirror import MirrorStore, RevisionError
from tests.platform.gitsync.repositories import Repository, Source, unpack


def test_a_later_sync_sees_new_commits_branches_tags_and_a_changed_default(
    mirrors: MirrorStore, repository: Repository
) -> None:
    old = repository.commit("a")
    mirrors.sync(repository.source)
    repository.git("checkout", "--quiet", "-b", "next")
    sha = repository.commit("b")
    repository.git("tag", "v1")

    assert mirrors.sync(repository.source, max_age_s=600) == old, "a recent sync is not repeated"
    assert mirrors.sync(repository.source) == mirrors.resolve(repository.source) == sha
    assert set(mirrors.branches(repository.source)) == {"main", "next"}


def test_a_rewritten_branch_is_followed_and_the_commit_a_run_named_stays(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path
) -> None:
    repository.commit("a")
    named = repository.commit("b")
    mirrors.sync(repository.source)
    repository.git("reset", "--hard", "--quiet", "HEAD~1")
    repository.git("branch", "other")
    rewritten = repository.commit("c")
    mirrors.sync(repository.source)

    assert mirrors.resolve(repository.source) == rewritten
    assert mirrors.resolve(repository.source, commit=named) == named
    unpack(mirrors, repository, named, tmp_path / "out")
    assert (tmp_path / "out" / "b").exists()

    repository.git("branch", "-D", "other")
    mirrors.sync(repository.source)
    assert "other" not in mirrors.branches(repository.source)


@pytest.mark.parametrize(
    "commit",
    [
        *("", "abc", "main", "HEAD", "zzzzzzz", "HEAD~1", "--all", "../../etc", "a" * 41, "abcdef1\n"),
        "ＡＢＣ１２３４",
    ],
)
def test_what_is_no_commit_id_is_refused_as_such(
    mirrors: MirrorStore, repository: Repository, commit: str
) -> None:
    repository.commit("a")
    mirrors.sync(repository.source)

    with pytest.raises(RevisionError, match="is not a commit") as caught:
        mirrors.resolve(repository.source, commit=commit)
    assert (caught.value.code, caught.value.field) == ("VALIDATION", "commit_sha")


def test_a_commit_is_found_by_its_id_or_the_beginning_of_it_and_not_a_branch_named_so(
    mirrors: MirrorStore, repository: Repository
) -> None:
    sha = repository.commit("a")
    other = repository.commit("b")
    repository.git("update-ref", f"refs/heads/{sha[:8]}", other)
    mirrors.sync(repository.source)

    for spelling in (sha, sha[:7], sha[:8], sha[:12].upper()):
        assert mirrors.resolve(repository.source, commit=spelling) == sha
    assert mirrors.resolve(repository.source, branch=sha[:8]) == other


@pytest.mark.parametrize(
    "branch", ["main^{tree}", "main~0", "main@{0}", "*", "--upload-pack=id", "../main", "", "ä" * 300, "HEAD"]
)
def test_a_branch_is_a_name_and_never_an_expression(
    mirrors: MirrorStore, repository: Repository, branch: str
) -> None:
    repository.commit("a")
    mirrors.sync(repository.source)

    with pytest.raises(RevisionError, match="there is no branch"):
        mirrors.resolve(repository.source, branch=branch)


@pytest.mark.parametrize("url", ["ext::sh -c 'touch OWNED'", "--upload-pack=touch OWNED", "fd::3"])
def test_a_url_that_would_run_a_command_is_refused_although_it_is_stored(
    mirrors: MirrorStore, url: str, tmp_path: Path
) -> None:
    with pytest.raises(OsmosisError):
        mirrors.sync(Source(url.replace("OWNED", str(tmp_path / "owned"))))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("repository_id", ["../evil", "", "a/b", ".", "x" * 65])
def test_an_id_never_leads_out_of_the_store(mirrors: MirrorStore, repository_id: str) -> None:
    with pytest.raises(GitError, match="is not a repository id"):
        mirrors.sync(Source("/x", id=repository_id))


def test_no_hook_helper_or_setting_of_user_or_repository_is_run(
    mirrors: MirrorStore, repository: Repository, tmp_path: Path, home: Path
) -> None:
    owned = tmp_path / "owned"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {owned}\n")
    script.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change"):
        (repository.root / ".git/hooks").mkdir(exist_ok=True)
        (repository.root / ".git/hooks" / hook).symlink_to(script)
    hooks = tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "reference-transaction").symlink_to(script)
    settings = f"[core]\n\tfsmonitor = {script}\n\thooksPath = {hooks}\n\talternateRefsCommand = {script}\n"
    settings += f"[init]\n\ttemplateDir = {hooks.parent}\n[uploadpack]\n\tpackObjectsHook = {script}\n"
    (home / ".gitconfig").write_text(settings)
    repository.commit("a")
    owned.unlink(missing_ok=True)
    with (repository.root / ".git/config").open("a") as config:
        config.write(settings)

    mirrors.sync(repository.source)
    repository.store("blob", b"")
    mirrors.sync(repository.source)

    assert not owned.exists()


def test_git_variables_of_the_platforms_own_process_do_not_redirect_it(
    mirrors: MirrorStore, repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sha = repository.commit("a")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ext")

    assert mirrors.sync(repository.source) == sha


class _Recorder(http.server.BaseHTTPRequestHandler):
    """A Git host that wants credentials and accepts none."""

    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def git_host() -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (_Recorder,), {"seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", handler.seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_credentials_reach_the_host_and_nothing_else(
    mirrors: MirrorStore, git_host: tuple[str, list[str]]
) -> None:
    host, seen = git_host

    with pytest.raises(SyncError, match=r"[Aa]uthentication failed") as caught:
        mirrors.sync(Source(f"http://bob:s3cret-canary@{host}/a.git"))

    assert seen == ["", "Basic Ym9iOnMzY3JldC1jYW5hcnk="]
    assert "credential.helper" in str(caught.value.hint)
    assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value.details}"
    assert not [path for path in mirrors.root.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


def test_a_host_that_stays_silent_is_given_up_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, fifo = tmp_path / "bin" / "ssh", tmp_path / "fifo"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nexec 9> {fifo}\necho $$ >&9\nexec sleep 600\n")
    ssh.chmod(0o755)
    os.mkfifo(fifo)
    lifeline = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(lifeline, True)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("osmosis_ai.platform.gitsync.git.QUERY_TIMEOUT_S", 0.1)
    start = threading.Timer.start

    def start_with_ssh(timer: threading.Timer) -> None:
        """Let the time for an answer begin when the host is being asked."""
        assert select.select([lifeline], [], [], 300)[0]
        start(timer)

    monkeypatch.setattr(threading.Timer, "start", start_with_ssh)
    mirrors = MirrorStore(tmp_path / "git")

    with pytest.raises(SyncError, match=r"`git ls-remote` did not finish within 0\.1 s"):
        mirrors.sync(Source("git@silent.example:a.git"))
    with os.fdopen(lifeline, "rb") as output:
        assert int(output.read()) > 0  # returns only once nobody holds the other end


@pytest.mark.parametrize(
    ("text", "address", "transport"),
    [
        ("https://github.com/acme/agents.git", "https://github.com/acme/agents.git", "https"),
        ("https://bob%40corp:p%3As3cret@git.example:8443/a.git", "https://git.example:8443/a.git", "https"),
        ("http://[::1]:3000/a.git", "http://[::1]:3000/a.git", "http"),
        ("git@github.com:acme/agents.git", "git@github.com:acme/agents.git", "ssh"),
        ("ssh://git:pw@git.example:2222/a.git", "ssh://git@git.example:2222/a.git", "ssh"),
        ("git+ssh://git@git.example/a.git", "ssh://git@git.example/a.git", "ssh"),
        ("git://git.example/a.git", "git://git.example/a.git", "git"),
        ("/srv/git/a b.git", "/srv/git/a b.git", "file"),
        ("file:///srv/git/a%20b.git", "/srv/git/a b.git", "file"),
    ],
)
def test_what_git_is_given_and_people_see_holds_no_credentials(
    text: str, address: str, transport: str
) -> None:
    url = parse_clone_url(text)

    assert (url.address, url.transport) == (address, transport)
    assert "s3cret" not in repr(url)
    if url.password:
        credentials = (url.username, url.password, url.origin)
        assert credentials == ("bob@corp", "p:s3cret", "https://git.example:8443")


def test_what_git_says_of_a_url_with_a_password_is_told_without_it() -> None:
    said = "warning: redirecting\nfatal: unable to access 'https://bob:s3cret@git.example/a.git/': no route\n"
    assert GitResult(128, b"", said).reason == (
        "unable to access 'https://[REDACTED]@git.example/a.git/': no route"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("/srv/caf\udce9.git", "", "ext::sh -c 'touch /tmp/owned'", "ext::https://x", "::evil"),
        *("transport::address", "--upload-pack=touch /tmp/owned", "-oProxyCommand=id"),
        *("ssh://-oProxyCommand=id/a", "ssh://-u@host/a", "-host:path", "user@-host:path"),
        *("host:--upload-pack=id", "relative/path", "..", "C:", "ftp://host/a.git", "rsync://host/a.git"),
        *("fd::17", "https:///no-host", "https://host:99999/a", "https://[::1/a", "https://host/a b"),
        *("https://host/a\nb", "https://u:p%0aq@host/a", "file://host/srv/a.git", "file://relative"),
        *("file:///a%00b", "https://bob:s3cret@", "https://bob:s3cret@host:x/", "weird://bob:s3cret@host/"),
    ],
)
def test_what_is_no_plain_address_is_refused_without_its_credentials(text: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        parse_clone_url(text)
    assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value.details}"
