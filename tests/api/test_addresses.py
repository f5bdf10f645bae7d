"""Identities of Git repositories and addresses of platforms."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.api.git_identity import IDENTITY, identify_origin, parse_identity
from osmosis_ai.api.platform_url import is_loopback, is_secure, normalize_platform_url
from osmosis_ai.errors import OsmosisError

CANARY = "ghp_canary123"


@pytest.mark.parametrize(
    "origin, message",
    [
        ("", "is empty"),
        ("https://github.com/ac me/toy", "contains whitespace"),
        ("git@github.com:acme/to\x07y", "contains whitespace or control characters"),
        ("https://github.com/acme%2Ftoy", "contains encoded slashes"),
        ("https://github.com/acme", "exactly one GitHub repository"),
        ("https://github.com/acme/toy/tree", "exactly one GitHub repository"),
        ("https://github.com/-acme/toy", "exactly one GitHub repository"),
        ("https://github.com/acme/..", "exactly one GitHub repository"),
        ("https://www.github.com/acme/toy", "must be hosted on github.com"),
        ("ssh://git@ssh.github.com:443/acme/toy.git", "must be hosted on github.com"),
        ("ext::sh -c evil", "remote helpers"),
        ("s3://bucket/repo", "unknown scheme 's3'"),
        ("https:///acme/toy", "has no host"),
        ("https://gitlab.example:port/a/b", "malformed"),
        ("file:///", "is the root directory"),
        (f"https://me:{CANARY}@host:port/x", "malformed"),
        (f"https://{CANARY}@github.com/a/b/c", "exactly one GitHub repository"),
    ],
)
def test_invalid_origins(origin: str, message: str) -> None:
    with pytest.raises(OsmosisError, match=message) as caught:
        identify_origin(origin)
    assert caught.value.code == "VALIDATION"
    assert CANARY not in f"{caught.value.message} {caught.value.hint}"


def test_identity_is_stable() -> None:
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
def test_spellings_have_one_identity(host: str, names: list[str]) -> None:
    path = "/".join(names)
    spellings = [
        *(f"https://{host}/{path}.git", f"https://{host}:443/{path}", f"http://{host}:80/{path}/"),
        *(f"https://user:{CANARY}@{host}/{path}.git", f"https://{host.upper()}/{path.upper()}"),
        f"https://{host}//{names[0]}/./{path.partition('/')[2]}?private_token={CANARY}#x",
        *(f"ssh://git@{host}/{path}.git", f"ssh://git@{host}:22/{path}", f"git+ssh://git@{host}/{path}"),
        *(f"git@{host}:{path}.git", f"git@{host}:/{path}", f"{host}:{path}/"),
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
def test_any_text_has_a_valid_identity_or_an_error(origin: str) -> None:
    for text in (origin, f"https://host.example/{origin}", f"/srv/{origin}", f"https://{origin}/x"):
        try:
            found = identify_origin(text)
        except OsmosisError:
            continue
        assert IDENTITY.fullmatch(found.identity), text
        assert found.identity == found.identity.lower()


def test_local_spellings_have_one_identity(tmp_path: Path) -> None:
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


def test_typed_identities() -> None:
    assert parse_identity(" Acme/My_Toy.v2 ") == "acme/my_toy.v2"
    for text in (
        *("acme", "acme/toy/x", "ac_me/toy", "-a/b", "a/..", "a/b\nc"),
        f"https://me:{CANARY}@github.com/a/b",
    ):
        with pytest.raises(OsmosisError, match="is not a repository identity") as caught:
            parse_identity(text)
        assert CANARY not in caught.value.message


@pytest.mark.parametrize(
    "written, normal",
    [
        ("https://platform.osmosis.ai", "https://platform.osmosis.ai"),
        ("  HTTPS://Platform.Osmosis.AI:443//  ", "https://platform.osmosis.ai"),
        ("http://a.example:80/x/", "http://a.example/x"),
        ("https://a.example:8443/Base/?q=1#f", "https://a.example:8443/Base"),
        ("a.example", "https://a.example"),
        ("localhost", "http://localhost"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("https://[2001:DB8::1]:443/", "https://[2001:db8::1]"),
        ("my_platform:8080", "https://my_platform:8080"),
        ("b\u00fccher.example", "https://b\u00fccher.example"),
    ],
)
def test_normalized_platform_urls(written: str, normal: str) -> None:
    assert normalize_platform_url(written) == normal
    assert normalize_platform_url(normal) == normal


@pytest.mark.parametrize(
    "written",
    [
        *("", "https://", "https://a:port", "ftp://a.example", "https://a b", "https://[::1"),
        *("a..example", "-a.example", "https://a_b-.example", "https://a,b", "https://a;b"),
        *("https://300.1.1.1", "https://1.2.3", "https://a:0", "a.example:99999", f"https://{'a' * 64}"),
        *(f"me:{CANARY}@a.example:port", "notaurl", "default/"),
    ],
)
def test_invalid_platform_urls(written: str) -> None:
    with pytest.raises(OsmosisError, match="Invalid platform URL") as caught:
        normalize_platform_url(written)
    assert CANARY not in caught.value.message


def test_platform_url_with_a_password() -> None:
    with pytest.raises(OsmosisError, match=r"^Platform URL contains a user name or password\.$"):
        normalize_platform_url(f"https://me:{CANARY}@a.example")


def test_loopback_and_secure_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "LOCALHOST")))
    assert not any(map(is_loopback, (None, "", "localhost.example", "10.0.0.1", "128.0.0.1", "0.0.0.0")))

    assert is_secure("https://a.example")
    assert is_secure("http://localhost:8000")
    assert not is_secure("http://a.example")
