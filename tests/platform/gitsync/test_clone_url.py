from __future__ import annotations

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.gitsync.clone_url import parse_clone_url


@pytest.mark.parametrize(
    ("text", "address", "transport"),
    [
        ("https://github.com/acme/agents.git", "https://github.com/acme/agents.git", "https"),
        ("https://bob:s3cret@git.example:8443/a.git", "https://git.example:8443/a.git", "https"),
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
    url = parse_clone_url(text, allow_local=True)

    assert (url.address, url.transport) == (address, transport)
    assert "s3cret" not in repr(url)


def test_credentials_are_kept_apart_for_their_own_host() -> None:
    url = parse_clone_url("https://bob%40corp:p%3Aw@git.example:8443/a.git", allow_local=False)

    assert (url.username, url.password, url.origin) == ("bob@corp", "p:w", "https://git.example:8443")


@pytest.mark.parametrize(
    "text",
    [
        "/srv/caf\udce9.git",
        "",
        "ext::sh -c 'touch /tmp/owned'",
        "ext::https://x",
        "::evil",
        "transport::address",
        "--upload-pack=touch /tmp/owned",
        "-oProxyCommand=id",
        "ssh://-oProxyCommand=id/a",
        "ssh://-u@host/a",
        "-host:path",
        "user@-host:path",
        "host:--upload-pack=id",
        "relative/path",
        "..",
        "C:",
        "ftp://host/a.git",
        "rsync://host/a.git",
        "fd::17",
        "https:///no-host",
        "https://host:99999/a",
        "https://[::1/a",
        "https://host/a b",
        "https://host/a\nb",
        "https://u:p%0aq@host/a",
        "file://host/srv/a.git",
        "file://relative",
        "file:///a%00b",
    ],
)
def test_what_is_no_plain_address_is_refused(text: str) -> None:
    with pytest.raises(OsmosisError):
        parse_clone_url(text, allow_local=True)


@pytest.mark.parametrize(
    "text", ["https://bob:s3cret@", "https://bob:s3cret@host:x/", "weird://bob:s3cret@host/"]
)
def test_a_refusal_does_not_repeat_credentials(text: str) -> None:
    with pytest.raises(OsmosisError) as caught:
        parse_clone_url(text, allow_local=True)
    assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value.details}"


@pytest.mark.parametrize("text", ["/srv/a.git", "file:///srv/a.git"])
def test_a_path_of_this_machine_is_for_its_administrator(text: str) -> None:
    with pytest.raises(OsmosisError, match="can only be connected there"):
        parse_clone_url(text, allow_local=False)
