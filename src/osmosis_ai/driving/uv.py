"""Running uv on behalf of a rollout: bounded in time, deaf to the caller's own Python, in uv's words.

The user's ``UV_*`` settings (indexes, credentials, cache, offline) apply, except those that would
choose an interpreter or a project for us; of the rest of the environment it gets what builds need. uv never downloads a Python. It runs in the foreground
process group, so a Ctrl-C reaches it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from osmosis_ai.errors import OsmosisError
from osmosis_ai.process_environment import PACKAGE_PREFIXES, build_environment
from osmosis_ai.sandbox import MetLimit, Sandbox, SandboxedProgram
from osmosis_ai.sandbox.places import reachable_as
from osmosis_ai.supervision import program_start

QUERY_TIMEOUT_S = 120.0
INSTALL_TIMEOUT_S = 1800.0

_PART = "build"
_OURS_TO_DECIDE = frozenset(
    {
        "UV_CONSTRAINT",
        "UV_FROZEN",
        "UV_LOCKED",
        "UV_OVERRIDE",
        "UV_PROJECT",
        "UV_PROJECT_ENVIRONMENT",
        "UV_PYTHON",
        "UV_SYSTEM_PYTHON",
        "UV_WORKING_DIR",
        "UV_WORKING_DIRECTORY",
    }
)
_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_CHATTER = ("Using Python ", "Using CPython ", "Creating virtual environment ")


class UvError(OsmosisError):
    """uv failed; the message ends with its own reason."""


class UvInterruptedError(UvError):
    """uv was ended before it was done, by a signal or by our own deadline."""

    is_infrastructure = True


@dataclass(frozen=True)
class Containment:
    """What holds uv, and the build back ends that it starts, back."""

    sandbox: Sandbox
    writable: tuple[Path, ...]
    cache: Path


class Uv:
    """A uv executable."""

    def __init__(self, path: Path, containment: Containment | None = None) -> None:
        self.path = path
        self._containment = containment

    def places(self) -> tuple[Path, ...]:
        """Return what uv reads of this machine by the operator's will: itself, its settings, directories of packages."""
        named = [
            Path(word.removeprefix("file://"))
            for name, value in build_environment(os.environ).items()
            if name.startswith(PACKAGE_PREFIXES)
            for word in value.split()
            if word.startswith(("/", "file:///"))
        ]
        return reachable_as([self.path, Path("/etc/uv"), *named])

    @classmethod
    def find(cls) -> Uv | None:
        """Find uv beside the running interpreter, else on the ``PATH``."""
        beside = Path(sys.executable).parent / "uv"
        if os.access(beside, os.X_OK):
            return cls(beside)
        found = shutil.which("uv")
        return cls(Path(found)) if found else None

    def run(self, arguments: Sequence[str], *, cwd: Path, timeout_s: float, doing: str) -> str:
        """Run uv and return what it printed."""
        try:
            with program_start(self._command(arguments, cwd), self._environment()) as begun:
                result = subprocess.run(
                    begun.command,
                    cwd=cwd,
                    env=begun.env,
                    pass_fds=begun.fds,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=timeout_s,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise UvInterruptedError(f"{doing} failed: uv did not finish within {timeout_s:g} s.") from None
        except OSError as error:
            raise UvError(f"{doing} failed: `{self.path}` cannot be run: {error.strerror}.") from error
        if result.returncode != 0 and (met := self._limit_met()) is not None:
            raise UvError(f"{doing} failed: uv was {met.words}.", details={"exit_status": result.returncode})
        if result.returncode < 0:
            raise UvInterruptedError(
                f"{doing} was interrupted: uv was ended by signal {-result.returncode}.",
                details={"exit_status": result.returncode},
            )
        if result.returncode != 0:
            reason = _reason(result.stderr.decode("utf-8", "replace"))
            raise UvError(f"{doing} failed: {reason}", details={"exit_status": result.returncode})
        return result.stdout.decode("utf-8", "replace")

    def _command(self, arguments: Sequence[str], cwd: Path) -> list[str] | SandboxedProgram:
        command, held = [str(self.path), *arguments], self._containment
        if held is None:
            return command
        return held.sandbox.command(command, cwd=cwd.resolve(), writable=held.writable, part=_PART)

    def _limit_met(self) -> MetLimit | None:
        held = self._containment
        return None if held is None else held.sandbox.control.end_of(_PART)

    def _environment(self) -> dict[str, str]:
        env = _environment()
        if self._containment is not None:
            # Hard links do not lead from one mount into another.
            env |= {"UV_CACHE_DIR": str(self._containment.cache), "UV_LINK_MODE": "copy"}
        return env

    def find_python(self, versions: SpecifierSet, *, cwd: Path) -> Path:
        """Find an installed interpreter of one of these versions."""
        try:
            found = self.run(
                ["python", "find", "--system", "--no-project", str(versions)],
                cwd=cwd,
                timeout_s=QUERY_TIMEOUT_S,
                doing="looking for a Python",
            )
        except UvError as error:
            installed = self._installed_pythons(cwd)
            raise OsmosisError(
                f"the rollout in `{cwd}` needs Python {versions}, and this machine has "
                f"{', '.join(installed) or 'none that uv finds'}.",
                details={"needed": str(versions), "found": installed},
                hint="install a Python of that version and put it on the PATH, or widen "
                "`requires-python` in the rollout's pyproject.toml; Pythons are never downloaded.",
            ) from error
        return Path(found.strip())

    def _installed_pythons(self, cwd: Path) -> list[str]:
        try:
            listed = json.loads(
                self.run(
                    ["python", "list", "--only-installed", "--output-format", "json"],
                    cwd=cwd,
                    timeout_s=QUERY_TIMEOUT_S,
                    doing="listing Pythons",
                )
            )
            versions = {Version(entry["version"]) for entry in listed}
        except (UvError, ValueError, KeyError, TypeError, InvalidVersion):
            versions = {Version(sys.version.split()[0].rstrip("+"))}
        return [str(version) for version in sorted(versions)]


def _environment() -> dict[str, str]:
    given = build_environment(os.environ)
    env = {name: value for name, value in given.items() if name not in _OURS_TO_DECIDE}
    return {**env, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def _reason(stderr: str) -> str:
    """Return what uv said went wrong, without its chatter and without passwords."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith(_CHATTER)]
    text = "\n".join(lines).removeprefix("error: ").strip()
    return _CREDENTIALS_IN_URL.sub("[REDACTED]", text) or "uv gave no reason."
