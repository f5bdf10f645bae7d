"""Programs that are not ours: whatever they do to stay, and whoever dies, nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_ai.supervision.program import KEPT_BYTES, FinishedProgram, run_program

pytestmark = pytest.mark.e2e

# Of this process alone: the tests of another checkout may run next to these.
SLEEPS = [f"sleep {10**9 + 10 * os.getpid() + number}" for number in range(4)]


def alive(words: str) -> bool:
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
        except OSError:
            continue
        if command.replace(b"\0", b" ").startswith(words.encode()):
            return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    async def look() -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await asyncio.wait_for(look(), 60)


async def run(
    place: Path, *command: str, grace_s: float = 1.0, max_output_bytes: int = 1 << 20
) -> FinishedProgram:
    (place / "prompt").write_text("hello")
    return await run_program(
        command,
        env=dict(os.environ),
        cwd=place,
        stdin=place / "prompt",
        max_output_bytes=max_output_bytes,
        grace_s=grace_s,
    )


async def test_its_status_and_the_end_of_what_it_wrote_are_told(tmp_path: Path) -> None:
    ended = await run(tmp_path, "sh", "-c", "cat; echo problem >&2; exit 7")
    assert ended == FinishedProgram(7, "hello", "problem\n", flooded=False)
    long = await run(tmp_path, "sh", "-c", f"yes | head -c {3 * KEPT_BYTES}; echo end; kill -9 $$")
    assert (long.status, len(long.stdout), long.stdout[-4:]) == (-signal.SIGKILL, KEPT_BYTES, "end\n")
    assert tmp_path.exists(), "it was not called off"


async def test_who_floods_is_ended(tmp_path: Path) -> None:
    flood = f"yes {os.getpid()}"
    ended = await run(tmp_path, "sh", "-c", flood, max_output_bytes=100_000)
    assert ended.flooded and len(ended.stdout) == KEPT_BYTES
    assert not alive(flood)


async def test_who_does_not_want_to_end_is_made_to(tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; (setsid {SLEEPS[0]} &); while :; do {SLEEPS[1]}; done"
    task = asyncio.create_task(run(tmp_path, "sh", "-c", stubborn, grace_s=0.05))
    await until(lambda: alive(SLEEPS[0]) and alive(SLEEPS[1]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(SLEEPS[0]) and not alive(SLEEPS[1])


async def test_nothing_is_left_when_its_starter_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    starter = f"""
import asyncio
from pathlib import Path
from tests.supervision.test_program import run
asyncio.run(run(Path({str(place)!r}), "sh", "-c", "(setsid {SLEEPS[2]} &) ; {SLEEPS[3]}", grace_s=0.05))
"""
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=Path(__file__).parents[2])  # noqa: ASYNC220
    try:
        await until(lambda: alive(SLEEPS[2]) and alive(SLEEPS[3]))
    finally:
        process.kill()
        process.wait()
    await until(lambda: not alive(SLEEPS[2]) and not alive(SLEEPS[3]) and not place.exists())
