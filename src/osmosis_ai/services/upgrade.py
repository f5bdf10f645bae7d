"""The command that upgrades this installation.

Another project has this distribution's name on the public index, so the command takes the newer version from the
source of this installation. This module looks up and installs nothing.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.installation import DISTRIBUTION, installation_source, installed_distribution
from osmosis_ai.workspace.git import without_credentials

Method = Literal["uv_tool", "pipx", "uv", "pip"]


def upgrade_command() -> tuple[Method, str]:
    """Return this installation's installer, and the shell command that installs the newest version from its source."""
    source, method = installation_source(installed_distribution()), _method()
    arguments = source.arguments()
    if arguments is None or source.kind in ("file", "url"):
        origin = without_credentials(source.location) or "an unknown source"
        installer = {"uv_tool": "uv tool", "pipx": "pipx", "uv": "uv pip", "pip": "pip"}[method]
        raise OsmosisError(
            f"Source of newer versions is unknown: this installation came from {origin}.",
            code="PLATFORM_ERROR",
            hint=f"get a newer wheel, then run `{installer} install WHEEL`",
        )
    commands = _install_commands(method, [_without_password(word) for word in arguments])
    if source.kind == "directory" and (Path(source.location) / ".git").exists():
        commands.insert(0, ["git", "-C", source.location, "pull", "--ff-only"])
    return method, " && ".join(" ".join(map(quote, words)) for words in commands)


def _method() -> Method:
    """Return the tool that manages this environment, or the installer that was used in it."""
    if (Path(sys.prefix) / "uv-receipt.toml").is_file():
        return "uv_tool"
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return "pipx"
    distribution = installed_distribution()
    by_uv = distribution is not None and (distribution.read_text("INSTALLER") or "").strip() == "uv"
    return "uv" if shutil.which("uv") and (by_uv or find_spec("pip") is None) else "pip"


def _install_commands(method: Method, wanted: list[str]) -> list[list[str]]:
    """Return the commands that install ``wanted`` over this installation, which may have the same version."""
    # These two tools recorded the source and the extras of the installation.
    if method == "uv_tool":
        return [["uv", "tool", "upgrade", "--reinstall", DISTRIBUTION]]
    if method == "pipx":
        return [["pipx", "reinstall", DISTRIBUTION]]
    if method == "uv":
        return [
            ["uv", "pip", "install", "--python", sys.executable, "--reinstall-package", DISTRIBUTION, *wanted]
        ]
    pip = [sys.executable, "-m", "pip", "install"]
    # The second command adds new dependencies, without reinstalling the others.
    return [[*pip, "--force-reinstall", "--no-deps", *wanted], [*pip, *wanted]]


def _without_password(word: str) -> str:
    name, joined, url = word.partition(" @ ")
    return f"{name}{joined}{without_credentials(url)}" if joined else word
