"""What a rollout project asks for, and whether the running interpreter has it.

The name ``osmosis-ai`` always stands for the SDK that runs: its extras count, its version does not.
An interpreter satisfies a project when its version, every requirement whose marker applies, and
what the named extras bring along are there in a version that fits. Of installed packages' own
requirements nothing is checked: whoever installed them has.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from osmosis_ai.errors import OsmosisError
from osmosis_ai.installation import DISTRIBUTION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SERVER_EXTRA = "server"


@dataclass(frozen=True)
class RolloutProject:
    """The parts of a rollout's ``pyproject.toml`` that decide about its environment."""

    requires_python: SpecifierSet
    dependencies: tuple[Requirement, ...]
    is_dynamic: bool = False
    sources: frozenset[str] = frozenset()
    local_sources: frozenset[str] = frozenset()
    can_be_copied: bool = True

    @property
    def sdk_requirements(self) -> list[Requirement]:
        """What it says about the SDK."""
        return [requirement for requirement in self.dependencies if _is_sdk(requirement)]

    @property
    def sdk_extras(self) -> list[str]:
        """The SDK's extras it needs; serving is always one of them."""
        named = {canonicalize_name(extra) for need in self.sdk_requirements for extra in need.extras}
        return sorted(named | {SERVER_EXTRA})


def read_project(rollout_dir: Path) -> RolloutProject | None:
    """Read a rollout's ``pyproject.toml``; None when there is none."""
    path = rollout_dir / "pyproject.toml"
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise OsmosisError(f"`{path}` is not valid TOML: {error}") from error
    project = _table(document, "project")
    try:
        requires_python = SpecifierSet(str(project.get("requires-python", "")))
    except InvalidSpecifier as error:
        raise OsmosisError(f"`requires-python` in `{path}` is not a version specifier: {error}") from error
    dependencies = tuple(_requirements(project.get("dependencies", []), path))
    sources = _sources(document)
    local = {name for name, entries in sources.items() if any(map(_is_local, entries))}
    local |= {need.name for need in dependencies if (need.url or "").startswith("file:")}
    return RolloutProject(
        requires_python=requires_python,
        dependencies=dependencies,
        is_dynamic="dependencies" in project.get("dynamic", ())
        or ("project" not in document and "build-system" in document),
        sources=frozenset(sources),
        local_sources=frozenset(canonicalize_name(name) for name in local) - {DISTRIBUTION},
        can_be_copied=not any(_is_tied_to_place(entry) for entries in sources.values() for entry in entries),
    )


def unmet_requirements(project: RolloutProject) -> list[str]:
    """Return why the running interpreter does not satisfy a project; empty when it does."""
    if project.is_dynamic:
        return ["its dependencies are dynamic"]
    unmet = []
    version = platform.python_version()
    if not project.requires_python.contains(version, prereleases=True):
        unmet.append(f"it needs Python {project.requires_python} and this is {version}")
    needs = [
        Requirement(f"{DISTRIBUTION}[{','.join(project.sdk_extras)}]"),
        *(need for need in project.dependencies if not _is_sdk(need)),
    ]
    unmet += [
        f"`{name}` comes from `[tool.uv.sources]`"
        for name in sorted({canonicalize_name(need.name) for need in needs} & project.sources)
    ]
    return unmet + list(_unmet(needs, extra="", seen=set()))


def sdk_notices(project: RolloutProject) -> list[str]:
    """Return what a project says about the SDK that the SDK that runs does not fulfil."""
    distribution = metadata.distribution(DISTRIBUTION)
    notices = [
        f"`{need}` is not looked up: the SDK is always the one that runs this, {distribution.version}"
        for need in project.sdk_requirements
        if need.url or not need.specifier.contains(distribution.version, prereleases=True)
    ]
    provided = {canonicalize_name(extra) for extra in distribution.metadata.get_all("Provides-Extra") or ()}
    notices += [
        f"`{DISTRIBUTION}[{extra}]` adds nothing: the SDK has no extra of this name"
        for extra in project.sdk_extras
        if extra not in provided
    ]
    return notices


def _unmet(needs: Iterable[Requirement], *, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        try:
            distribution = metadata.distribution(need.name)
        except metadata.PackageNotFoundError:
            yield f"`{need.name}` is not installed"
            continue
        if problem := _mismatch(need, distribution):
            yield problem
            continue
        for wanted in need.extras:
            key = (canonicalize_name(need.name), canonicalize_name(wanted))
            if key not in seen:
                seen.add(key)
                brought = [Requirement(line) for line in distribution.requires or ()]
                conditional = [item for item in brought if item.marker and "extra" in str(item.marker)]
                yield from _unmet(conditional, extra=key[1], seen=seen)


def _mismatch(need: Requirement, distribution: metadata.Distribution) -> str | None:
    if _is_sdk(need):
        return None
    if need.url and _recorded_url(distribution) != need.url:
        return f"`{need.name}` comes from {need.url}"
    if not need.specifier.contains(distribution.version, prereleases=True):
        return f"`{need.name}` is {distribution.version}, not {need.specifier}"
    return None


def _recorded_url(distribution: metadata.Distribution) -> str | None:
    """Return where a package was installed from, if not from an index (PEP 610)."""
    recorded = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = recorded.get("url") if isinstance(recorded, dict) else None
    vcs = recorded.get("vcs_info") if url else None
    return f"{vcs['vcs']}+{url}@{vcs.get('requested_revision', '')}".rstrip("@") if vcs else url


def _requirements(entries: Any, path: Path) -> Iterator[Requirement]:
    if not isinstance(entries, list):
        raise OsmosisError(f"`project.dependencies` in `{path}` must be a list of requirements.")
    for entry in entries:
        try:
            yield Requirement(str(entry))
        except InvalidRequirement as error:
            raise OsmosisError(f"`{entry}` in `{path}` is not a requirement: {error}") from error


def _is_sdk(requirement: Requirement) -> bool:
    return canonicalize_name(requirement.name) == DISTRIBUTION


def _sources(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return where ``[tool.uv.sources]`` takes packages from, without the SDK."""
    table = _table(_table(_table(document, "tool"), "uv"), "sources")
    listed = {name: entry if isinstance(entry, list) else [entry] for name, entry in table.items()}
    return {
        canonicalize_name(name): [item for item in entries if isinstance(item, Mapping)]
        for name, entries in listed.items()
        if canonicalize_name(name) != DISTRIBUTION
    }


def _is_local(source: Mapping[str, Any]) -> bool:
    return "path" in source or bool(source.get("workspace"))


def _is_tied_to_place(source: Mapping[str, Any]) -> bool:
    """Tell whether a source means something else, or nothing, seen from another directory."""
    path = Path(str(source.get("path", "")))
    leaves = not path.is_absolute() and os.path.normpath(path).startswith("..")
    return bool(source.get("workspace") or source.get("editable")) or leaves


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name, {})
    return value if isinstance(value, Mapping) else {}
