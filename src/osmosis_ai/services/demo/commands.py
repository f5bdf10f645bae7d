"""The demo's commands: processes of the real command line, which end with the demo however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.services.demo.scratch import Scratch
from osmosis_ai.supervision import LIFELINE_ENV

Display = Literal["rich", "plain", "json"]
Tell = Callable[[str], None]
_NARRATE_ENV = "_OSMOSIS_NARRATE"
_END_TIMEOUT_S = 5.0
PROGRAM = (sys.executable, "-m", "osmosis_ai")


class CommandFailed(OsmosisError):
    """A command of the demo ended without a result."""

    default_code = "INTERNAL"


def run_shown(
    scratch: Scratch, words: Sequence[str], *, display: Display, env: Mapping[str, str], tell: Tell
) -> tuple[int, dict[str, Any] | None]:
    """Run a command for the user to watch; return its exit status and, in ``json``, its result's resource.

    Args:
        scratch: whose workspace it runs in.
        words: the command without the program's name.
        display: in ``rich`` and ``plain`` its output goes to this process's own streams.
        env: its environment.
        tell: in ``json``, takes how far it is, a line at a time.

    Raises:
        CommandFailed: in ``json``, it ended without a result.
        KeyboardInterrupt: the user interrupted it.
    """
    if display != "json":
        mode = () if display == "rich" else ("--plain",)
        status, _, _ = _run(scratch, (*mode, *words), env, captured=False)
        return status, None
    return run_quietly(scratch, words, env={**env, _NARRATE_ENV: "1"}, may_fail=True, tell=tell)


def run_quietly(
    scratch: Scratch,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    may_fail: bool = False,
    tell: Tell | None = None,
) -> tuple[int, dict[str, Any]]:
    """Run a command unseen; return its exit status and what it has to say to programs.

    Args:
        scratch: whose workspace it runs in.
        words: the command without the program's name.
        env: its environment.
        may_fail: whether a result counts whatever the exit status.
        tell: takes the lines that it writes to stderr for people.

    Raises:
        CommandFailed: it ended without a result or, unless it ``may_fail``, with another status than 0.
        KeyboardInterrupt: the user interrupted it.
    """
    status, said, complained = _run(scratch, ("--json", *words), env, captured=True, tell=tell)
    if not said or (status != 0 and not may_fail):
        raise failure_of(words, complained, status, scratch)
    result: dict[str, Any] = json.loads(said)
    return status, result.get("resource", result)


def failure_of(words: Sequence[str], complained: bytes, status: int, scratch: Scratch) -> CommandFailed:
    """Return the error that a command wrote to stderr as JSON, as the demo's own."""
    said, hint = f"it ended with status {status}", None
    for line in complained.splitlines():
        try:
            error = json.loads(line)["error"]
            said, hint = error["message"], error.get("hint")
        except (ValueError, KeyError, TypeError):
            continue
    return CommandFailed(
        f"`osmosis {' '.join(words)}` failed: {said}",
        details={"status": status, "directory": str(scratch.root)},
        hint=hint,
    )


@contextmanager
def tied_to_this_process(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield an environment and a descriptor to pass on: the child ends when this process is gone."""
    read_end, write_end = os.pipe()
    try:
        yield {**environment, LIFELINE_ENV: str(read_end)}, read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def _run(
    scratch: Scratch,
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    captured: bool,
    tell: Tell | None = None,
) -> tuple[int, bytes, bytes]:
    stream = subprocess.PIPE if captured else None
    with tied_to_this_process(env) as (environment, lifeline):
        process = subprocess.Popen(
            [*PROGRAM, *words],
            cwd=scratch.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        try:
            with _interrupts_reach(process):
                said, complained = process.communicate() if tell is None else _overheard(process, tell)
        except BaseException:
            _end(process)
            raise
    if process.returncode == 130:
        raise KeyboardInterrupt
    return process.returncode, said or b"", complained or b""


def _overheard(process: subprocess.Popen[bytes], tell: Tell) -> tuple[bytes, bytes]:
    """Read what a process says and complains, telling its lines for people as they come."""
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[bytes] = []
    reader = threading.Thread(target=lambda: said.append(process.stdout.read()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    complained = []
    with process.stdout, process.stderr:
        for line in process.stderr:
            complained.append(line)
            # Errors and warnings are objects: the former are told with the command's end.
            if not line.startswith(b"{"):
                tell(line.decode("utf-8", "replace").rstrip())
        reader.join()
    process.wait()
    return b"".join(said), b"".join(complained)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group, by force when it does not in time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
            return


@contextmanager
def _interrupts_reach(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass Ctrl-C on: the command winds down by itself, and this process waits for it."""

    interrupted = False

    def pass_on(number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        if process.poll() is None:
            process.send_signal(number)

    before = signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
