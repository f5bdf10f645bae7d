"""The identity of a repository: every spelling of its origin gives the same `X-Osmosis-Git`."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from osmosis_ai.errors import OsmosisError

IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
"""The identities that the wire accepts (use ``fullmatch``)."""

_GITHUB = "github.com"
_GITHUB_ALIASES = ("www.github.com", "ssh.github.com")
_DEFAULT_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418, "ftp": 21, "ftps": 990}
_SSH_SPELLINGS = {"git+ssh": "ssh", "ssh+git": "ssh"}
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LONGEST_NAME = 64


@dataclass(frozen=True)
class GitIdentity:
    identity: str
    display_url: str


@dataclass(frozen=True)
class _Address:
    """The parsed address of a remote origin; ``port`` is None for the scheme's default."""

    scheme: str
    user: str
    host: str
    shown_host: str
    port: int | None
    path: str


def identify_origin(url: str, *, base: Path | None = None) -> GitIdentity:
    """Return the identity of the repository behind an origin."""
    text = url.strip()
    if not text:
        raise OsmosisError("Git remote URL is empty.")
    if _UNSEEN.search(text):
        raise OsmosisError("Git remote URL contains whitespace or control characters.")
    address = _address_of(text)
    if address is None:
        return _identify_path(text, base or Path.cwd())
    if address.host == _GITHUB:
        return _identify_github(address)
    if address.host in _GITHUB_ALIASES:
        raise OsmosisError(
            "Git remote URL must be hosted on github.com.",
            hint=f"git remote set-url origin https://{_GITHUB}/{_repository_path(address)}.git",
        )
    return _identify_elsewhere(address)


def parse_identity(text: str) -> str:
    """Normalise an identity that a user typed."""
    identity = text.strip().lower()
    if not IDENTITY.fullmatch(identity) or identity.endswith(("/.", "/..")):
        raise OsmosisError(
            f"'{text.rpartition('@')[2]}' is not a repository identity.",
            hint="write it as owner/repo: letters, digits and `-`, then also `.` and `_` after the slash",
        )
    return identity


def _identify_github(address: _Address) -> GitIdentity:
    if re.search(r"%(2f|5c)", address.path, re.IGNORECASE):
        raise OsmosisError("Git remote URL contains encoded slashes.")
    identity = _repository_path(address).lower()
    if not IDENTITY.fullmatch(identity) or identity.endswith(("/.", "/..")):
        raise OsmosisError(
            "Git remote URL must identify exactly one GitHub repository.",
            hint=f"git remote set-url origin https://{_GITHUB}/OWNER/REPO.git",
        )
    return GitIdentity(identity, _display(address))


def _identify_elsewhere(address: _Address) -> GitIdentity:
    path = posixpath.normpath("/" + unquote(_repository_path(address))).strip("/").lower()
    if not path:
        raise OsmosisError(f"Git remote URL has no repository path: {address.shown_host}.")
    port = "" if address.port is None else f":{address.port}"
    return GitIdentity(_hashed(address.host, path, f"{address.host}{port}/{path}"), _display(address))


def _identify_path(text: str, base: Path) -> GitIdentity:
    if text.startswith("file://"):
        text = unquote("/" + text[len("file://") :].partition("/")[2])
    try:
        path = _repository_at((base / text).resolve())
    except (OSError, RuntimeError):
        raise OsmosisError(f"Git remote URL is not a local path: {text}.") from None
    if path == Path(path.anchor):
        raise OsmosisError(f"Git remote URL is the root directory: {path}.")
    name = path.name[: -len(".git")] if path.name.lower().endswith(".git") else path.name
    return GitIdentity(_hashed("local", name.lower(), f"file://{path}"), str(path))


def _repository_at(path: Path) -> Path:
    # Git tries local paths in this order.
    if path.name == ".git":
        return path.parent
    bare = path.with_name(f"{path.name}.git") if path.name else path
    return bare if not path.exists() and bare.exists() else path


def _hashed(owner: str, path: str, normalised: str) -> str:
    digest = hashlib.sha256(normalised.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    host = re.sub(r"[^a-z0-9]+", "-", owner).strip("-") or "host"
    name = re.sub(r"[^a-z0-9._-]+", "-", posixpath.basename(path)).strip("-.")[:_LONGEST_NAME]
    return f"{host}/{name or 'repository'}-{digest}"


def _address_of(text: str) -> _Address | None:
    """Parse an origin with a host; None for a local path."""
    if re.match(r"[A-Za-z0-9+.-]+::", text):
        raise OsmosisError(
            f"Git remote helpers (`{text.split('::', 1)[0]}::`) are not supported.",
            hint="set `origin` to an https or ssh address, or to a path",
        )
    if "://" in text:
        address = _address_of_url(text)
    else:
        colon = re.match(r"(?:(?P<user>[^/]*)@)?(?P<host>\[[^\]/]+\]|[^/:\[]+):(?P<path>.*)", text)
        # As in Git, a slash before the first colon makes it a path.
        if colon is None:
            return None
        user = (colon["user"] or "").partition(":")[0]
        address = _address("ssh", user, colon["host"].strip("[]"), None, colon["path"])
    if address is not None and any(character.isspace() for character in text):
        raise OsmosisError("Git remote URL contains whitespace or control characters.")
    return address


def _address_of_url(text: str) -> _Address | None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OsmosisError("Git remote URL is malformed.", hint="see it with `git remote -v`") from None
    scheme = _SSH_SPELLINGS.get(parts.scheme, parts.scheme)
    if scheme == "file":
        return None
    if scheme not in _DEFAULT_PORTS:
        raise OsmosisError(
            f"Git remote URL has the unknown scheme '{scheme}'.",
            hint="set `origin` to an https or ssh address, or to a path",
        )
    if not parts.hostname:
        raise OsmosisError("Git remote URL has no host.", hint="see it with `git remote -v`")
    explicit_port = None if port == _DEFAULT_PORTS[scheme] else port
    return _address(scheme, unquote(parts.username or ""), _spelt_host(parts), explicit_port, parts.path)


def _spelt_host(parts: SplitResult) -> str:
    authority = parts.netloc.rpartition("@")[2]
    return authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]


def _address(scheme: str, user: str, host: str, port: int | None, path: str) -> _Address:
    folded = host.lower().rstrip(".")
    try:
        folded = folded if folded.isascii() else folded.encode("idna").decode("ascii")
    except UnicodeError:
        raise OsmosisError("Git remote URL has an invalid host.") from None
    return _Address(scheme, user, folded, host, port, path)


def _repository_path(address: _Address) -> str:
    path = address.path.strip("/")
    return path[: -len(".git")].rstrip("/") if path.lower().endswith(".git") else path


def _display(address: _Address) -> str:
    host = f"[{address.shown_host}]" if ":" in address.shown_host else address.shown_host
    user = f"{address.user}@" if address.scheme == "ssh" and address.user else ""
    port = "" if address.port is None else f":{address.port}"
    return f"{address.scheme}://{user}{host}{port}/{address.path.lstrip('/')}"
