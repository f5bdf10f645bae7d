"""The demo: the real command line evaluates the sample agent in a scratch workspace, as a user would.

Everything the evaluation reads or writes lies in one scratch directory: its own configuration, cache
and data, no credentials, no keyring and no Git configuration of the user's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.errors import OsmosisError
from osmosis_ai.supervision import LIFELINE_ENV
from osmosis_ai.workspace.samples import copy_sample_workspace

CONFIG = "configs/eval/multiply.toml"
RUN_NAME = "demo"
RUN_DIRECTORY = f".osmosis/evals/{RUN_NAME}"
_SAMPLES_READ = 40
# What a Git hook or an unusual shell exports would make Git look at another repository.
_KEPT_GIT_VARIABLES = ("GIT_EXEC_PATH", "GIT_SSL_CAINFO")

Display = Literal["rich", "plain", "json"]


@dataclass(frozen=True, slots=True)
class Scratch:
    """The demo's directory: a workspace, and beside it what would otherwise be the user's."""

    root: Path

    @property
    def workspace(self) -> Path:
        """The copy of the sample workspace."""
        return self.root / "workspace"

    @property
    def run_directory(self) -> Path:
        """Where the evaluation writes its results."""
        return self.workspace / RUN_DIRECTORY

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the evaluation's environment: nothing of the user's Osmosis or Git shows through."""
        kept = {
            name: value
            for name, value in inherited.items()
            if name == "OSMOSIS_DEBUG"
            or name in _KEPT_GIT_VARIABLES
            or not name.startswith(("OSMOSIS_", "_OSMOSIS_", "GIT_"))
        }
        return {
            **kept,
            "OSMOSIS_CONFIG_DIR": str(self.root / "config"),
            "OSMOSIS_CACHE_DIR": str(self.root / "cache"),
            "OSMOSIS_HOME": str(self.root / "data"),
            "OSMOSIS_ENV_FILE": str(self.root / "empty.env"),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a sample's conversation.

    ``label`` says more about who speaks: the tool that answered, the tools that were called.
    """

    role: str
    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished sample with its conversation."""

    row_index: int
    run_index: int
    reward: float
    label: str | None
    trajectory: Path
    messages: tuple[Message, ...]

    @property
    def used_a_tool(self) -> bool:
        """Whether a tool answered in it."""
        return any(message.role == "tool" for message in self.messages)


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What the evaluation left behind.

    ``status`` is its exit status; ``scored`` counts samples with a reward, of ``total``; ``run`` is the
    resource of its own result, known when it was asked for as JSON.
    """

    scratch: Scratch
    status: int
    scored: int
    total: int
    metrics: dict[str, Any]
    sample: Sample | None
    run: dict[str, Any] | None

    @property
    def complete(self) -> bool:
        """Whether every sample is scored."""
        return self.status == 0 and 0 < self.scored == self.total


def prepare_scratch(directory: Path | None) -> Scratch:
    """Make the demo's directory with the sample workspace in it.

    Args:
        directory: where; it must be empty or not there yet. None picks a new temporary directory.

    Raises:
        OsmosisError: ``directory`` holds something, or the samples cannot be copied.
    """
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="osmosis-demo-"))
    else:
        root = directory.expanduser().absolute()
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise OsmosisError(
                f"{root} is not an empty directory.", hint="name one that does not exist: --keep-dir DIR"
            )
        root.mkdir(parents=True, exist_ok=True)
    scratch = Scratch(root.resolve())
    for name in ("config", "cache", "data"):
        (scratch.root / name).mkdir(mode=0o700)
    (scratch.root / "empty.env").touch()
    copy_sample_workspace(scratch.workspace)
    return scratch


def run_demo(scratch: Scratch, *, display: Display) -> DemoOutcome:
    """Evaluate the sample agent by the real command line and read what it left behind.

    Args:
        scratch: from :func:`prepare_scratch`.
        display: the mode of the evaluation's output. In ``rich`` and ``plain`` it goes to this process's own
            streams, in ``json`` it is taken in.

    Raises:
        OsmosisError: the evaluation ended without results.
        KeyboardInterrupt: the user interrupted it.
    """
    status, run = _evaluate(scratch, display)
    if status == 130:
        raise KeyboardInterrupt
    try:
        metrics = json.loads((scratch.run_directory / "metrics.json").read_bytes())
        total = json.loads((scratch.run_directory / "progress.json").read_bytes())["total_runs"]
        records = list(_records(scratch.run_directory))
    except FileNotFoundError as error:
        raise OsmosisError(
            f"the evaluation ended with status {status} before it had results; its files are in {scratch.root}",
            code="INTERNAL",
            details={"status": status, "directory": str(scratch.root)},
        ) from error
    scored = [record for record in records if isinstance(record.get("reward"), (int, float))]
    return DemoOutcome(
        scratch=scratch,
        status=status,
        scored=len(scored),
        total=total,
        metrics=metrics,
        sample=_most_telling_sample(scratch.run_directory, scored),
        run=run,
    )


# -- the evaluation's process --------------------------------------------------------------


def _evaluate(scratch: Scratch, display: Display) -> tuple[int, dict[str, Any] | None]:
    command = [sys.executable, "-m", "osmosis_ai"]
    command += [] if display == "rich" else [f"--{display}"]
    command += ["eval", "run", CONFIG, "--yes", "--name", RUN_NAME]
    captured = subprocess.PIPE if display == "json" else None
    with _tied_to_this_process(scratch.environment(os.environ)) as (environment, lifeline):
        process = subprocess.Popen(
            command,
            cwd=scratch.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=captured,
            stderr=captured,
            pass_fds=(lifeline,),
            start_new_session=True,
        )
        with _interrupts_reach(process):
            said, complained = process.communicate()
    if display != "json":
        return process.returncode, None
    if not said:
        raise _failure_of(complained, process.returncode, scratch)
    resource: dict[str, Any] = json.loads(said)["resource"]
    return process.returncode, resource


@contextmanager
def _tied_to_this_process(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield an environment and a descriptor to pass on: the child ends when this process is gone."""
    read_end, write_end = os.pipe()
    try:
        yield {**environment, LIFELINE_ENV: str(read_end)}, read_end
    finally:
        os.close(read_end)
        os.close(write_end)


@contextmanager
def _interrupts_reach(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass Ctrl-C on: the evaluation winds down by itself, and this process waits for it."""

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


def _failure_of(complained: bytes, status: int, scratch: Scratch) -> OsmosisError:
    said = f"it ended with status {status}"
    for line in complained.splitlines():
        try:
            said = json.loads(line)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            continue
    return OsmosisError(
        f"the evaluation failed: {said}",
        code="INTERNAL",
        details={"status": status, "directory": str(scratch.root)},
    )


# -- what it left behind -------------------------------------------------------------------


def _records(run_directory: Path) -> Iterator[dict[str, Any]]:
    for line in (run_directory / "index.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _most_telling_sample(run_directory: Path, scored: list[dict[str, Any]]) -> Sample | None:
    """Return the best of the first samples whose conversation was kept; one that used a tool, if any did."""
    read = [sample for record in scored[:_SAMPLES_READ] if (sample := read_sample(run_directory, record))]
    return max(read, key=lambda sample: (sample.reward, sample.used_a_tool), default=None)


def read_sample(run_directory: Path, record: Mapping[str, Any]) -> Sample | None:
    """Read a sample's conversation; None when it was not kept.

    Args:
        run_directory: of a finished evaluation.
        record: the sample's line in the run's index.
    """
    row, run = int(record["row_index"]), int(record["run_index"])
    path = run_directory / "trajectories" / f"row_{row}_run_{run}.json"
    if not path.is_file():
        return None
    trajectory = json.loads(path.read_bytes())
    return Sample(
        row_index=row,
        run_index=run,
        reward=float(record["reward"]),
        label=trajectory.get("extra", {}).get("osmosis", {}).get("label"),
        trajectory=path,
        messages=tuple(message for step in trajectory["steps"] for message in _messages_of(step)),
    )


def _messages_of(step: Mapping[str, Any]) -> Iterator[Message]:
    calls = step.get("tool_calls") or []
    names = {call["tool_call_id"]: call["function_name"] for call in calls}
    said = [_text(step.get("message"))] if step.get("message") else []
    if calls or said:
        role = "assistant" if step["source"] == "agent" else step["source"]
        yield Message(role, "\n".join([*said, *map(_call_text, calls)]), "calls a tool" if calls else "")
    for result in (step.get("observation") or {}).get("results", []):
        yield Message("tool", _text(result.get("content")), names.get(result.get("source_call_id"), ""))


def _call_text(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return f"{call['function_name']}({arguments})"
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{call['function_name']}({given})"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content
        )
    return "" if content is None else json.dumps(content, ensure_ascii=False)
