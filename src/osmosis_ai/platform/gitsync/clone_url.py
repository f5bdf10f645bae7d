"""Validate clone URLs: allow only plain transports, and separate credentials.

Git accepts more than addresses: ``ext::`` runs a command, and a host that starts with a dash becomes an ssh option.
Such URLs are refused. Git's command line never contains a password, because every user of a machine can read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from osmosis_ai.errors import OsmosisError

_SCHEMES = ("https", "http", "ssh", "git", "file")
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SCP_LIKE = re.compile(r"(?:(?P<user>[^/@:]+)@)?(?P<host>\[[^\]/]+\]|[^/:@\[\]]+):(?P<path>.+)")
_HINT = "use an https or ssh address, or the absolute path of a repository on the platform's machine"


@dataclass(frozen=True)
class CloneUrl:
    """A checked clone URL."""

    address: str
    transport: str
    username: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a path on this machine."""
        return self.transport == "file"

    @property
    def origin(self) -> str:
        """Scheme, host and port: what the credentials are for."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"


def parse_clone_url(text: str, *, allow_local: bool) -> CloneUrl:
    """Check where a repository is to be cloned from."""
    text = text.strip()
    if _CONTROL.search(text):
        raise OsmosisError("the clone URL must not contain control characters.")
    if text.encode(errors="replace").decode() != text:
        raise OsmosisError("the clone URL is not valid UTF-8.", hint="rename the directory")
    if not text or text.startswith("-"):
        raise OsmosisError("the clone URL is not the address of a repository.", hint=_HINT)
    if re.match(r"[A-Za-z0-9+.-]*::", text):
        raise OsmosisError(
            f"Git remote helpers (`{text.split('::', 1)[0]}::`) can run commands and are not allowed.",
            hint=_HINT,
        )
    url = _parse_url(text) if "://" in text else _parse_short(text)
    if url.is_local and not allow_local:
        raise OsmosisError(
            "a path on the platform's machine can only be connected there.",
            hint="ask an administrator for `osmosis platform connect PATH`, or use an https or ssh address",
        )
    return url


def _parse_short(text: str) -> CloneUrl:
    if text.startswith("/"):
        return CloneUrl(text, "file")
    match = _SCP_LIKE.fullmatch(text)
    if match is None or _UNSEEN.search(text):
        raise OsmosisError("the clone URL is not the address of a repository.", hint=_HINT)
    _refuse_options(match["user"] or "", match["host"], match["path"])
    return CloneUrl(text, "ssh")


def _parse_url(text: str) -> CloneUrl:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OsmosisError("the clone URL is malformed.", hint=_HINT) from None
    scheme = "ssh" if parts.scheme in ("git+ssh", "ssh+git") else parts.scheme
    if scheme not in _SCHEMES:
        raise OsmosisError(f"the clone URL has the unknown scheme '{scheme}'.", hint=_HINT)
    if scheme == "file":
        return _file_url(parts)
    if not parts.hostname or _UNSEEN.search(text):
        raise OsmosisError("the clone URL names no host.", hint=_HINT)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    if _CONTROL.search(username + password):
        raise OsmosisError("the credentials in the clone URL must not contain control characters.")
    _refuse_options(username, parts.hostname, "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    if scheme == "ssh":
        # The user of an ssh address is part of it, no secret; a password there is of no use to ssh.
        netloc = f"{username}@{netloc}" if username else netloc
        return CloneUrl(urlunsplit(("ssh", netloc, parts.path, "", "")), "ssh")
    address = urlunsplit((scheme, netloc, parts.path, parts.query, ""))
    return CloneUrl(address, scheme, username or None, password)


def _file_url(parts: SplitResult) -> CloneUrl:
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not Path(path).is_absolute() or _CONTROL.search(path):
        raise OsmosisError("a file:// clone URL must name an absolute path on this machine.", hint=_HINT)
    return CloneUrl(path, "file")


def _refuse_options(*parts: str) -> None:
    if any(part.startswith("-") for part in parts):
        raise OsmosisError("no part of a clone URL may start with a dash.", hint=_HINT)
