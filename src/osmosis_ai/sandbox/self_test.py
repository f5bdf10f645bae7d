"""Test the sandbox with its real command line and two canaries: one in a directory, one in the parent's environment.

The sandbox counts as working only if neither canary is reachable, the environment is the given one, the source is
read-only and the writable directories are writable.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osmosis_ai.process_environment import program_environment
from osmosis_ai.sandbox.bubblewrap import Sandbox
from osmosis_ai.sandbox.capability import SandboxCapability, explain, find_bwrap, nothing_found

TIMEOUT_S = 60.0
_PREFIX = ".osmosis-canary-"
_OWN_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")  # as tempfile makes them
_LEFT_AFTER_S = 5 * TIMEOUT_S
"""As old as no trial gets that is still under way."""
_PASSED = "nothing was within reach"
# $1 the canary's file, $2 what is in it and in the parent's environment, $3 a writable directory.
# Bubblewrap is started with another than $2, which the program would see in its first process's environment.
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
# The shell between keeps the canary in its environment, as a platform keeps its keys, and hands it on to nobody.
_PARENT = 'canary=$CANARY; unset CANARY; export canary; env -u canary "$@"; exit $?'


def check_sandbox(data: Path | None = None) -> SandboxCapability:
    """Find bubblewrap and try it; blocking, for some hundredths of a second."""
    bwrap = find_bwrap()
    if bwrap is None:
        return nothing_found()
    _remove_left(data or Path(tempfile.gettempdir()))
    for overlays in (True, False):
        failure = _try(bwrap, overlays, data)
        if failure is None:
            return SandboxCapability(bwrap, overlays)
    return explain(bwrap, failure or "")


def _try(bwrap: Path, overlays: bool, data: Path | None) -> str | None:
    """Return what speaks against the sandbox, or None."""
    value = secrets.token_hex(16)
    with _canary_place(data) as place:
        source, writable, canary = place / "source", place / "writable", place / "canary"
        source.mkdir()
        writable.mkdir()
        (source / "kept").write_text("kept")
        canary.write_text(value)
        sandbox = SandboxCapability(bwrap, overlays).sandbox(source, hidden=(data,) if data else ())
        found = _run(sandbox, place, [str(canary), value, str(writable)], value)
        if found is None and (source / "kept").read_text() != "kept":
            return "what is written to the source stays there"
        return found


@contextmanager
def _canary_place(data: Path | None) -> Iterator[Path]:
    """Make a directory of one trial, and remove it whatever ends the trial: a Ctrl-C may come while it is being removed."""
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=data)).resolve()
    try:
        yield place
    finally:
        try:
            shutil.rmtree(place)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _remove_left(parent: Path) -> None:
    """Remove what trials left that were killed: old directories of our name that are this user's, and no links to others."""
    try:
        entries = [entry for entry in os.scandir(parent) if _OWN_NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
        if is_ours and time.time() - about.st_mtime > _LEFT_AFTER_S:
            shutil.rmtree(entry.path, ignore_errors=True)


def _run(sandbox: Sandbox, place: Path, arguments: list[str], value: str) -> str | None:
    probe = sandbox.command(
        ["/bin/sh", "-c", _PROBE, "probe", *arguments], cwd=sandbox.source, writable=[place / "writable"]
    )
    try:
        with probe.start({**program_environment(os.environ), "GIVEN": "given"}) as begun:
            ended = subprocess.run(
                ["/bin/sh", "-c", _PARENT, "parent", *begun.command],
                env={**begun.env, "CANARY": value, "LEFT": "left"},
                pass_fds=begun.fds,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    said = ended.stdout.decode(sys.getfilesystemencoding(), "replace")
    return None if _PASSED in said.splitlines() else said or f"exit status {ended.returncode}"
