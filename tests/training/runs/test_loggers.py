"""The loggers themselves, with the files they leave: each session writes the whole run, so no step occurs twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import MissingExtraError
from osmosis_ai.evaluation.manifest import Manifest
from osmosis_ai.evaluation.spec import DatasetInput
from osmosis_ai.training.runs import loggers as loggers_module
from osmosis_ai.training.runs.metrics import StepRecord
from tests.lazily import lazily, needs

pytestmark = pytest.mark.integration

with lazily("torch"):
    from osmosis_ai.training.runs.loggers import Loggers
    from osmosis_ai.training.runs.spec import TrainingSpec

RUN_ID = "0f" * 16
LOSS = "train/loss"
Losses = dict[int, float]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The loggers' directory; Trackio uses one for as long as a process lives."""
    return tmp_path_factory.mktemp("loggers")


def records(losses: Losses) -> list[StepRecord]:
    return [StepRecord(step, 1_700_000_000_000 + step, {LOSS: loss}) for step, loss in losses.items()]


async def session(name: Any, place: Path, history: Losses, new: Losses, **secrets: str) -> list[str]:
    """Log ``new`` steps after those of earlier sessions; return what the run's log says."""
    notes: list[str] = []
    spec = TrainingSpec(
        TrainingSettings(report_to=[name]),
        "osmosis/tiny",
        DatasetInput(place / "rows.jsonl", "rows", "0" * 64, "workspace"),
        place / "multiply",
        env={"WANDB_BASE_URL": "http://127.0.0.1:9"},
        secret_values=secrets,
    )
    logged = Loggers(spec, place, notes.append)
    async with logged:
        logged.start(Manifest("training", {}, {"run": "keen-owl-2"}, local_run_id=RUN_ID), records(history))
        for record in records(new):
            logged.log(record)
    return notes


def read_tensorboard(place: Path) -> tuple[Losses, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = (place / "tensorboard").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    [settings] = events.Tensors("settings/text_summary")
    text = settings.tensor_proto.string_val[0].decode()
    points = [(event.step, event.value) for event in events.Scalars(LOSS)]
    assert len(dict(points)) == len(points)
    return dict(points), json.loads(text.removeprefix("```json").removesuffix("```"))


def read_trackio(place: Path) -> tuple[Losses, Any]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    assert (place / "trackio" / "multiply.db").is_file()
    [run] = trackio.Api().runs("multiply")
    assert (run.id, run.name) == (RUN_ID, "keen-owl-2")
    points = [(log["step"], log[LOSS]) for log in SQLiteStorage.get_logs("multiply", "keen-owl-2")]
    assert len(dict(points)) == len(points)
    return dict(points), run.config


def read_wandb(place: Path) -> tuple[Losses, Any]:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits for its process, which writes the end of the file
    [file] = (place / "wandb").glob(f"offline-run-*-{RUN_ID}/run-{RUN_ID}.wandb")
    content, points, settings = file.read_bytes(), [], {}
    at = 7  # LevelDB's log format: a header of the file, then records with checksum, length and type
    while at < len(content):
        start, length = at + 7, int.from_bytes(content[at + 4 : at + 6], "little")
        at = start + length
        record = Record.FromString(content[start:at])
        values = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        if values:
            points.append((record.history.step.num, values[LOSS]))
        settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert len(dict(points)) == len(points)
    return dict(points), settings


@pytest.mark.parametrize(
    ("name", "read", "hint"),
    [
        ("tensorboard", read_tensorboard, "tensorboard --logdir "),
        ("trackio", read_trackio, "trackio show --project multiply"),
        ("wandb", read_wandb, "wandb sync "),
    ],
)
async def test_a_resumed_run_is_one_logged_run(
    name: str, read: Callable[[Path], tuple[Losses, Any]], hint: str, place: Path
) -> None:
    needs(name)
    [note] = await session(name, place, {}, {0: 4.0, 1: 3.0, 2: 2.0, 3: 9.0})
    assert hint in note and str(place) in note
    # The checkpoint was that of step 2, and step 3 is learned again.
    await session(name, place, {0: 4.0, 1: 3.0, 2: 2.0}, {3: 1.0, 4: 0.5})
    losses, settings = read(place)
    assert losses == {0: 4.0, 1: 3.0, 2: 2.0, 3: 1.0, 4: 0.5}
    known = {
        "lr": 1e-5,
        "lora_rank": 16,
        "model_path": "osmosis/tiny",
        "dataset": "rows",
        "report_to": [name],
    }
    assert settings.items() >= known.items()


async def test_a_disk_that_refuses_drops_the_logger_with_one_warning(tmp_path: Path) -> None:
    needs("tensorboard")
    (tmp_path / "file").write_text("")
    notes = await session("tensorboard", tmp_path / "file", {}, {1: 1.0, 2: 2.0})
    [failure] = [note for note in notes if "failed" in note]
    assert "tensorboard failed and was disabled: " in failure and "Not a directory" in failure


async def test_a_server_that_does_not_answer_ends_no_run_and_no_file_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("wandb")
    monkeypatch.setattr(loggers_module, "CLOSING_S", 4.0)
    key = "5ecret" * 7
    notes = await session("wandb", tmp_path, {}, {1: 1.0}, WANDB_API_KEY=key)
    assert len(notes) == 1 and "wandb" in notes[0]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and key not in notes[0]
    assert not [path for path in written if key.encode() in path.read_bytes()]
    shutil.rmtree(tmp_path, ignore_errors=True)


async def test_a_missing_package_ends_the_run_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.e2e.training import trainer

    monkeypatch.setattr(loggers_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="`loggers` extra") as caught:
        await trainer(tmp_path / "run", {"report_to": ["trackio"]}).run()
    assert "pip install" in str(caught.value.hint)
    assert not (tmp_path / "run").exists()
