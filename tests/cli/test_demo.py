"""`osmosis demo --train`: its result, and what it refuses before it begins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.e2e.turnstile import Turnstile

# Runs the demo. Its attempts wait for the turnstile on the given port.
DEMO_WITH_WAITS = """
import sys

root, port, *words = sys.argv[1:]
sys.path.insert(0, root)
from osmosis_ai.cli.main import main
from osmosis_ai.services import demo
from tests.e2e.turnstile import commit
from tests.e2e.turnstile import add_waits

copy = demo.copy_sample_workspace


def copy_with_waits(workspace):
    copy(workspace)
    add_waits(workspace, int(port))
    commit(workspace, {})


demo.copy_sample_workspace = copy_with_waits
sys.argv = ["osmosis", *words]
sys.exit(main())
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def turnstile() -> Iterator[Turnstile]:
    turnstile = Turnstile()
    yield turnstile
    turnstile.close()


def hold_what_is_ended(turnstile: Turnstile, options: tuple[str, ...], directory: Path) -> None:
    """Keep the training run from finishing if the demo has one, and otherwise the evaluation."""
    if "--train" in options:
        turnstile.may_pass = lambda: not any(directory.glob("*/data/runs/*/training"))
    else:
        turnstile.hold()


def start_demo(turnstile: Turnstile, *options: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEMO_WITH_WAITS, str(ROOT), str(turnstile.port), "demo", *options],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_held(demo: subprocess.Popen[str], turnstile: Turnstile) -> None:
    """Wait until attempts are held."""
    deadline = time.monotonic() + 300
    while turnstile.may_pass() or turnstile.asked == turnstile.passed:
        assert demo.poll() is None and time.monotonic() < deadline, "the run never started"
        time.sleep(0.05)


TRAINING, SUBMIT = ("--train",), ["osmosis", "eval", "submit"]


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "options, how",
    [
        ((), signal.SIGKILL),
        (("--local",), signal.SIGINT),
        pytest.param((), signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param(("--local",), signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param(TRAINING, signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param(TRAINING, signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_killed_demo_leaves_no_process(
    tmp_path: Path, turnstile: Turnstile, options: tuple[str, ...], how: signal.Signals
) -> None:
    hold_what_is_ended(turnstile, options, tmp_path)
    demo = start_demo(turnstile, "--plain", "--keep-dir", str(tmp_path / "d"), *options)
    wait_until_held(demo, turnstile)
    assert processes_with(str(tmp_path))
    demo.send_signal(how)
    if how == signal.SIGINT:
        turnstile.open()  # running attempts may finish
    demo.communicate(timeout=300)
    assert demo.returncode == (-how if how == signal.SIGKILL else 130)
    await_none_with(str(tmp_path))


@pytest.mark.e2e
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("options", [(), pytest.param(TRAINING, marks=pytest.mark.nightly)])
def test_terminated_demo_with_json(tmp_path: Path, turnstile: Turnstile, options: tuple[str, ...]) -> None:
    hold_what_is_ended(turnstile, options, tmp_path)
    demo = start_demo(turnstile, "--json", *options, TMPDIR=str(tmp_path))
    wait_until_held(demo, turnstile)
    assert list(tmp_path.glob("osmosis-demo-*"))
    demo.send_signal(signal.SIGTERM)
    out, err = demo.communicate(timeout=300)
    assert (demo.returncode, out) == (143, "")
    lines = [line.split() for line in err.splitlines()]
    submitted = next(line for line in lines if line[:4] == ["✗" if not options else "✓", *SUBMIT])
    assert not options or "400/400" in submitted
    assert list(tmp_path.glob("osmosis-demo-*")) == []
    await_none_with(str(tmp_path / "osmosis-demo-"))


def await_none_with(text: str) -> None:
    """Wait until what was killed is gone."""
    deadline = time.monotonic() + 300
    while left := processes_with(text):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def processes_with(text: str) -> list[int]:
    """Return the processes, but this one, in whose environment or arguments ``text`` occurs."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            seen = (directory / "environ").read_bytes() + (directory / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in seen:
            found.append(int(directory.name))
    return found


@pytest.mark.parametrize(
    "options", [("--train", "--local"), ("--seed", "1"), ("--train", "--keep", "--clean")]
)
def test_conflicting_options(cli: Cli, options: tuple[str, ...], tmp_path: Path) -> None:
    result = cli("demo", *options, "--keep-dir", str(tmp_path / "d"))
    assert (result.status, result.out) == (1, "")
    assert not (tmp_path / "d").exists()


@pytest.fixture
def terminals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The terminals of demos, which end at their first command."""
    seen: list[Any] = []

    def watch(terminal: Any, words: Sequence[str]) -> Any:
        seen.append(terminal)
        raise terminal.failure("the demo ends here", 1)

    monkeypatch.setattr("osmosis_ai.services.demo._Terminal.watch", watch)
    return seen


def test_demo_directory(cli: Cli, home: Path, tmp_path: Path, terminals: list[Any]) -> None:
    cli("demo", "--local", "--plain")
    root = terminals[0].scratch.root
    assert not root.is_relative_to(home) and list(home.iterdir()) == []
    cli("demo", "--local", "--plain", "--keep-dir", str(tmp_path / "new" / "place"))
    assert (tmp_path / "new/place/workspace/configs/eval/multiply.toml").is_file()
    (tmp_path / "mine.txt").write_text("precious")
    refused = cli("demo", "--local", "--plain", "--keep-dir", str(tmp_path))
    assert refused.status == 1 and "is not an empty directory" in refused.err
    assert len(terminals) == 2


def test_demo_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch, terminals: list[Any]) -> None:
    left_out = {
        "OSMOSIS_TOKEN": "t",
        "OSMOSIS_PLATFORM_URL": "https://a.example",
        "GIT_DIR": "/elsewhere/.git",
    }
    for name, value in {**left_out, "OSMOSIS_DEBUG": "1"}.items():
        monkeypatch.setenv(name, value)
    cli("demo", "--local", "--plain")
    environment = terminals[0].env
    assert (environment["PATH"], environment["OSMOSIS_DEBUG"]) == (os.environ["PATH"], "1")
    assert not left_out.keys() & environment
    assert environment["GIT_CONFIG_GLOBAL"] == "/dev/null"
    for name in ("OSMOSIS_CONFIG_DIR", "OSMOSIS_CACHE_DIR", "OSMOSIS_HOME", "OSMOSIS_ENV_FILE"):
        assert Path(environment[name]).is_relative_to(terminals[0].scratch.root)


@pytest.mark.e2e
def test_failing_platform_ends_the_demo(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from osmosis_ai.services import demo

    copy = demo.copy_sample_workspace

    def copy_and_damage(workspace: Path) -> None:
        copy(workspace)
        (tmp_path / "demo/data").mkdir(exist_ok=True)
        (tmp_path / "demo/data/platform.db").write_text("no database")

    monkeypatch.setattr(demo, "copy_sample_workspace", copy_and_damage)
    failed = cli("demo", "--plain", "--keep", "--keep-dir", str(tmp_path / "demo"))
    assert failed.status == 1 and "Error: `osmosis platform start` failed: " in failed.err
    assert "osmosis demo --local" in failed.err
    assert processes_with(str(tmp_path)) == []


def test_unscored_attempts_exit_with_1(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards: list[float | None] = [1.0, None]

    def evaluate(terminal: Any, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
        results = terminal.scratch.workspace / ".osmosis" / "evals" / "demo"
        (results / "trajectories").mkdir(parents=True)
        scored = len([reward for reward in rewards if reward is not None])
        counts = {"scored": scored, "planned": len(rewards)}
        (results / "metrics.json").write_text(json.dumps({"estimates": {"counts": counts}}))
        lines = [{"row_index": 0, "run_index": run, "reward": reward} for run, reward in enumerate(rewards)]
        (results / "summary.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        said = {"steps": [{"source": "agent", "message": "it is six"}]}
        (results / "trajectories" / "row_0_run_0.json").write_text(json.dumps(said))
        return 0, {"run_name": "demo"}

    monkeypatch.setattr("osmosis_ai.services.demo._Terminal.watch", evaluate)
    incomplete = cli("demo", "--local", "--plain", "--clean", "--keep-dir", str(tmp_path / "some"))
    assert incomplete.status == 1 and incomplete.out.startswith("1 of 2 attempts scored · 1 failed\n")
    assert "  assistant  it is six\n" in incomplete.out and (tmp_path / "some").is_dir()
    rewards[:] = [None, None]
    nothing = cli("demo", "--local", "--json", "--keep-dir", str(tmp_path / "none"))
    result = json.loads(nothing.out)
    assert (nothing.status, result["status"], result["resource"]["sample"]) == (1, "partial", None)
    rewards[:] = [1.0, 0.0]
    whole = cli("demo", "--local", "--plain", "--clean", "--keep-dir", str(tmp_path / "all"))
    assert whole.status == 0 and not (tmp_path / "all").exists()
