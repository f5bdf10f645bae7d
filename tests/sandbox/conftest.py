"""A platform's machine with canaries in it, and a sandbox on it in which commands are run."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from osmosis_ai.process_environment import program_environment
from osmosis_ai.sandbox.bubblewrap import Sandbox, SandboxedProgram
from osmosis_ai.sandbox.control_groups import RunLimits
from osmosis_ai.sandbox.isolation import SandboxCapability, check_sandbox


@dataclass
class Machine:
    """What a platform has on its disk, each with a canary of its own in it.

    Attributes:
        sandbox: of the run whose files these are.
        artifacts: what the run may write to.
        canaries: what nothing sandboxed may ever print, by where it is.
    """

    root: Path
    sandbox: Sandbox
    artifacts: Path
    canaries: dict[str, str] = field(default_factory=dict)

    def plant(self, place: Path) -> Path:
        """Write a canary into a file."""
        place.parent.mkdir(parents=True, exist_ok=True)
        value = self.canaries[str(place)] = secrets.token_hex(12)
        place.write_text(value)
        return place

    def run(
        self, script: str, *arguments: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell's script in the sandbox; its parent's environment has a canary."""
        value = self.canaries.setdefault("the operator's environment", secrets.token_hex(12))
        program = self.sandbox.command(
            ["/bin/sh", "-c", script, "sh", *map(str, arguments)],
            cwd=self.sandbox.source,
            writable=[self.artifacts],
        )
        with program.start({**program_environment(os.environ), **(env or {})}) as begun:
            return subprocess.run(
                ["/bin/sh", "-c", 'env -u OPERATORS_KEY "$@"; exit $?', "sh", *begun.command],
                env={**begun.env, "OPERATORS_KEY": value},
                pass_fds=begun.fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=120,
                check=False,
            )

    def popen(self, program: SandboxedProgram, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program of the sandbox; its output is read by the caller."""
        with program.start(program_environment(os.environ) if env is None else env) as begun:
            return subprocess.Popen(
                begun.command,
                env=begun.env,
                pass_fds=begun.fds,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def found(self, text: str) -> list[str]:
        """Return which canaries are in a text."""
        return [place for place, value in self.canaries.items() if value in text]


@pytest.fixture(scope="session")
def capability() -> SandboxCapability:
    """What this machine can do; tests are skipped if it cannot sandbox."""
    found = check_sandbox()
    if not found.works:
        pytest.skip(f"{found.said}; {found.remedy}")
    return found


def make_machine(root: Path, capability: SandboxCapability, **limits: int) -> Machine:
    """Return a platform's machine below ``root``."""
    data = root / "data"
    source, artifacts = data / "runs" / "mine" / "source", data / "runs" / "mine" / "evaluation" / "trials"
    source.mkdir(parents=True)
    artifacts.mkdir(parents=True)
    (source / "main.py").write_text("agent")
    sandbox = capability.sandbox(source, hidden=[data], limits=RunLimits(**limits))
    machine = Machine(root, sandbox, artifacts.resolve())
    for name in ("platform.db", "keys/secrets.key", "blobs/ab/cd", "git/mirror/HEAD"):
        machine.plant(data / name)
    machine.plant(data / "runs" / "other" / "source" / ".env")
    machine.plant(data / "runs" / "other" / "evaluation" / "trials" / "r0" / "trajectory.json")
    machine.plant(data / "runs" / "mine" / "worker.log")
    machine.plant(root / "somewhere" / "else")
    return machine


@pytest.fixture
def machine(tmp_path: Path, capability: SandboxCapability) -> Machine:
    """A machine on which tests run as who they are."""
    return make_machine(tmp_path, capability)
