"""The source of this installation as its installer recorded it (PEP 610): a directory, a file, a URL, a repository.

This distribution's name on a public index belongs to another project, so nothing is ever installed by name. Commands
that extend or replace this installation use its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "osmosis-ai"
_PACKAGE = Path(__file__).resolve().parent

SourceKind = Literal["directory", "file", "url", "repository", "unknown"]


@dataclass(frozen=True)
class InstallationSource:
    kind: SourceKind
    location: str = ""
    editable: bool = False
    revision: str | None = None

    def arguments(self, extra: str | None = None) -> list[str] | None:
        """Return the installer's arguments to install this again; None if the source is unknown."""
        if self.kind == "unknown":
            return None
        extras = f"[{extra}]" if extra else ""
        if self.kind in ("directory", "file"):
            return [*(["-e"] if self.editable else []), f"{self.location}{extras}"]
        revision = f"@{self.revision}" if self.revision else ""
        return [f"{DISTRIBUTION}{extras} @ {self.location}{revision}"]


def installation_source(distribution: metadata.Distribution | None = None) -> InstallationSource:
    """Return the source of ``distribution`` (default: this one); empty if the record is unreadable."""
    found = distribution or installed_distribution()
    if found is not None:
        return _recorded(found)
    root = _PACKAGE.parents[1]
    if not (root / "pyproject.toml").is_file():
        return InstallationSource("unknown")
    return InstallationSource("directory", str(root), editable=True)


def installed_state() -> tuple[int, int] | None:
    """Return a value that changes when the package is reinstalled; None if it is not installed."""
    try:
        about = (_PACKAGE / "__init__.py").stat()
    except OSError:
        return None
    return about.st_ino, about.st_ctime_ns


def installed_distribution() -> metadata.Distribution | None:
    """Return the distribution of the running package; None if it runs from a source tree that is not installed."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    source = _recorded(found)
    is_this = Path(str(found.locate_file(_PACKAGE.name))).resolve() == _PACKAGE
    is_editable = source.editable and _PACKAGE.is_relative_to(Path(source.location).resolve())
    return found if is_this or is_editable else None


def _recorded(distribution: metadata.Distribution) -> InstallationSource:
    try:
        recorded = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        recorded = {}
    recorded = recorded if isinstance(recorded, dict) else {}
    url = str(recorded.get("url") or "")
    directory, repository = recorded.get("dir_info"), recorded.get("vcs_info")
    if url and isinstance(repository, dict):
        revision = repository.get("requested_revision")
        location = f"{repository.get('vcs', 'git')}+{url}"
        return InstallationSource("repository", location, revision=str(revision) if revision else None)
    if not url.startswith("file://"):
        return InstallationSource("url" if url else "unknown", url)
    path = unquote(urlsplit(url).path)
    if not isinstance(directory, dict):
        return InstallationSource("file", path)
    return InstallationSource("directory", path, editable=bool(directory.get("editable")))
