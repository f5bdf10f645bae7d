"""What is settled before any command runs: the environment file and the platform.

The variables that say *who* and *where* form one profile. A profile is never mixed from two places
that disagree: a token must not travel to a platform that another file chose.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.api.platform_url import (
    PLATFORM_URL_ENV,
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
    ensure_secure,
    is_secure,
    normalize_platform_url,
)
from osmosis_ai.cli.output.context import OutputContext
from osmosis_ai.errors import ConflictError, OsmosisError

if TYPE_CHECKING:
    from osmosis_ai.services.env.files import ClassifiedEnvFile

PROFILE = (TOKEN_ENV, PLATFORM_URL_ENV, TOKEN_PLATFORM_ENV)
ENV_COMMANDS = "env"
_NAMES_SHOWN = 12
_taken: ClassifiedEnvFile | None = None


def prepare_environment(
    output: OutputContext, *, env_file: Path | None, platform: str | None, command: str | None = None
) -> None:
    """Take what counts of the environment file, apply ``--platform`` and refuse an insecure platform.

    Args:
        output: where a warning goes.
        env_file: the file the user named, which allows it; without one, the workspace's ``.env``.
        platform: the URL of ``--platform``; it beats the environment and the file.
        command: the first word of the command; those of ``env`` tell of the file themselves.

    Raises:
        ConflictError: environment and file disagree about the profile.
        OsmosisError: the file cannot be read, or the platform's URL is invalid or insecure.
    """
    from osmosis_ai.llm.file_addresses import set_file_addresses

    chosen = normalize_platform_url(platform) if platform is not None else None
    if chosen is not None and platform is not None and "://" not in platform:
        output.note(f"Platform: {chosen}")
    for name in PROFILE:
        if os.environ.get(name) == "":
            del os.environ[name]
    classified = None if command == ENV_COMMANDS else _env_file(output, env_file)
    if classified is not None:
        if classified.allowed:
            ignored = PLATFORM_URL_ENV if chosen else None
            _refuse_mixed_profile(classified.file.path, classified.file.values, ignore=ignored)
        _tell_what_is_ignored(output, classified)
        os.environ.update(classified.used)
    set_file_addresses(classified.guarded_addresses if classified is not None else {})
    global _taken
    _taken = classified
    if chosen is not None:
        os.environ[PLATFORM_URL_ENV] = chosen
    _refuse_insecure_platform(output)


def current_env_file() -> ClassifiedEnvFile | None:
    """Return the environment file of the command that runs, or None when there is none or it is not read."""
    return _taken


def _env_file(output: OutputContext, named: Path | None) -> ClassifiedEnvFile | None:
    """Read and judge the file that counts here; None when there is none, or none that may be read."""
    from osmosis_ai.workspace import env_file

    path = named or env_file.env_file_path(Path.cwd())
    if named is None and not os.path.lexists(path):
        return None
    from osmosis_ai.services.env.consents import EnvConsents
    from osmosis_ai.services.env.files import classify_env_file

    try:
        file = (
            env_file.read_named_env_file(named)
            if named is not None
            else env_file.read_workspace_env_file(path)
        )
    except env_file.UntrustedEnvFile as error:
        output.warn(f"{error.message}; to mend that: {error.hint}", code="ENV_FILE_IGNORED")
        return None
    if file is None:
        return None
    for line in file.bad_lines:
        output.warn(f"{file.path}, line {line}: not `NAME=value`, ignored.")
    allowed = named is not None or EnvConsents().allows(file.path, file.digest)
    return classify_env_file(file, os.environ, allowed=allowed)


def _tell_what_is_ignored(output: OutputContext, classified: ClassifiedEnvFile) -> None:
    """Say in one line what a file may not do; names that are only for rollouts are told of once."""
    from osmosis_ai.services.env.consents import EnvConsents

    file = classified.file
    never, waiting = classified.names("never"), classified.names("needs_permission")
    kept = [] if EnvConsents().told(file.path, file.digest) else classified.names("rollouts")
    told = [
        f"{_listed(names)} ({why})"
        for names, why in (
            (never, "never taken from a file"),
            (file.unresolved, "refers to a name that the file does not set"),
            (kept, "only for a rollout whose config lists it as a secret"),
            (waiting, f"until you have read the file and allow it: osmosis env allow {file.path}"),
        )
        if names
    ]
    if told:
        output.warn(f"{file.path}: ignored {'; '.join(told)}", code="ENV_FILE_NAMES_IGNORED")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


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
    if name == TOKEN_ENV:
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
