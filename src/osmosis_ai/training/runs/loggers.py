"""The loggers of ``[advanced] report_to``: Trackio, TensorBoard and Weights & Biases.

At every start a logger receives all durable steps and replaces what an earlier session wrote, so that a resumed run is
one complete logged run, also on another machine. Each logger has a thread of its own, so that neither a slow disk nor
an unreachable server delays a step. One that fails is dropped with a warning.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from osmosis_ai.config.training import LoggerName
from osmosis_ai.errors import MissingExtraError
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.training.runs.metrics import StepRecord
from osmosis_ai.training.runs.spec import TrainingSpec

CLOSING_S = 20.0
"""How long the end of a run waits for each logger."""
Write = Callable[[StepRecord], None]


@dataclass(eq=False)
class Loggers:
    """Passes a run's steps on to its loggers, from :meth:`start` until its context ends.

    Attributes:
        directory: Where loggers keep their files; runs may share it.
        note: Receives where each logger can be looked at, and why one was dropped; called on the event loop.
    """

    spec: TrainingSpec
    directory: Path
    note: Callable[[str], None]
    failed: bool = False
    _feeds: list[tuple[threading.Thread, SimpleQueue[StepRecord | None]]] = field(default_factory=list)

    def require(self) -> None:
        """Make sure that the packages of all loggers are installed; imports none of them."""
        for name in self.spec.settings.report_to:
            if find_spec(name) is None:
                raise MissingExtraError("loggers", name)

    def start(self, manifest: Manifest, history: Iterable[StepRecord]) -> None:
        """Open the loggers in the background and give them the steps so far; call it on the event loop."""
        self._loop, self.created_at = asyncio.get_running_loop(), manifest.created_at
        self.id, self.project = manifest.local_run_id, self.spec.rollout_dir.name
        self.name = str(manifest.provenance.get("run") or manifest.run_name)
        # A server's arguments and URL may contain its key.
        hidden = {"ignored", "vllm_url", "vllm_command", "vllm_args", "tinker_url"}
        settings = self.spec.settings.model_dump(mode="json", exclude=hidden)
        self.settings = {"model_path": self.spec.model_path, "dataset": self.spec.dataset.name, **settings}
        for name in dict.fromkeys(self.spec.settings.report_to):
            records: SimpleQueue[StepRecord | None] = SimpleQueue()
            thread = threading.Thread(target=self._feed, args=(name, records), name=name, daemon=True)
            thread.start()
            self._feeds.append((thread, records))
        for record in history:
            self.log(record)

    def log(self, record: StepRecord | None) -> None:
        for _, records in self._feeds:
            records.put(record)

    async def __aenter__(self) -> Loggers:
        return self

    async def __aexit__(self, error: object, *details: object) -> None:
        """Wait until everything is written, but not for a logger that hangs."""
        self.failed = error is not None
        self.log(None)
        for thread, _ in self._feeds:
            await asyncio.to_thread(thread.join, CLOSING_S)
            if thread.is_alive():
                self.note(f"{thread.name} did not finish in {CLOSING_S:g} s; its last steps may be missing.")
        await asyncio.sleep(0)  # delivers the last notes

    def say(self, message: str) -> None:
        """Write a note from any thread."""
        with suppress(RuntimeError):  # the run has ended
            self._loop.call_soon_threadsafe(self.note, message)

    def _feed(self, name: LoggerName, records: SimpleQueue[StepRecord | None]) -> None:
        try:
            with _OPEN[name](self) as write:
                for record in iter(records.get, None):
                    write(record)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            self.say(f"{name} failed and was disabled: {reason}")


@contextmanager
def _tensorboard(run: Loggers) -> Iterator[Write]:
    from torch.utils.tensorboard import SummaryWriter

    logs = run.directory / "tensorboard"
    shutil.rmtree(logs / run.name, ignore_errors=True)
    run.say(f"tensorboard: open it with `tensorboard --logdir {logs}`")
    # A TensorBoard that is open drops the steps it has read before.
    with SummaryWriter(str(logs / run.name), purge_step=0, flush_secs=10) as writer:
        writer.add_text("settings", f"```json\n{json.dumps(run.settings, indent=2)}\n```")

        def write(record: StepRecord) -> None:
            for key, value in record.metrics.items():
                writer.add_scalar(key, value, record.step, walltime=record.timestamp_ms / 1000)

        yield write


@contextmanager
def _trackio(run: Loggers) -> Iterator[Write]:
    place = run.directory / "trackio"
    os.environ["TRACKIO_DIR"] = str(place)  # read by its first import
    # Its storage alone: `trackio.init` asks the Hugging Face Hub for the user's name.
    from trackio.sqlite_storage import SQLiteStorage

    SQLiteStorage.delete_run(run.project, run.name, run_id=run.id)
    run.say(f"trackio: open it with `TRACKIO_DIR={place} trackio show --project {run.project}`")
    config = {**run.settings, "_Username": None, "_Created": run.created_at, "_Group": None}

    def write(record: StepRecord) -> None:
        moment = datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc).isoformat()
        SQLiteStorage.bulk_log(
            run.project, run.name, [record.metrics], [record.step], [moment], config=config, run_id=run.id
        )

    yield write


@contextmanager
def _wandb(run: Loggers) -> Iterator[Write]:
    """Log to W&B with the key of `[secrets]`, otherwise offline, whatever login this machine has."""
    key, place = run.spec.secret_values.get("WANDB_API_KEY"), run.directory / "wandb"
    os.environ |= {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "WANDB_CACHE_DIR": f"{place}/cache",
    }
    import wandb

    for earlier in place.glob(f"*-run-*-{run.id}"):
        shutil.rmtree(earlier, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    known = {name: run.spec.env.get(f"WANDB_{name.upper()}") for name in ("project", "entity", "base_url")}
    off = ("disable_code", "disable_git", "x_disable_meta", "x_disable_machine_info", "x_disable_stats")
    settings: dict[str, Any] = {
        "project": run.project,
        **{name: value for name, value in known.items() if value},
        **dict.fromkeys(off, True),
        **dict.fromkeys(("init_timeout", "finish_timeout"), CLOSING_S / 2),
        **({"mode": "online", "api_key": key, "resume": "allow"} if key else {"mode": "offline"}),
        "reinit": "create_new",
        "console": "off",
        "x_save_requirements": False,
        "stop_fn": lambda: None,  # W&B's stop button would interrupt this process
    }
    logged = wandb.init(
        id=run.id, name=run.name, config=run.settings, dir=run.directory, settings=wandb.Settings(**settings)
    )
    try:
        offline = f"offline (secret WANDB_API_KEY is not set); upload it with `wandb sync {logged.settings.sync_dir}`"
        run.say(f"wandb: {logged.url if key else offline}")

        def write(record: StepRecord) -> None:
            if record.step >= logged.step:  # W&B keeps the first values of a step
                logged.log(record.metrics, step=record.step)

        yield write
    finally:
        logged.finish(exit_code=int(run.failed))


_OPEN = {"trackio": _trackio, "tensorboard": _tensorboard, "wandb": _wandb}
