"""Cloning a repository that a platform names: whole or not at all, by a transport that runs nobody's program.

What a platform says of a repository is checked before Git sees it: an address may be no option, no remote helper, and
no path on this machine unless the platform is on it, too.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from osmosis_ai.api.git_identity import IDENTITY, identify_origin
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.workspace.git import read_origin, run_git, without_credentials, worktree_root

CLONE_TIMEOUT_S = 900.0
_GITHUB = "github.com"
_FROM_AFAR = ("https", "ssh")
_NEARBY = (*_FROM_AFAR, "http", "file")


def github_urls(full_name: str) -> dict[str, str]:
    """Return the addresses of a repository of GitHub, by the name of their transport.

    Raises:
        OsmosisError: this is no name of a repository.
    """
    if not IDENTITY.fullmatch(full_name) or full_name.endswith(("/.", "/..")):
        raise OsmosisError("The platform names a repository that cannot be one.", code="PLATFORM_ERROR")
    return {"HTTPS": f"https://{_GITHUB}/{full_name}.git", "SSH": f"git@{_GITHUB}:{full_name}.git"}


def checked_clone_url(url: str, *, nearby: bool) -> str:
    """Return an address that a platform gives, when it is one that may be cloned.

    Args:
        url: the address.
        nearby: whether the platform is on this machine, and its paths are paths here.

    Raises:
        OsmosisError: it may not.
    """
    identify_origin(url)
    if url.startswith("-") or _transport(url) not in (_NEARBY if nearby else _FROM_AFAR):
        raise OsmosisError(
            f"The platform gives an address that cannot be cloned here: {without_credentials(url)}",
            code="PLATFORM_ERROR",
            hint="clone the repository by hand, and run `osmosis quickstart` in the clone",
        )
    return url


def clone_into(url: str, target: Path) -> Path:
    """Clone ``url`` into ``target``, which is there whole or not at all; a clone of it that is there is taken.

    Args:
        url: from :func:`github_urls` or :func:`checked_clone_url`.
        target: a directory that is not there yet.

    Raises:
        ConflictError: something else is there.
        OsmosisError: Git cannot clone; with what it says.
    """
    if target.exists() or target.is_symlink():
        return _existing_clone(url, target)
    transport = ("-c", "protocol.allow=never", *_allowed(_NEARBY))
    ssh = {} if os.environ.get("GIT_SSH_COMMAND") else {"GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
            done = run_git(
                [
                    *transport,
                    "clone",
                    "--quiet",
                    "--template=",
                    "--no-recurse-submodules",
                    "--",
                    url,
                    "clone",
                ],
                cwd=Path(place),
                env=ssh,
                timeout_s=CLONE_TIMEOUT_S,
            )
            if done.returncode == 0:
                (Path(place) / "clone").rename(target)
                return target
    except OSError as error:
        raise OsmosisError(f"Cannot write {target}: {error.strerror}.") from None
    said = [line for line in done.stderr.splitlines() if line.strip()]
    raise OsmosisError(
        f"Git cannot clone {without_credentials(url)}: {said[-1].strip() if said else 'it does not say why'}",
        code="NETWORK",
        hint=f"try it by hand, then go on in the clone: git clone {without_credentials(url)}",
    )


def _transport(url: str) -> str:
    if "://" in url:
        return urlsplit(url).scheme
    if Path(url).is_absolute():
        return "file"
    return "ssh" if ":" in url.partition("/")[0] else ""


def _allowed(transports: tuple[str, ...]) -> list[str]:
    return [word for name in transports for word in ("-c", f"protocol.{name}.allow=always")]


def _existing_clone(url: str, target: Path) -> Path:
    root = worktree_root(target) if target.is_dir() else None
    origin = read_origin(root) if root is not None and root == target.resolve() else None
    try:
        same = origin is not None and identify_origin(origin).identity == identify_origin(url).identity
    except OsmosisError:
        same = False
    if not same:
        raise ConflictError(
            f"{target} is there already, and is no clone of {without_credentials(url)}.",
            hint="run `osmosis quickstart` in another directory",
        )
    return target
