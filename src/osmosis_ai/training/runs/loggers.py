"""The loggers of ``[advanced] report_to``: Trackio, TensorBoard and Weights & Biases.

A logger receives all of the run's durable steps at every start, not only new ones, and replaces what an earlier session
wrote. A resumed run is therefore one complete logged run, also on another machine. Each logger has a thread of its own,
so that neither a slow disk nor an unreachable server delays a step; one that fails is dropped with a warning.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from osmosis_ai.config.training import LoggerName
from osmosis_ai.errors import MissingExtraError
from osmosis_ai.training.runs.metrics import StepRecord

CLOSING_S = 30.0
"""How long the end of a run waits for its loggers."""
WANDB_KEY = "WANDB_API_KEY"


def require_loggers(names: Iterable[LoggerName]) -> None:
    """Make sure that the packages of all loggers are installed; imports none of them."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtraError("loggers", name)


@dataclass
class LoggedRun:
    """What the loggers show of a run.

    Attributes:
        id: Unique and the same in all sessions.
        project: Groups runs that are compared with each other.
        variables: The run's variables and secrets, of which W&B's own are used.
        directory: Where loggers keep their files; runs may share it.
    """

    id: str
    name: str
    project: str
    created_at: str
    settings: Mapping[str, Any]
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    failed: bool = False


class Loggers:
    """Passes steps on to loggers, from :meth:`start` until :meth:`close`."""

    def __init__(self, names: Sequence[LoggerName]) -> None:
        self._names = list(dict.fromkeys(names))
        self._feeds: list[tuple[threading.Thread, SimpleQueue[StepRecord | None]]] = []
        self._run: LoggedRun | None = None

    def start(self, run: LoggedRun, history: Iterable[StepRecord], note: Callable[[str], None]) -> None:
        """Open the loggers in the background and give them the steps so far; call it on the event loop.

        Args:
            note: Receives where each logger can be looked at, and why one was dropped.
        """
        loop, done = asyncio.get_running_loop(), list(history)
        self._run, self._note = run, note

        def note_later(message: str) -> None:
            with suppress(RuntimeError):  # the run has ended
                loop.call_soon_threadsafe(note, message)

        for name in self._names:
            records: SimpleQueue[StepRecord | None] = SimpleQueue()
            for record in done:
                records.put(record)
            thread = threading.Thread(
                target=_feed, args=(name, run, records, note_later), name=f"logger-{name}", daemon=True
            )
            thread.start()
            self._feeds.append((thread, records))

    def log(self, record: StepRecord) -> None:
        for _, records in self._feeds:
            records.put(record)

    async def close(self, *, failed: bool) -> None:
        """Wait until everything is written, but not for a logger that hangs."""
        if self._run is not None:
            self._run.failed = failed
        for _, records in self._feeds:
            records.put(None)
        deadline = time.monotonic() + CLOSING_S
        for thread, _ in self._feeds:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                name = thread.name.removeprefix("logger-")
                self._note(f"{name} did not finish within {CLOSING_S:g} s; its last steps may be missing.")
        await asyncio.sleep(0)  # delivers the last notes


def _feed(
    name: LoggerName, run: LoggedRun, records: SimpleQueue[StepRecord | None], note: Callable[[str], None]
) -> None:
    try:
        with _OPEN[name](run, note) as write:
            for record in iter(records.get, None):
                write(record)
    except Exception as error:
        note(
            f"{name} failed and gets no further steps: {' '.join(str(error).split()) or type(error).__name__}"
        )


Write = Callable[[StepRecord], None]


@contextmanager
def _tensorboard(run: LoggedRun, note: Callable[[str], None]) -> Iterator[Write]:
    from torch.utils.tensorboard import SummaryWriter

    logs = run.directory / "tensorboard"
    shutil.rmtree(logs / run.name, ignore_errors=True)
    note(f"tensorboard: look at it with `tensorboard --logdir {logs}`")
    # A TensorBoard that is open drops the steps it has read before.
    with SummaryWriter(str(logs / run.name), purge_step=0, flush_secs=10) as writer:
        writer.add_text("settings", f"```json\n{json.dumps(run.settings, indent=2)}\n```")

        def write(record: StepRecord) -> None:
            for key, value in record.metrics.items():
                writer.add_scalar(key, value, record.step, walltime=record.timestamp_ms / 1000)

        yield write


@contextmanager
def _trackio(run: LoggedRun, note: Callable[[str], None]) -> Iterator[Write]:
    place = run.directory / "trackio"
    # Read on the first import.
    os.environ["TRACKIO_DIR"] = str(place)
    # Its storage alone: `trackio.init` asks the Hugging Face Hub for the name of the user.
    from trackio.sqlite_storage import SQLiteStorage

    SQLiteStorage.delete_run(run.project, run.name, run_id=run.id)
    note(f"trackio: look at it with `TRACKIO_DIR={place} trackio show --project {run.project}`")
    config = {**run.settings, "_Username": None, "_Created": run.created_at, "_Group": None}

    def write(record: StepRecord) -> None:
        moment = datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc).isoformat()
        SQLiteStorage.bulk_log(
            run.project, run.name, [record.metrics], [record.step], [moment], config=config, run_id=run.id
        )

    yield write


@contextmanager
def _wandb(run: LoggedRun, note: Callable[[str], None]) -> Iterator[Write]:
    """Log to W&B with the key of `[secrets]`, otherwise offline, whatever login this machine has."""
    place, key = run.directory / "wandb", run.variables.get(WANDB_KEY)
    os.environ |= {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": str(place / "cache"),
    }
    import wandb

    for earlier in place.glob(f"*-run-*-{run.id}"):
        shutil.rmtree(earlier, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    known = {
        setting: value
        for setting in ("project", "entity", "base_url")
        if (value := run.variables.get(f"WANDB_{setting.upper()}"))
    }
    settings = wandb.Settings(
        **{"project": run.project, **known},
        mode="online" if key else "offline",
        api_key=key,
        run_id=run.id,
        run_name=run.name,
        resume="allow" if key else None,
        root_dir=str(run.directory),
        init_timeout=CLOSING_S / 2,
        finish_timeout=CLOSING_S / 2,
        reinit="create_new",
        stop_fn=lambda: None,  # its default interrupts this process
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    logged = wandb.init(config=dict(run.settings), settings=settings)
    try:
        note(
            f"wandb: {logged.url}"
            if key
            else f"wandb is offline without the secret {WANDB_KEY}: upload the run with "
            f"`wandb sync {Path(logged.settings.sync_dir)}`"
        )

        def write(record: StepRecord) -> None:
            if record.step >= logged.step:  # W&B keeps the first values of a step
                logged.log(record.metrics, step=record.step)

        yield write
    finally:
        logged.finish(exit_code=int(run.failed))


_OPEN: Mapping[LoggerName, Callable[[LoggedRun, Callable[[str], None]], AbstractContextManager[Write]]] = {
    "trackio": _trackio,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
