"""What is settled before any command runs: the environment file and the platform."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.api.platform_url import (
    PLATFORM_URL_ENV,
    TOKEN_ENV,
    TOKEN_PLATFORM_ENV,
    ensure_secure,
    is_secure,
    normalize_platform_url,
    select_by_option,
)
from osmosis_ai.cli.output.context import OutputContext

if TYPE_CHECKING:
    from osmosis_ai.services.env_file import EnvFile

_env_file: EnvFile | None = None


def prepare_environment(output: OutputContext, *, env_file: Path | None, platform: str | None) -> None:
    """Read the environment file and apply ``--platform``."""
    from osmosis_ai.llm.providers import FILE_ADDRESSES
    from osmosis_ai.workspace.git import checkout_root

    for name in (TOKEN_ENV, PLATFORM_URL_ENV, TOKEN_PLATFORM_ENV):
        if os.environ.get(name) == "":
            del os.environ[name]
    global _env_file
    _env_file = None
    FILE_ADDRESSES.clear()
    path = env_file or (checkout_root(Path.cwd()) or Path.cwd()) / ".env"
    # Some people keep a virtual environment in `.env`.
    if env_file is not None or (path.exists() and not path.is_dir()):
        from osmosis_ai.services.env_file import load_env_file

        _env_file = load_env_file(path.absolute(), os.environ, output.warn, named=env_file is not None)
    select_by_option(None)
    if platform is not None:
        use_platform(output, platform)
    elif value := os.environ.get(PLATFORM_URL_ENV):
        _refuse_insecure(output, normalize_platform_url(value))


def current_env_file() -> EnvFile | None:
    """Return the environment file of the command that runs, if there is one that counts."""
    return _env_file


def environment_with_file() -> dict[str, str]:
    """Return this process's variables and, behind them, the file's: for names that a config chose."""
    of_the_file = _env_file.secrets(_env_file.values) if _env_file is not None else {}
    return {**of_the_file, **{name: value for name, value in os.environ.items() if value}}


def use_platform(output: OutputContext, platform: str) -> None:
    """Use the platform at a URL that the user typed, whatever the environment says."""
    url = normalize_platform_url(platform)
    if "://" not in platform:
        output.note(f"Platform: {url}")
    os.environ[PLATFORM_URL_ENV] = url
    select_by_option(url)
    _refuse_insecure(output, url)


def _refuse_insecure(output: OutputContext, url: str) -> None:
    if not is_secure(url):
        output.warn(
            f"{url} is not HTTPS: tokens and secrets would travel in the clear.", code="INSECURE_PLATFORM_URL"
        )
        ensure_secure(url)
