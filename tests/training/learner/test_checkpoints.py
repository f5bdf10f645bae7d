from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.learner.checkpoints import CheckpointStore
from tests.full_disk import files_of_at_most
from tests.lazily import lazily

with lazily("torch"):
    import torch

    from tests.training.learner_builders import batch_for, tiny_learner

PROVENANCE = {
    "commit": "abc1234",
    "dataset_digest": "0" * 64,
    "config": {"lr": 1e-3},
    "metrics": {"reward": 0.5},
}


class CountingLearner:
    """A learner whose whole state is a number; small, so that it can be saved many times."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def save_adapter(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "adapter_model.safetensors").write_bytes(self.number.to_bytes(4, "big") * 500)

    def state_dict(self):
        return {"number": self.number, "tensor": torch.full((500,), float(self.number))}

    def load_state_dict(self, state) -> None:
        assert torch.equal(state["tensor"], torch.full((500,), float(state["number"])))
        self.number = state["number"]


def save(store: CheckpointStore, step: int, number: int | None = None, **options):
    number = step if number is None else number
    return store.save(step, CountingLearner(number), {"cursor": number}, PROVENANCE, **options)


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.list()]


def assert_whole(checkpoint, number: int) -> None:
    learner = CountingLearner()
    trainer_state = checkpoint.load_into(learner)
    adapter = (checkpoint.adapter_dir / "adapter_model.safetensors").read_bytes()
    assert learner.number == trainer_state["cursor"] == number
    assert adapter == number.to_bytes(4, "big") * 500
    assert checkpoint.provenance()["step"] == checkpoint.step


def test_a_checkpoint_holds_all_that_was_saved(tmp_path):
    checkpoint = save(CheckpointStore(tmp_path, keep_every=10), 3)
    assert_whole(checkpoint, 3)
    provenance = checkpoint.provenance()
    assert {key: provenance[key] for key in PROVENANCE} == PROVENANCE
    assert provenance["saved_at"].endswith("+00:00")
    assert sorted(path.name for path in checkpoint.directory.iterdir()) == [
        "adapter",
        "learner.pt",
        "provenance.json",
        "trainer_state.json",
    ]


def test_the_last_one_is_there_to_go_on_from_and_every_nth_is_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep_every=3)
    seen = []
    for step in range(1, 8):
        save(store, step)
        seen.append(steps(store))
    assert seen == [[1], [2], [3], [3, 4], [3, 5], [3, 6], [3, 6, 7]]
    assert [checkpoint.kept for checkpoint in store.list()] == [True, True, False]
    assert store.latest().step == 7


def test_steps_are_ordered_by_number_not_by_name(tmp_path):
    store = CheckpointStore(tmp_path, keep_every=1)
    for step in (99_999_999, 100_000_000, 5):
        save(store, step)
    assert steps(store) == [5, 99_999_999, 100_000_000]


def die_at(moment: int) -> None:
    """Kill this process, as -9 does, at its ``moment``-th call that changes the disk."""
    left = moment

    def dying(function):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("rename", "replace", "fsync", "mkdir", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    Path.rename = dying(Path.rename)
    torch.save = dying(torch.save)


def in_a_child(work) -> int:
    """Run ``work`` in a fork of this process; return how it ended (0, or minus the signal)."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.e2e
@pytest.mark.parametrize("replaces", [False, True])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_checkpoint_whole(tmp_path, replaces):
    step = 1 if replaces else 2

    def save_and_die(directory: Path, moment: int) -> None:
        store = CheckpointStore(directory, keep_every=10)
        die_at(moment)
        save(store, step, number=2)

    seen = set()
    for moment in range(1, 500):
        directory = tmp_path / str(moment)
        save(CheckpointStore(directory, keep_every=10), 1, number=1)
        ended = in_a_child(lambda directory=directory, moment=moment: save_and_die(directory, moment))
        store = CheckpointStore(directory, keep_every=10)
        latest = store.latest()
        number = latest.trainer_state()["cursor"]
        seen.add(number)
        assert_whole(latest, number)
        assert not [path.name for path in directory.iterdir() if path.name.startswith(".")]
        save(store, 3)
        assert steps(store) == [3]
        shutil.rmtree(directory)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert moment > 15, "the save was to be cut short at many moments"
    assert seen == {1, 2}


# Of the tiny model's adapter: it alone has 455 kB, and the learner's state three times as much.
@pytest.mark.parametrize("room", [1000, 200_000, 700_000])
def test_a_full_disk_leaves_the_earlier_checkpoint_and_says_so(tmp_path, room):
    store = CheckpointStore(tmp_path, keep_every=10)
    save(store, 1)
    learner = tiny_learner()
    learner.step(*batch_for(learner))

    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        said = ["nothing", None]
        with files_of_at_most(room):
            try:
                store.save(2, learner, {}, PROVENANCE)
            except OsmosisError as error:
                said = [error.message, error.hint]
        (tmp_path / "said").write_text(json.dumps(said))
        os._exit(0)
    os.waitpid(child, 0)
    message, hint = json.loads((tmp_path / "said").read_text())
    assert "the checkpoint of step 2 could not be written" in message
    assert message.endswith("the disk is full; the checkpoint of step 1 is intact.")
    assert hint == "free space there, then start the run again"
    assert_whole(store.latest(), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said", "step-00000001"]


@pytest.mark.parametrize("name", ["learner.pt", "trainer_state.json"])
def test_a_damaged_file_is_named(tmp_path, name):
    checkpoint = save(CheckpointStore(tmp_path, keep_every=10), 1)
    (checkpoint.directory / name).write_bytes(b"nonsense")
    with pytest.raises(OsmosisError, match=f"checkpoint of step 1 cannot be read: .*{name}"):
        assert_whole(checkpoint, 1)


def test_a_run_that_is_resumed_learns_the_same_to_the_bit(tmp_path):
    straight = tiny_learner(warmup_steps=3)
    batches = [batch_for(straight, seed=seed) for seed in range(4)]
    for batch in batches:
        expected = straight.step(*batch, policy_version=1)

    store = CheckpointStore(tmp_path, keep_every=10)
    interrupted = tiny_learner(warmup_steps=3)
    for step, batch in enumerate(batches[:2], start=1):
        interrupted.step(*batch, policy_version=1)
        store.save(step, interrupted, {"next": step}, PROVENANCE)

    checkpoint = CheckpointStore(tmp_path, keep_every=10).latest()
    resumed = tiny_learner(warmup_steps=3, seed=7)
    done = checkpoint.load_into(resumed)["next"]
    for batch in batches[done:]:
        found = resumed.step(*batch, policy_version=1)
    assert found == expected
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict(), atol=0, rtol=0)


def test_the_adapter_of_a_checkpoint_loads_with_peft_wherever_it_is_copied_and_says_what_made_it(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from osmosis_ai.training.learner.policy_model import model_source

    learner = tiny_learner(lr=1e-2)
    sequences, advantages = batch_for(learner)
    learner.step(sequences, advantages)
    checkpoint = CheckpointStore(tmp_path / "run", keep_every=1).save(1, learner, {}, PROVENANCE)
    copied = shutil.copytree(checkpoint.adapter_dir, tmp_path / "elsewhere")
    base = AutoModelForCausalLM.from_pretrained(model_source("osmosis/tiny"), dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, copied)
    assert loaded.peft_config["default"].base_model_name_or_path == "osmosis/tiny"
    ids = torch.tensor([sequences[0].ids])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, learner.model(ids).logits)
    described = json.loads((copied / "provenance.json").read_text())
    assert described == checkpoint.provenance()
    assert {key: described[key] for key in PROVENANCE} == PROVENANCE
