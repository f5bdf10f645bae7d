"""The demo's user at a terminal: commands of the real program, typed one after the other.

Every process ends with the demo however it ends; only a platform that is to be kept, when all went well, goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.services.demo.scratch import ENV_FILE, Scratch
from osmosis_ai.supervision import ChildProcess

Display = Literal["rich", "plain", "json"]
Tell = Callable[[str], None]
SECRET = "DEMO_API_KEY"
_NARRATE_ENV = "_OSMOSIS_NARRATE"
_PROGRAM = (sys.executable, "-m", "osmosis_ai")
_START = ("platform", "start", "--port", "0", "--login")
_STOP_TIMEOUT_S = 30.0


class CommandFailed(OsmosisError):
    """A command of the demo ended without a result."""

    default_code = "INTERNAL"


@dataclass(frozen=True)
class Session:
    """Types commands in the scratch workspace, and tells each as it is typed.

    Attributes:
        display: the mode of the output of commands that are watched.
        tell: takes the commands, and in ``json`` what a watched one says of how far it is, a line at a time.
        env: the commands' environment.
        platform_url: the platform they talk to.

    Every command raises :class:`CommandFailed` when it ends without a result, and ``KeyboardInterrupt`` when the user
    interrupted it.
    """

    scratch: Scratch
    display: Display
    tell: Tell
    env: Mapping[str, str] = field(repr=False)
    platform_url: str | None = None

    def type(self, *words: str) -> dict[str, Any]:
        """Run a command unseen, which has to succeed, and return what it has to say to programs."""
        self.tell(f"$ osmosis {shlex.join(words)}")
        return self.ask(*words)

    def ask(self, *words: str) -> dict[str, Any]:
        """Run a command that a user would not type."""
        status, said, complained = self._run(("--json", *words), self.env)
        if not said or status != 0:
            raise self.failure_of(words, complained, status)
        return _resource(said)

    def watch(self, *words: str, untold: Sequence[str] = ()) -> tuple[int, dict[str, Any] | None]:
        """Run a command for the user to watch; return its exit status and, in ``json``, its result's resource.

        Args:
            words: the command without the program's name.
            untold: further words that a user would not need to type.
        """
        self.tell(f"$ osmosis {shlex.join(words)}")
        if self.display != "json":
            mode = () if self.display == "rich" else ("--plain",)
            return self._run((*mode, *words, *untold), self.env, shown=True)[0], None
        narrating = {**self.env, _NARRATE_ENV: "1"}
        status, said, complained = self._run(("--json", *words, *untold), narrating, tell=self.tell)
        if not said:
            raise self.failure_of((*words, *untold), complained, status)
        return status, _resource(said)

    def failure_of(self, words: Sequence[str], complained: bytes, status: int) -> CommandFailed:
        """Return the error that a command wrote to stderr as JSON, as the demo's own."""
        said, hint = f"it ended with status {status}", None
        for line in complained.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                error = json.loads(line)["error"]
                said, hint = error["message"], error.get("hint")
        return CommandFailed(
            f"`osmosis {' '.join(words)}` failed: {said}",
            details={"status": status, "directory": str(self.scratch.root)},
            hint=hint,
        )

    def _run(
        self, words: Sequence[str], env: Mapping[str, str], *, shown: bool = False, tell: Tell | None = None
    ) -> tuple[int, bytes, bytes]:
        """Run a command; return its exit status and, unless it is ``shown``, what it said and complained."""
        complained = []
        with tempfile.TemporaryFile() as said:
            process = ChildProcess(
                [*_PROGRAM, *words],
                cwd=self.scratch.workspace,
                env=env,
                stdout=None if shown else said,
                stderr=None if shown else subprocess.PIPE,
            )
            try:
                with _interrupts_reach(process):
                    for line in process.stderr or ():
                        complained.append(line)
                        # Errors and warnings are objects: the former are told with the command's end.
                        if tell is not None and not line.startswith(b"{"):
                            tell(line.decode("utf-8", "replace").rstrip())
                    status = process.finish()
            except BaseException:
                process.kill()
                raise
            finally:
                if process.stderr is not None:
                    process.stderr.close()
            if status == 130 or status is None:
                raise KeyboardInterrupt
            said.seek(0)
            return status, said.read(), b"".join(complained)


@contextmanager
def platform_session(scratch: Scratch, *, display: Display, keep: bool, tell: Tell) -> Iterator[Session]:
    """Yield a session with a platform in a process of its own.

    Args:
        scratch: where its data go.
        display: the mode of the output of commands that are watched.
        keep: whether the platform outlives this process when all goes well.
        tell: takes the commands as a user would type them.

    Raises:
        CommandFailed: it did not start.
    """
    session = Session(scratch, display, tell, scratch.environment(os.environ))
    going_on = False
    with scratch.platform_log.open("wb") as log:
        tell(f"$ osmosis {shlex.join(_START)} &")
        process = ChildProcess(
            [*_PROGRAM, "--json", *_START],
            cwd=scratch.root,
            env=session.env,
            stdout=subprocess.PIPE,
            stderr=log,
            outlives=keep,
        )
        try:
            session = _connected(session, process)
            yield session
            going_on = keep
        finally:
            if not going_on:
                _stop(session, process)


def _connected(session: Session, process: ChildProcess) -> Session:
    """Wait for the line that says that the platform is ready, and return a session with it."""
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
    scratch = session.scratch
    if not line:
        failure = session.failure_of(_START[:2], scratch.platform_log.read_bytes(), process.finish() or 0)
        failure.hint = f"{failure.hint or ''}\nwithout a platform: osmosis demo --local".strip()
        raise failure
    url: str = _resource(line)["url"]
    own = {**scratch.own_variables(), "OSMOSIS_PLATFORM_URL": url}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in own.items())
    write_atomic(scratch.root / ENV_FILE, exports)
    env = {**session.env, "OSMOSIS_PLATFORM_URL": url, SECRET: "demo"}
    return replace(session, env=env, platform_url=url)


def _stop(session: Session, process: ChildProcess) -> None:
    try:
        if session.platform_url is not None and process.poll() is None:
            with contextlib.suppress(OsmosisError):
                session.type("platform", "stop")
        asyncio.run(process.stop(grace_s=_STOP_TIMEOUT_S))
    except BaseException:
        process.kill()
        raise


def _resource(said: bytes) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(said)
    resource: dict[str, Any] = result.get("resource", result)
    return resource


@contextmanager
def _interrupts_reach(process: ChildProcess) -> Iterator[None]:
    """Pass Ctrl-C on: the command winds down by itself, and this process waits for it."""
    interrupted = False

    def pass_on(number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        if process.poll() is None:
            os.kill(process.pid, number)

    before = signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
