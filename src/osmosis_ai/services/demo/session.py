"""A platform of the demo's own, and a user of it: its commands, typed one after the other.

What is started is stopped again, whatever happens, unless it is to be kept and all went well.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.services.demo.commands import (
    PROGRAM,
    CommandFailed,
    Display,
    Tell,
    failure_of,
    run_quietly,
    run_shown,
    tied_to_this_process,
)
from osmosis_ai.services.demo.outcome import DemoOutcome, read_outcome
from osmosis_ai.services.demo.scratch import Scratch

ENV_FILE = "env.sh"
_SECRET = "DEMO_API_KEY"
_START = ("platform", "start", "--port", "0", "--login")
_STOP_TIMEOUT_S = 30.0


@dataclass
class Platform:
    """The demo's platform; it goes on running when ``keep`` is set before the demo leaves it."""

    url: str
    env: Mapping[str, str] = field(repr=False)
    keep: bool = False


@dataclass(frozen=True)
class Session:
    """A user of the demo's platform.

    Attributes:
        display: the mode of the output of commands that are shown.
        tell: takes the commands as a user would type them, and what they said.
    """

    scratch: Scratch
    platform: Platform
    display: Display
    tell: Tell

    def step(self, *words: str) -> dict[str, Any]:
        """Run a command unseen, and return what it has to say to programs.

        Raises:
            CommandFailed: it failed.
        """
        self.tell(f"$ osmosis {shlex.join(words)}")
        return self.ask(*words)

    def ask(self, *words: str) -> dict[str, Any]:
        """Run a command that a user would not type."""
        _, said = run_quietly(self.scratch, words, env=self.platform.env)
        return said

    def watch(self, *words: str) -> tuple[int, dict[str, Any] | None]:
        """Run a command for the user to watch; as :func:`run_shown`."""
        self.tell(f"$ osmosis {shlex.join(words)}")
        return run_shown(self.scratch, words, display=self.display, env=self.platform.env, tell=self.tell)

    def connect(self) -> None:
        """Push the workspace, and let the platform know it and its secret."""
        self.tell(f"$ cd {self.scratch.workspace}\n$ git push -u origin main")
        self.scratch.push()
        self.step("platform", "connect", f"../{self.scratch.origin.name}")
        self.step("secret", "set", _SECRET, "--env", _SECRET)

    def upload(self, dataset: str) -> None:
        """Upload a dataset and wait until it can be used."""
        self.step("dataset", "upload", dataset, "--wait", "--yes")

    def evaluate(self, config: str) -> DemoOutcome:
        """Submit an evaluation, show it, and fetch what it left behind.

        Raises:
            CommandFailed: it ended without results.
        """
        status, run = self.watch("eval", "submit", config, "--watch", "--yes")
        name = self.newest("eval", status)
        self.step("eval", "download", name)
        return read_outcome(self.scratch, status, self.scratch.workspace / ".osmosis" / "evals" / name, run)

    def newest(self, kind: str, status: int) -> str:
        """Return the name of the run that was submitted last.

        Args:
            kind: ``eval`` or ``train``.
            status: the exit status of its submit.

        Raises:
            CommandFailed: there is none.
        """
        items = self.ask(kind, "list")["items"]
        if not items:
            raise CommandFailed(
                f"`osmosis {kind} submit` ended with status {status}, and the platform has no run.",
                details={"status": status, "directory": str(self.scratch.root)},
                hint=f"see {self.scratch.platform_log}",
            )
        name: str = items[0]["name"]
        return name


@contextmanager
def running_platform(scratch: Scratch, *, keep: bool, tell: Tell) -> Iterator[Platform]:
    """Yield a platform in a process of its own.

    Args:
        scratch: where its data go.
        keep: whether it may outlive this process.
        tell: takes the commands as a user would type them.

    Raises:
        CommandFailed: it did not start.
    """
    environment = scratch.environment(os.environ)
    with ExitStack() as stack:
        log = stack.enter_context(scratch.platform_log.open("wb"))
        lifeline: tuple[int, ...] = ()
        if not keep:
            environment, read_end = stack.enter_context(tied_to_this_process(environment))
            lifeline = (read_end,)
        tell(f"$ osmosis {shlex.join(_START)} &")
        process = subprocess.Popen(
            [*PROGRAM, "--json", *_START],
            cwd=scratch.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=lifeline,
            start_new_session=True,
        )
        platform: Platform | None = None
        try:
            platform = _ready(scratch, process)
            yield platform
        finally:
            if platform is None or not platform.keep:
                _stop(scratch, process, platform, tell)


def _ready(scratch: Scratch, process: subprocess.Popen[bytes]) -> Platform:
    """Wait for the line that says that the platform is ready."""
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
    if not line:
        failure = failure_of(_START[:2], scratch.platform_log.read_bytes(), process.wait(), scratch)
        failure.hint = f"{failure.hint or ''}\nwithout a platform: osmosis demo --local".strip()
        raise failure
    url: str = json.loads(line)["resource"]["url"]
    own = {**scratch.own_variables(), "OSMOSIS_PLATFORM_URL": url}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in own.items())
    write_atomic(scratch.root / ENV_FILE, exports)
    return Platform(url, {**scratch.environment(os.environ), "OSMOSIS_PLATFORM_URL": url, _SECRET: "demo"})


def _stop(
    scratch: Scratch,
    process: subprocess.Popen[bytes],
    platform: Platform | None,
    tell: Tell,
) -> None:
    try:
        if platform is not None and process.poll() is None:
            tell("$ osmosis platform stop")
            with contextlib.suppress(OsmosisError):
                run_quietly(scratch, ("platform", "stop"), env=platform.env)
        process.terminate()
        process.wait(_STOP_TIMEOUT_S)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
