from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.api.git_identity import IDENTITY, identify_origin, parse_identity
from osmosis_ai.errors import OsmosisError

CANARY = "ghp_canary123"


@pytest.mark.parametrize(
    "origin, shown",
    [
        ("git@github.com:Acme/Toy.git", "ssh://git@github.com/Acme/Toy.git"),
        ("github.com:acme/toy", "ssh://github.com/acme/toy"),
        ("ssh://git@GitHub.com:443/acme/toy.git", "ssh://git@GitHub.com:443/acme/toy.git"),
        ("https://github.com/acme/toy", "https://github.com/acme/toy"),
        (f"https://me:{CANARY}@github.com/ACME/toy.git/", "https://github.com/ACME/toy.git/"),
        (f"https://{CANARY}@github.com:8443//acme/toy", "https://github.com:8443/acme/toy"),
        ("git://github.com/acme/toy.git", "git://github.com/acme/toy.git"),
        (" http://github.com/acme/toy.git\n", "http://github.com/acme/toy.git"),
    ],
)
def test_a_github_origin_is_owner_and_repo_in_lower_case(origin: str, shown: str) -> None:
    found = identify_origin(origin)
    assert (found.identity, found.display_url) == ("acme/toy", shown)


@pytest.mark.parametrize(
    "origin, message",
    [
        ("", "must not be empty"),
        (" ", "must not be empty"),
        ("https://github.com/ac me/toy", "must not contain whitespace"),
        ("git@github.com:acme/to\x07y", "must not contain whitespace or control characters"),
        ("https://github.com/acme%2Ftoy", "must not contain encoded slashes"),
        ("https://github.com/acme%5ctoy/x", "must not contain encoded slashes"),
        ("https://github.com/acme", "exactly one GitHub repository"),
        ("https://github.com/acme/toy/tree", "exactly one GitHub repository"),
        ("https://github.com/", "exactly one GitHub repository"),
        ("https://github.com/-acme/toy", "exactly one GitHub repository"),
        ("https://github.com/ac.me/toy", "exactly one GitHub repository"),
        ("https://github.com/acme/..", "exactly one GitHub repository"),
        ("https://github.com/acme/.git", "exactly one GitHub repository"),
        ("https://www.github.com/acme/toy", "must be hosted on github.com"),
        ("ssh://git@ssh.github.com:443/acme/toy.git", "must be hosted on github.com"),
        ("ext::sh -c evil", "remote helpers"),
        ("s3://bucket/repo", "unknown scheme 's3'"),
        ("https:///acme/toy", "names no host"),
        ("https://gitlab.example:port/a/b", "malformed"),
        ("https://gitlab.example/", "must name a repository on gitlab.example"),
        ("file:///", "must name a repository"),
    ],
)
def test_an_origin_that_names_no_repository_is_refused(origin: str, message: str) -> None:
    with pytest.raises(OsmosisError, match=message) as caught:
        identify_origin(origin)
    assert caught.value.code == "VALIDATION"


@pytest.mark.parametrize("origin", [f"https://me:{CANARY}@host:port/x", f"https://{CANARY}@github.com/a/b/c"])
def test_no_error_repeats_a_credential(origin: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        identify_origin(origin)
    assert CANARY not in f"{caught.value.message} {caught.value.hint}"


def test_the_github_alias_for_ssh_over_https_is_answered_with_the_command_that_mends_it() -> None:
    with pytest.raises(OsmosisError) as caught:
        identify_origin("ssh://git@ssh.github.com:443/acme/toy.git")
    assert caught.value.hint == "git remote set-url origin https://github.com/acme/toy.git"


def test_the_identity_of_another_origin_is_stable_forever() -> None:
    # Written in databases and typed by administrators: a change here disconnects repositories.
    assert identify_origin("https://gitlab.com/team/sub/agents.git").identity == "gitlab-com/agents-6172a86f"
    assert identify_origin("/srv/git/agents.git").identity == "local/agents-05e4a4ef"


_NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}[a-z0-9]", fullmatch=True).filter(
    lambda name: not name.endswith(".git")
)


@given(
    host=st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]\.example", fullmatch=True),
    names=st.lists(_NAMES, min_size=1, max_size=4),
)
def test_all_spellings_of_a_repository_have_one_identity(host: str, names: list[str]) -> None:
    path = "/".join(names)
    spellings = [
        f"https://{host}/{path}.git",
        f"https://{host}:443/{path}",
        f"http://{host}:80/{path}/",
        f"https://user:{CANARY}@{host}/{path}.git",
        f"https://{host.upper()}/{path.upper()}",
        f"https://{host}//{names[0]}/./{path.partition('/')[2]}?private_token={CANARY}#x",
        f"ssh://git@{host}/{path}.git",
        f"ssh://git@{host}:22/{path}",
        f"git+ssh://git@{host}/{path}",
        f"git@{host}:{path}.git",
        f"git@{host}:/{path}",
        f"{host}:{path}/",
        f"git://{host}:9418/{path}",
        f"https://{host}/" + "".join(f"%{ord(c):02x}" if c == "-" else c for c in path),
    ]
    found = [identify_origin(spelling) for spelling in spellings]
    assert len({origin.identity for origin in found}) == 1
    assert IDENTITY.fullmatch(found[0].identity) and found[0].identity == found[0].identity.lower()
    assert not any(CANARY in origin.display_url for origin in found)


@pytest.mark.parametrize(
    "one, other",
    [
        ("https://a.example/team/agents", "https://b.example/team/agents"),
        ("https://a.example/team/agents", "https://a.example/other/agents"),
        ("https://a.example:8443/team/agents", "https://a.example/team/agents"),
        ("https://a.example/team/agents", "/team/agents"),
        ("https://a-b.example/x", "https://a.b.example/x"),
        ("/srv/a/agents", "/srv/b/agents"),
        ("/srv/Agents", "/srv/agents"),
    ],
)
def test_different_repositories_differ(one: str, other: str) -> None:
    assert identify_origin(one).identity != identify_origin(other).identity


@given(st.text(max_size=60))
def test_any_text_gives_an_identity_that_fits_the_wire_or_an_error(origin: str) -> None:
    for text in (origin, f"https://host.example/{origin}", f"/srv/{origin}", f"https://{origin}/x"):
        try:
            found = identify_origin(text)
        except OsmosisError:
            continue
        assert IDENTITY.fullmatch(found.identity), text
        assert found.identity == found.identity.lower()


def test_local_spellings_of_a_repository_have_one_identity(tmp_path: Path) -> None:
    bare = tmp_path / "my repos" / "agents.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "link").symlink_to(bare.parent)
    spellings = [
        str(bare),
        f"{bare}/",
        str(bare.with_suffix("")),
        f"file://{bare}".replace(" ", "%20"),
        f"file://localhost{bare}",
        "../my repos/agents.git",
        "../link/agents",
        str(tmp_path / "link" / "agents.git"),
    ]
    found = {identify_origin(spelling, base=work).identity for spelling in spellings}
    assert len(found) == 1
    assert found.pop().startswith("local/agents-")


def test_a_work_tree_and_its_git_directory_are_one_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "agents")], check=True)
    assert identify_origin(str(tmp_path / "agents")) == identify_origin(str(tmp_path / "agents" / ".git"))


@pytest.mark.parametrize("host", ["[2001:db8::1]", "[::1]:2222"])
def test_an_ipv6_host_keeps_its_brackets_when_shown(host: str) -> None:
    found = identify_origin(f"ssh://git@{host}/team/agents")
    assert found.display_url == f"ssh://git@{host}/team/agents"
    assert IDENTITY.fullmatch(found.identity)


def test_a_typed_identity_is_checked_and_lower_cased() -> None:
    assert parse_identity(" Acme/My_Toy.v2 ") == "acme/my_toy.v2"
    for text in (
        "acme",
        "acme/toy/x",
        "ac_me/toy",
        "-a/b",
        "a/..",
        "a/b\nc",
        f"https://me:{CANARY}@github.com/a/b",
    ):
        with pytest.raises(OsmosisError, match="no repository identity") as caught:
            parse_identity(text)
        assert CANARY not in caught.value.message
