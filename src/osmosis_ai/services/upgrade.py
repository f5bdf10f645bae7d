"""Bring this installation up to date from where it came, and from nowhere else.

Another project has this distribution's name on the public index, so nothing is ever looked up or installed by name:
a checkout takes the commits of its upstream, a wheel a newer one beside it, a repository's copy what its branch has
now. Whoever came from an index or a URL is told what to do. The network is used because the user asked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from osmosis_ai._version import __version__
from osmosis_ai.config.lines import parse_toml
from osmosis_ai.errors import OsmosisError
from osmosis_ai.installation import (
    DISTRIBUTION,
    InstallationSource,
    installation_source,
    installed_distribution,
)
from osmosis_ai.process_environment import build_environment
from osmosis_ai.workspace.git import run_git, without_credentials

COMMAND_TIMEOUT_S = 120.0
_VERSION_FILE = "src/osmosis_ai/_version.py"
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_EXTRAS = re.compile(r"\[([A-Za-z0-9_,. -]+)\](?:\s*@|$)")
_MOST_OUTPUT_CHARS = 20_000

Method = Literal["uv_tool", "pipx", "uv", "pip"]


@dataclass(frozen=True)
class CommandRun:
    """How a command ended."""

    status: int
    stdout: str = ""
    stderr: str = ""


RunCommand = Callable[[Sequence[str]], CommandRun]


@dataclass(frozen=True)
class UpgradeReport:
    """What there was to upgrade, and what was done about it.

    Attributes:
        source: where this installation came from.
        method: what installed it.
        latest_version: of what is newer there, or of what is there; None where nobody can tell.
        commands: what was run, in order; nothing when there was nothing newer.
        stdout: what they wrote.
        stderr: what they wrote to it.
    """

    source: InstallationSource
    method: Method
    latest_version: str | None
    commands: tuple[tuple[str, ...], ...] = ()
    stdout: str = ""
    stderr: str = ""

    def resource(self) -> dict[str, Any]:
        """Return it as scripts see it; the keys of commands are there when some were run."""
        ran = {"command": shown_commands(self.commands), "stdout": self.stdout, "stderr": self.stderr}
        return {
            "installed_version": __version__,
            "latest_version": self.latest_version,
            "method": self.method,
            "source": {"kind": self.source.kind, "location": without_credentials(self.source.location)},
            **(ran if self.commands else {}),
        }


@dataclass(frozen=True)
class _Newer:
    """What is newer than this installation: its version, what fetches it, and what is installed then, if anything."""

    version: str | None
    commands: list[list[str]] = field(default_factory=list)
    install: InstallationSource | None = None


def run_command(words: Sequence[str]) -> CommandRun:
    """Run a command without input and without the user's keys, for two minutes at most."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={**build_environment(os.environ), "GIT_TERMINAL_PROMPT": "0"},
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CommandRun(1, stderr=f"it took longer than {COMMAND_TIMEOUT_S:.0f} s")
    except OSError as error:
        return CommandRun(1, stderr=str(error))
    return CommandRun(done.returncode, done.stdout[-_MOST_OUTPUT_CHARS:], done.stderr[-_MOST_OUTPUT_CHARS:])


def upgrade(run: RunCommand = run_command) -> UpgradeReport:
    """Install what is newer where this installation came from.

    Args:
        run: runs a command.

    Raises:
        OsmosisError: nobody can tell what is newer, or a command failed (PLATFORM_ERROR); the hint has commands that
            the user can run.
    """
    distribution = installed_distribution()
    source, method = installation_source(distribution), _method(distribution)
    newer = _newer(source)
    if not newer.commands and newer.install is None:
        return UpgradeReport(source, method, newer.version)
    commands = [*newer.commands, *(_install_commands(newer.install, method) if newer.install else [])]
    out, err = "", ""
    for number, command in enumerate(commands):
        ran = run(command)
        out, err = out + ran.stdout, err + ran.stderr
        if ran.status != 0:
            report = UpgradeReport(source, method, newer.version, _frozen(commands), out, err)
            raise _failed(
                f"`{shown_commands([command])}` failed: {err.strip() or out.strip() or ran.status}",
                shown_commands(commands[number:]),
                report.resource(),
            )
    return UpgradeReport(source, method, newer.version, _frozen(commands), out, err)


def shown_commands(commands: Sequence[Sequence[str]]) -> str:
    """Return commands as a shell takes them, without the passwords of their URLs."""
    return " && ".join(" ".join(quote(_without_password(word)) for word in words) for words in commands)


def _without_password(word: str) -> str:
    name, joined, url = word.partition(" @ ")
    return f"{name}{joined}{without_credentials(url)}" if joined else word


def _frozen(commands: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(words) for words in commands)


def _failed(message: str, by_hand: str, details: dict[str, Any]) -> OsmosisError:
    return OsmosisError(message, code="PLATFORM_ERROR", details=details, hint=f"by hand: {by_hand}")


# -- what is newer ------------------------------------------------------------------------------


def _newer(source: InstallationSource) -> _Newer:
    root = Path(source.location)
    if source.kind == "directory":
        return _newer_commits(source, root) if (root / ".git").exists() else _newer_tree(source, root)
    if source.kind == "file":
        return _newer_wheel(root)
    if source.kind == "repository":
        return _newer_revision(source)
    details = {"installed_version": __version__, "latest_version": None}
    if source.kind == "url":
        shown = without_credentials(source.location)
        raise _failed(
            f"This installation came from {shown}, which names one file: what is newer nobody can tell from it.",
            "pip install URL-OF-A-NEWER-WHEEL",
            details,
        )
    raise _failed(
        "Nothing tells where this installation came from, and it is not looked for by name: on the public index "
        f"`{DISTRIBUTION}` is another project's package.",
        "pip install DIRECTORY-OR-WHEEL of a newer Osmosis",
        details,
    )


def _newer_commits(source: InstallationSource, root: Path) -> _Newer:
    by_hand = f"git -C {quote(str(root))} pull --ff-only"
    upstream = _git(root, by_hand, "rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
    _git(root, by_hand, "fetch", "--quiet")
    behind = int(_git(root, by_hand, "rev-list", "--count", f"HEAD..{upstream}"))
    there = _version_in(_git(root, by_hand, "show", f"{upstream}:{_VERSION_FILE}"))
    if not behind:
        # A copy may be older than the tree that it was made of.
        return _newer_tree(source, root) if not source.editable else _Newer(there)
    requirements = _git(root, by_hand, "diff", "--name-only", "HEAD", upstream, "--", "pyproject.toml")
    again = bool(requirements) or not source.editable
    return _Newer(
        there, [["git", "-C", str(root), "merge", "--ff-only", upstream]], source if again else None
    )


def _newer_tree(source: InstallationSource, root: Path) -> _Newer:
    try:
        there = _version_in((root / _VERSION_FILE).read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise _gone(root, error) from None
    newer = not source.editable and there is not None and _is_newer(there)
    return _Newer(there, install=source if newer else None)


def _newer_wheel(wheel: Path) -> _Newer:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    best, found = None, None
    try:
        candidates = sorted(wheel.parent.iterdir())
    except OSError as error:
        raise _gone(wheel.parent, error) from None
    for path in candidates:
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if name == DISTRIBUTION and (best is None or version > best):
            best, found = version, path
    if best is None or found is None or not _is_newer(str(best)):
        return _Newer(str(best) if best else None)
    return _Newer(str(best), install=InstallationSource("file", str(found)))


def _newer_revision(source: InstallationSource) -> _Newer:
    url = source.location.partition("+")[2]
    by_hand = shown_commands([["pip", "install", "--force-reinstall", *(source.arguments() or [])]])
    listed = _git(Path.cwd(), by_hand, "ls-remote", "--", url, source.revision or "HEAD")
    commits = [line.split()[0] for line in listed.splitlines() if line.strip()]
    # A revision that is no name there is a commit, which stays what it is.
    moved = bool(commits) and source.commit not in commits
    return _Newer(None, install=source if moved else None)


def _git(root: Path, by_hand: str, *arguments: str) -> str:
    done = run_git(arguments, cwd=root, timeout_s=COMMAND_TIMEOUT_S)
    if done.returncode != 0:
        details = {"installed_version": __version__, "latest_version": None}
        raise _failed(f"Git cannot tell what is newer for {root}: {done.stderr.strip()}", by_hand, details)
    return done.stdout.strip()


def _gone(path: Path, error: OSError) -> OsmosisError:
    return _failed(
        f"This installation came from {path}, which cannot be read: {error.strerror}.",
        "pip install DIRECTORY-OR-WHEEL of a newer Osmosis",
        {"installed_version": __version__, "latest_version": None},
    )


def _version_in(text: str) -> str | None:
    found = _VERSION.search(text)
    return found[1] if found else None


def _is_newer(version: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) > Version(__version__)
    except InvalidVersion:
        return False


# -- who installs it ----------------------------------------------------------------------------


def _method(distribution: metadata.Distribution | None) -> Method:
    """Return what installed this: a tool that keeps an environment for it, or an installer of this environment."""
    environment = Path(sys.prefix)
    if (environment / "uv-receipt.toml").is_file():
        return "uv_tool"
    if (environment / "pipx_metadata.json").is_file():
        return "pipx"
    by_uv = distribution is not None and (distribution.read_text("INSTALLER") or "").strip() == "uv"
    return "uv" if shutil.which("uv") and (by_uv or find_spec("pip") is None) else "pip"


def _install_commands(source: InstallationSource, method: Method) -> list[list[str]]:
    """Return what installs ``source`` over this installation; the distribution is never named without its source."""
    # A tool makes its environment anew, of what it is told; a plain one keeps the extras that it has.
    wanted = source.arguments(_extras_of(Path(sys.prefix), method)) or []
    if method == "uv_tool":
        return [["uv", "tool", "install", "--force", "--reinstall-package", DISTRIBUTION, *wanted]]
    if method == "pipx":
        return [["pipx", "install", "--force", *(["--editable", *wanted[1:]] if source.editable else wanted)]]
    if method == "uv":
        return [
            ["uv", "pip", "install", "--python", sys.executable, "--reinstall-package", DISTRIBUTION, *wanted]
        ]
    pip = [sys.executable, "-m", "pip", "install"]
    # Only this package anew, whatever its version; then what it needs besides.
    return [[*pip, "--force-reinstall", "--no-deps", *wanted], [*pip, *wanted]]


def _extras_of(environment: Path, method: Method) -> str | None:
    """Return the extras that a tool's environment was made with, as `eval,platform`; None for none."""
    try:
        if method == "uv_tool":
            receipt = parse_toml((environment / "uv-receipt.toml").read_text("utf-8"), "uv-receipt.toml")
            wanted = [dict(entry) for entry in receipt["tool"]["requirements"]]
            extras = [
                name for entry in wanted if entry["name"] == DISTRIBUTION for name in entry.get("extras", [])
            ]
            return ",".join(map(str, extras)) or None
        if method == "pipx":
            recorded = json.loads((environment / "pipx_metadata.json").read_text("utf-8"))
            found = _EXTRAS.search(str(recorded["main_package"]["package_or_url"]))
            return found[1] if found else None
    except (OSError, ValueError, KeyError, TypeError, OsmosisError):
        return None
    return None
