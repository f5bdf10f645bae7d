"""The demo as a team works: a platform in its own process, and everything through its API.

What is started is stopped again, whatever happens, unless it is to be kept and all went well.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from osmosis_ai.errors import OsmosisError
from osmosis_ai.files import write_atomic
from osmosis_ai.services.demo.commands import (
    PROGRAM,
    CommandFailed,
    Display,
    failure_of,
    run_quietly,
    run_shown,
    tied_to_this_process,
)
from osmosis_ai.services.demo.outcome import DemoOutcome, read_outcome
from osmosis_ai.services.demo.scratch import CONFIG, Scratch

ENV_FILE = "env.sh"
_SECRET = "DEMO_API_KEY"
_START = ("platform", "start", "--port", "0", "--login")
_STOP_TIMEOUT_S = 30.0


@dataclass
class _Platform:
    """The demo's platform."""

    url: str
    env: Mapping[str, str] = field(repr=False)
    keep: bool = False


def run_platform_demo(
    scratch: Scratch, *, display: Display, keep: bool, tell: Callable[[str], None]
) -> DemoOutcome:
    """Evaluate the sample agent through a platform of its own and read what that left behind.

    Args:
        scratch: from :func:`~osmosis_ai.services.demo.scratch.prepare_scratch`.
        display: the mode of the evaluation's output.
        keep: whether the platform goes on running afterwards.
        tell: takes the commands as a user would type them, and what they said.

    Raises:
        OsmosisError: a command failed.
        KeyboardInterrupt: the user interrupted it.
    """
    with _running_platform(scratch, keep=keep, tell=tell) as platform:

        def step(*words: str) -> None:
            tell(f"$ osmosis {shlex.join(words)}")
            run_quietly(scratch, words, env=platform.env)

        tell(f"$ cd {scratch.workspace}\n$ git push -u origin main")
        scratch.push()
        step("platform", "connect", f"../{scratch.origin.name}")
        step("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        step("secret", "set", _SECRET, "--env", _SECRET)
        submit = ("eval", "submit", CONFIG, "--watch", "--yes")
        tell(f"$ osmosis {shlex.join(submit)}")
        status, run = run_shown(scratch, submit, display=display, env=platform.env)
        name = _submitted_run(scratch, platform, status)
        step("eval", "download", name)
        platform.keep = keep
        results = scratch.workspace / ".osmosis" / "evals" / name
        return read_outcome(scratch, status, results, run, platform_url=platform.url if keep else None)


def _submitted_run(scratch: Scratch, platform: _Platform, status: int) -> str:
    """Return the name of the only run there is."""
    _, listed = run_quietly(scratch, ("eval", "list"), env=platform.env)
    if not listed["items"]:
        raise CommandFailed(
            f"`osmosis eval submit` ended with status {status}, and the platform has no run.",
            details={"status": status, "directory": str(scratch.root)},
            hint=f"see {scratch.platform_log}",
        )
    name: str = listed["items"][0]["name"]
    return name


@contextmanager
def _running_platform(scratch: Scratch, *, keep: bool, tell: Callable[[str], None]) -> Iterator[_Platform]:
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
        platform: _Platform | None = None
        try:
            platform = _ready(scratch, process)
            yield platform
        finally:
            if platform is None or not platform.keep:
                _stop(scratch, process, platform, tell)


def _ready(scratch: Scratch, process: subprocess.Popen[bytes]) -> _Platform:
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
    return _Platform(url, {**scratch.environment(os.environ), "OSMOSIS_PLATFORM_URL": url, _SECRET: "demo"})


def _stop(
    scratch: Scratch,
    process: subprocess.Popen[bytes],
    platform: _Platform | None,
    tell: Callable[[str], None],
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
