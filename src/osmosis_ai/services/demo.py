"""The demo: runs the real commands one after another in a scratch directory.

The directory contains configuration, credentials, cache and platform data. The demo uses neither a keyring
nor the user's Git configuration. All its processes end with it, except a platform that the user wants to
keep.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.conversation import Conversation, read_conversation
from osmosis_ai.files import expanded, write_atomic
from osmosis_ai.process_environment import PACKAGE_PREFIXES, chosen, python_environment
from osmosis_ai.processes.child_process import ChildProcess
from osmosis_ai.ui import numbers
from osmosis_ai.workspace.git import run_git
from osmosis_ai.workspace.rollout_templates import copy_sample_workspace

CONFIG = "configs/eval/multiply.toml"
TRAINING_CONFIG = "configs/training/multiply.toml"
ENV_FILE = "env.sh"
_TRAINED_CONFIG = "configs/eval/multiply_trained.toml"
# The two datasets have no question in common, so no row is used for both training and evaluation.
_DATASET, _TRAINING_DATASET = "data/multiply.jsonl", "data/multiply_train.jsonl"
_SECRET = "DEMO_API_KEY"
_PROGRAM = (sys.executable, "-m", "osmosis_ai")
_START = ("platform", "start", "--port", "0", "--login")
_SHOWN_AS = ("OSMOSIS_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES")
_SEED_OF_THE_CONFIG = 0


@dataclass(frozen=True)
class Scratch:
    """The demo's directory: a workspace next to isolated user settings."""

    root: Path
    temporary: bool = False

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def origin(self) -> Path:
        return self.root / "origin.git"

    def own_variables(self) -> dict[str, str]:
        """Return the variables that make commands use this directory instead of the user's."""
        return {
            "OSMOSIS_CONFIG_DIR": str(self.root / "config"),
            "OSMOSIS_CACHE_DIR": str(self.root / "cache"),
            "OSMOSIS_HOME": str(self.root / "data"),
            "OSMOSIS_ENV_FILE": str(self.root / "empty.env"),
            "OSMOSIS_TOKEN_STORE": "file",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the demo's commands, without the user's Osmosis and Git settings."""
        kept = chosen(inherited, _SHOWN_AS, PACKAGE_PREFIXES)
        return {**python_environment(inherited), **kept, **self.own_variables()}

    def push(self) -> None:
        """Create an origin for the workspace and push to it, in place of a hosted repository."""
        for arguments in (
            ("init", "--quiet", "--bare", "--initial-branch=main", str(self.origin)),
            ("remote", "add", "origin", str(self.origin)),
            ("push", "--quiet", "--set-upstream", "origin", "main"),
        ):
            done = run_git(arguments, cwd=self.workspace, env=self.own_variables())
            if done.returncode != 0:
                raise OsmosisError(f"`git {arguments[0]}` failed: {done.stderr.strip()}", code="INTERNAL")

    def discard(self) -> None:
        """Remove a temporary directory, even if an ending process still writes to it."""
        for _ in range(50 if self.temporary else 0):
            shutil.rmtree(self.root, ignore_errors=True)
            if not self.root.exists():
                return
            time.sleep(0.2)


def prepare_scratch(directory: Path | None) -> Scratch:
    """Create the demo's directory, a temporary one if None, with the sample workspace."""
    root = expanded(directory).absolute() if directory else Path(tempfile.mkdtemp(prefix="osmosis-demo-"))
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise OsmosisError(f"{root} is not an empty directory.", hint="name a new directory: --keep-dir DIR")
    root.mkdir(parents=True, exist_ok=True)
    scratch = Scratch(root.resolve(), temporary=directory is None)
    try:
        for name in ("config", "cache", "data"):
            (scratch.root / name).mkdir(mode=0o700)
        (scratch.root / "empty.env").touch()
        copy_sample_workspace(scratch.workspace)
    except BaseException:
        scratch.discard()
        raise
    return scratch


@dataclass(frozen=True)
class DemoSample:
    """A scored attempt with its conversation."""

    row_index: int
    run_index: int
    reward: float
    conversation: Conversation


@dataclass(frozen=True)
class DemoEvaluation:
    """The result of an evaluation; ``run`` is the JSON output of its command."""

    name: str
    results: Path
    metrics: Mapping[str, Any]
    complete: bool
    sample: DemoSample | None
    run: Mapping[str, Any]


@dataclass(frozen=True)
class TrainedRun:
    """A training run and its last adapter, ``checkpoint``; ``model`` is the served adapter's name."""

    name: str
    seed: int
    rewards: list[float]
    duration_s: float | None
    checkpoint: str
    model: str


@dataclass(frozen=True)
class DemoOutcome:
    """The last evaluation, and the platform if it is still running.

    After a training, also the evaluation before it and the differences.
    """

    evaluation: DemoEvaluation
    platform_url: str | None = None
    base: DemoEvaluation | None = None
    training: TrainedRun | None = None
    difference: Mapping[str, Any] | None = None


Show = Callable[[str], AbstractContextManager[Callable[[str], None]]]
"""Shows a command while it runs; the function that it yields adds the result to the line."""


def run_demo(scratch: Scratch, *, show: Show, local: bool, keep: bool, seed: int | None) -> DemoOutcome:
    """Evaluate the sample agent. With ``seed``, also train its model and evaluate it again.

    Args:
        local: evaluate without a platform.
        keep: leave the platform running.
    """
    terminal = _Terminal(scratch, show)
    if local:
        return DemoOutcome(_evaluate(terminal, "eval", "run", CONFIG, "--yes", "--name", "demo"))
    with _platform(terminal, keep=keep) as url:
        with show(f"git push -u origin main && osmosis platform connect ../{scratch.origin.name}"):
            scratch.push()
            terminal.ask("platform", "connect", f"../{scratch.origin.name}")
        terminal.run("secret", "set", _SECRET, "--env", _SECRET)
        terminal.upload(_DATASET)
        base = _evaluate(terminal, "eval", "submit", CONFIG, "--watch", "--yes")
        kept = url if keep else None
        if seed is None:
            return DemoOutcome(base, kept)
        terminal.upload(_TRAINING_DATASET)
        training = _train(terminal, seed)
        terminal.run("model", "deploy", training.checkpoint)
        config = _edited(scratch, CONFIG, "model_path", training.model, _TRAINED_CONFIG)
        trained = _evaluate(terminal, "eval", "submit", config, "--watch", "--yes")
        compared = terminal.run("eval", "compare", base.name, trained.name)
        metrics = compared["candidates"][0]["metrics"]
        difference = {
            it["metric"]: it["difference"] for it in metrics if it["metric"] in ("pass_rate", "reward")
        }
        return DemoOutcome(trained, kept, base, training, difference)


def _evaluate(terminal: _Terminal, *words: str) -> DemoEvaluation:
    """Run an evaluation command; results of a platform's run are downloaded."""
    with terminal.show(f"osmosis {shlex.join(words)}") as tell:
        began = time.monotonic()
        status, run = terminal.watch(words)
        if headline := run.get("headline"):
            took = numbers.duration(time.monotonic() - began)
            tell(f"{headline['scored']}/{headline['planned']} attempts, {took}")
    name = run["name"] if words[1] == "submit" else words[-1]
    if words[1] == "submit":
        terminal.run("eval", "download", name)
    results = terminal.scratch.workspace / ".osmosis" / "evals" / name
    if not (results / "metrics.json").exists():
        raise terminal.failure(f"the evaluation ended with status {status} before it had results", status)
    metrics = json.loads((results / "metrics.json").read_bytes())
    counts = metrics["estimates"]["counts"]
    complete = status == 0 and 0 < counts["scored"] == counts["planned"]
    return DemoEvaluation(name, results, metrics, complete, _best_sample(results), run)


def _best_sample(results: Path) -> DemoSample | None:
    """Return the first of the attempts with the highest reward."""
    with (results / "summary.jsonl").open(encoding="utf-8") as lines:
        scored = [line for line in map(json.loads, lines) if line.get("reward") is not None]
    if not scored:
        return None
    best = min(scored, key=lambda line: (-line["reward"], line["row_index"], line["run_index"]))
    row, run = best["row_index"], best["run_index"]
    path = results / "trajectories" / f"row_{row}_run_{run}.json"
    conversation = read_conversation(path.read_bytes())
    return DemoSample(row, run, best["reward"], conversation)


def _train(terminal: _Terminal, seed: int) -> TrainedRun:
    config = TRAINING_CONFIG
    if seed != _SEED_OF_THE_CONFIG:
        config = _edited(
            terminal.scratch, config, "seed", seed, config.replace(".toml", f"_seed_{seed}.toml")
        )
    words = ("train", "submit", config, "--watch", "--yes")
    with terminal.show(f"osmosis {shlex.join(words)}") as tell:
        status, submitted = terminal.watch(words)
        name = submitted["name"]
        found = terminal.ask("train", "info", name)["data"]
        run, checkpoints = found["training_run"], found["checkpoints"]
        if run["status"] != "finished" or not checkpoints:
            reason = run.get("error") or "it saved no checkpoint"
            raise terminal.failure(f"training run {name} ended as {run['status']}: {reason}", status)
        curves = {series["key"]: series["data"] for series in found["metrics"]["metrics"]}
        rewards = [point["value"] for point in curves.get("training_reward", ())]
        tell(f"{len(rewards)} steps")
    checkpoint = checkpoints[-1]["checkpoint_name"]
    duration_ms = found["metrics"]["training_run"].get("duration_ms")
    return TrainedRun(
        name=name,
        seed=seed,
        rewards=rewards,
        duration_s=None if duration_ms is None else duration_ms / 1000,
        checkpoint=checkpoint,
        model=terminal.ask("model", "info", checkpoint)["data"]["lora_model"]["inference_model"],
    )


def _edited(scratch: Scratch, config: str, key: str, value: str | int, name: str) -> str:
    """Copy ``config`` to ``name`` with another value of ``key``, and return ``name``."""
    text = (scratch.workspace / config).read_text(encoding="utf-8")
    text = re.sub(rf"^{key} = .*$", f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)
    write_atomic(scratch.workspace / name, text, mode=0o644)
    return name


class _Terminal:
    """Runs commands in the workspace; raises an OsmosisError when one fails."""

    def __init__(self, scratch: Scratch, show: Show) -> None:
        self.scratch, self.show = scratch, show
        self.env = scratch.environment(os.environ)

    def run(self, *words: str) -> dict[str, Any]:
        """Show a command while it runs, and return its JSON output."""
        with self.show(f"osmosis {shlex.join(words)}"):
            return self.ask(*words)

    def upload(self, dataset: str) -> None:
        words = ("dataset", "upload", dataset, "--wait", "--yes")
        with self.show(f"osmosis {shlex.join(words)}") as tell:
            tell(f"{self.ask(*words)['row_count']} rows")

    def ask(self, *words: str) -> dict[str, Any]:
        """Run a command without showing it, and return its JSON output."""
        return self.resource(words, *self._run(words))

    def watch(self, words: Sequence[str]) -> tuple[int, dict[str, Any]]:
        """Run a command that may end with a failed run; return its exit status and its JSON output."""
        status, out, err = self._run(words)
        return status, self.resource(words, 0 if out else status, out, err)

    def resource(self, words: Sequence[str], status: int, out: bytes, err: bytes) -> dict[str, Any]:
        """Return the JSON output of a command, or raise its JSON error."""
        if status == 0 and out:
            result: dict[str, Any] = json.loads(out)
            resource: dict[str, Any] = result.get("resource", result)
            return resource
        message, hint = f"it ended with status {status}", None
        for line in err.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                error = json.loads(line)["error"]
                message, hint = error["message"], error.get("hint")
        raise self.failure(f"`osmosis {shlex.join(words)}` failed: {message}", status, hint)

    def failure(self, message: str, status: int, hint: str | None = None) -> OsmosisError:
        root = self.scratch.root
        details = {"status": status, "directory": str(root)}
        return OsmosisError(
            message, code="INTERNAL", details=details, hint=hint or f"its files are in {root}"
        )

    def _run(self, words: Sequence[str]) -> tuple[int, bytes, bytes]:
        """Run a command with JSON output; return its exit status, stdout and stderr."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = ChildProcess(
                [*_PROGRAM, "--json", *words],
                cwd=self.scratch.workspace,
                env=self.env,
                stdout=out,
                stderr=err,
            )
            with _interrupts_reach(process):
                status = process.finish()
            if status is None or status == 130:
                raise KeyboardInterrupt
            out.seek(0)
            err.seek(0)
            return status, out.read(), err.read()


@contextmanager
def _interrupts_reach(process: ChildProcess) -> Iterator[None]:
    """Forward Ctrl-C to a command, wait for it to end, and raise it afterwards."""
    interrupts = []

    def pass_on(number: int, _frame: object) -> None:
        interrupts.append(number)
        if process.poll() is None:
            os.kill(process.pid, number)

    before = signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def _platform(terminal: _Terminal, *, keep: bool) -> Iterator[str]:
    """Start a platform and connect the terminal to it; stop it unless it is kept and the demo succeeded."""
    scratch, stays = terminal.scratch, False
    log = scratch.root / "platform.log"
    with log.open("wb") as stderr:
        process = ChildProcess(
            [*_PROGRAM, "--json", *_START],
            cwd=scratch.root,
            env=terminal.env,
            stdout=subprocess.PIPE,
            stderr=stderr,
            outlives=keep,
        )
    url = ""
    try:
        with terminal.show(f"osmosis {shlex.join(_START)} &"):
            assert process.stdout is not None
            with process.stdout:
                ready = process.stdout.readline()
            try:
                status = 0 if ready else process.finish() or 1
                url = terminal.resource(_START[:2], status, ready, log.read_bytes())["url"]
            except OsmosisError as error:
                error.hint = f"{error.hint}\nwithout a platform: osmosis demo --local"
                raise
        own = {**scratch.own_variables(), "OSMOSIS_PLATFORM_URL": url}
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in own.items())
        write_atomic(scratch.root / ENV_FILE, exports)
        terminal.env |= {"OSMOSIS_PLATFORM_URL": url, _SECRET: "demo"}
        yield url
        stays = keep
    finally:
        try:
            if url and not stays:
                with suppress(OsmosisError):
                    terminal.ask("platform", "stop")
        finally:
            if not stays:
                process.kill()
