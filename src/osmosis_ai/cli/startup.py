"""What is settled before any command runs: the environment file and the platform.

The variables that say *who* and *where* form one profile. A profile is never mixed from two places
that disagree: a token must not travel to a platform that another file chose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from osmosis_ai.api.platform_url import (
    PLATFORM_URL_ENV,
    ensure_secure,
    is_secure,
    normalize_platform_url,
)
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.errors import ConflictError, OsmosisError

TOKEN_PLATFORM_ENV = "OSMOSIS_TOKEN_PLATFORM_URL"
PROFILE = ("OSMOSIS_TOKEN", PLATFORM_URL_ENV, TOKEN_PLATFORM_ENV)


def prepare_environment(output: OutputContext, *, env_file: Path | None, platform: str | None) -> None:
    """Load the environment file, apply ``--platform`` and refuse an insecure platform.

    Args:
        output: where a warning goes.
        env_file: the file the user named; without one, the nearest ``.env`` upwards from here.
        platform: the URL of ``--platform``; it beats the environment and the file.

    Raises:
        ConflictError: environment and file disagree about the profile.
        OsmosisError: the file cannot be read, or the platform's URL is invalid or insecure.
    """
    chosen = normalize_platform_url(platform) if platform is not None else None
    for name in PROFILE:
        if os.environ.get(name) == "":
            del os.environ[name]
    source = env_file if env_file is not None else nearest_env_file(Path.cwd())
    if source is not None:
        values = _read(source, output)
        _refuse_mixed_profile(source, values, ignore=PLATFORM_URL_ENV if chosen else None)
        for name, value in values.items():
            os.environ.setdefault(name, value)
    if chosen is not None:
        os.environ[PLATFORM_URL_ENV] = chosen
    _refuse_insecure_platform(output)


def nearest_env_file(start: Path) -> Path | None:
    """Return the ``.env`` in ``start`` or the closest directory above it that has one."""
    for directory in (start, *start.parents):
        candidate = directory / ".env"
        if candidate.is_file():
            return candidate
    return None


def _read(path: Path, output: OutputContext) -> dict[str, str]:
    # Importing the parser costs more than starting Python; most directories have no `.env`.
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    try:
        found = dotenv_values(path, encoding="utf-8")
        with path.open(encoding="utf-8") as stream:
            broken = [binding.original.line for binding in parse_stream(stream) if binding.error]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OsmosisError(f"cannot read the environment file {path}: {reason}") from error
    for line in broken:
        output.warn(f"{path}, line {line}: not `NAME=value`, ignored.")
    return {name: value for name, value in found.items() if value is not None}


def _refuse_mixed_profile(path: Path, values: Mapping[str, str], *, ignore: str | None) -> None:
    def profile_of(source: Mapping[str, str]) -> dict[str, str]:
        return {name: source[name] for name in PROFILE if source.get(name) and name != ignore}

    here, there = profile_of(os.environ), profile_of(values)
    differing = [name for name in here if name in there and not _same(name, here[name], there[name])]
    if differing:
        names = ", ".join(differing)
        raise ConflictError(
            f"{names}: the environment and {path} disagree.",
            details={"variables": differing, "env_file": str(path)},
            hint=f"unset {' '.join(differing)} in the shell, or remove it from the file",
        )


def _same(name: str, one: str, other: str) -> bool:
    if name == "OSMOSIS_TOKEN":
        return one == other
    try:
        return normalize_platform_url(one) == normalize_platform_url(other)
    except OsmosisError:
        return one == other


def _refuse_insecure_platform(output: OutputContext) -> None:
    value = os.environ.get(PLATFORM_URL_ENV)
    if not value:
        return
    url = normalize_platform_url(value)
    if is_secure(url):
        return
    output.warn(
        f"{url} is not HTTPS: tokens and secrets would travel in the clear.", code="INSECURE_PLATFORM_URL"
    )
    ensure_secure(url)
