from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from osmosis_ai.supervision import ChildProcess, watch_parent
from osmosis_ai.supervision.child_process import LIFELINE_ENV
from tests.processes import alive, gone

pytestmark = pytest.mark.integration

# Ends only by force; says so on its output once it is deaf to a polite end.
STUBBORN = "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); threading.Event().wait()"
POLITE = "import threading; print('ready', flush=True); threading.Event().wait()"


def start(source: str, tmp_path: Path) -> ChildProcess:
    return ChildProcess(
        [sys.executable, "-c", textwrap.dedent(source)],
        env=dict(os.environ),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )


def first_line(child: ChildProcess) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


async def test_a_child_ends_by_itself_and_tells_its_status(tmp_path: Path) -> None:
    child = start("raise SystemExit(7)", tmp_path)
    assert await child.wait() == 7
    assert child.poll() == 7
    assert await child.stop() == 7


async def test_a_child_gets_exactly_the_environment_and_directory_it_is_given(tmp_path: Path) -> None:
    child = ChildProcess(
        [sys.executable, "-c", "import os; print(sorted(os.environ), os.getcwd())"],
        env={"ONE": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    line = first_line(child)
    await child.stop()
    assert "'ONE'" in line and "'HOME'" not in line and str(tmp_path) in line


async def test_stopping_asks_first(tmp_path: Path) -> None:
    child = start(POLITE, tmp_path)
    assert first_line(child) == "ready"
    assert await child.stop(grace_s=600) == -signal.SIGTERM


async def test_a_child_that_does_not_listen_is_ended_by_force(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    assert first_line(child) == "deaf"
    assert await child.stop(grace_s=0.05) == -signal.SIGKILL


async def test_a_cancelled_stop_ends_the_child_at_once(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    assert first_line(child) == "deaf"
    stopping = asyncio.create_task(child.stop(grace_s=600))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL


def test_killing_waits_for_the_end(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    assert first_line(child) == "deaf"
    child.kill()
    assert child.poll() == -signal.SIGKILL


def test_a_child_that_ends_by_itself_is_waited_for_without_an_event_loop(tmp_path: Path) -> None:
    assert start("raise SystemExit(7)", tmp_path).finish(60) == 7
    slow, called_off = start(STUBBORN, tmp_path), threading.Event()
    assert slow.finish(0.05) is None
    assert slow.poll() == -signal.SIGKILL
    called_off.set()
    assert start(STUBBORN, tmp_path).finish(60, called_off) is None


async def test_what_the_child_started_is_stopped_with_it(tmp_path: Path) -> None:
    child = start(
        f"""
        import subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
        grandchild.stdout.readline()
        print(grandchild.pid, flush=True)
        grandchild.wait()
        """,
        tmp_path,
    )
    grandchild = int(first_line(child))
    await child.stop()
    await asyncio.wait_for(gone(grandchild), 60)


def parent_program(child_source: str) -> str:
    """A parent that starts a supervised child and relays the one line the child prints."""
    return textwrap.dedent(
        f"""
        import os, subprocess, sys, threading
        from pathlib import Path
        from osmosis_ai.supervision import ChildProcess

        child = ChildProcess([sys.executable, "-c", {textwrap.dedent(child_source)!r}], env=dict(os.environ),
                             cwd=Path.cwd(), stdout=subprocess.PIPE)
        print(child.pid, child.stdout.readline().decode(), end="", flush=True)
        threading.Event().wait()
        """
    )


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_child_ends_however_its_parent_ends(number: signal.Signals) -> None:
    source = "from osmosis_ai.supervision import watch_parent\nwatch_parent()\n" + POLITE
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once and is read one line from
        [sys.executable, "-c", parent_program(source)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[0])
        assert alive(child)
        parent.send_signal(number)
    await asyncio.wait_for(gone(child), 60)


@pytest.mark.e2e
async def test_a_killed_parent_takes_a_deaf_child_and_its_deaf_grandchild_along() -> None:
    source = f"""
        import signal, subprocess, sys, threading
        from osmosis_ai.supervision import child_process
        child_process.TERMINATION_GRACE_S = 0.2
        child_process.watch_parent()
        grandchild = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
        grandchild.stdout.readline()
        print(grandchild.pid, flush=True)
        threading.Event().wait()
    """
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once and is read one line from
        [sys.executable, "-c", parent_program(source)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child, grandchild = map(int, parent.stdout.readline().split())
        parent.kill()
    await asyncio.wait_for(gone(child), 60)
    await asyncio.wait_for(gone(grandchild), 60)


def test_without_a_lifeline_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIFELINE_ENV, raising=False)
    watch_parent()
    monkeypatch.setenv(LIFELINE_ENV, "0")
    monkeypatch.setattr(os, "getpgid", lambda pid: -1)
    watch_parent()
    assert LIFELINE_ENV not in os.environ


def test_a_program_that_does_not_exist_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/no/such/program"], env={}, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert len(os.listdir("/dev/fd")) == before


def test_two_that_end_a_child_at_once_let_go_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("pass", tmp_path)
    lifeline, closed, close = child._lifeline, [], os.close

    def close_while_another_ends_it(descriptor: int) -> None:
        if descriptor == lifeline:
            closed.append(descriptor)
            if len(closed) > 1:
                return
            other = threading.Thread(target=child.kill)
            other.start()
            other.join()
        close(descriptor)

    monkeypatch.setattr(os, "close", close_while_another_ends_it)
    child.kill()
    assert closed == [lifeline]


async def test_a_log_is_appended_to_and_its_owners_alone(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    for word in ("one", "two"):
        command = [sys.executable, "-c", f"import sys; print({word!r}, file=sys.stderr)"]
        await ChildProcess(command, env=dict(os.environ), cwd=tmp_path, stdout=log).wait()
    assert log.read_text() == "one\ntwo\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_what_a_background_process_starts_stays_in_the_background(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from osmosis_ai.supervision import ChildProcess, lower_priority\n"
        "lower_priority()\n"
        "tell = 'import os; print(os.getpriority(os.PRIO_PROCESS, 0))'\n"
        "child = ChildProcess([sys.executable, '-c', tell], env=dict(os.environ), cwd=Path('.'), stdout=subprocess.PIPE)\n"
        "print(child.stdout.read().decode().strip())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == str(max(10, os.getpriority(os.PRIO_PROCESS, 0))), result.stderr
