"""Training on a Tinker server gives what training here gives, and survives what servers do."""

from __future__ import annotations

import io
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import NetworkError, OsmosisError
from osmosis_ai.inference.engine import EngineStoppedError, Generation
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.learner.policy import SessionLostError
from osmosis_ai.training.runs.metrics import read_history
from tests.lazily import lazily

pytest.importorskip("tinker")

with lazily("torch"):
    import torch

    from osmosis_ai.inference.model import load_adapted_model
    from osmosis_ai.training.engines import tinker_backend
    from osmosis_ai.training.engines.policy_engine import can_be_sampled
    from osmosis_ai.training.engines.tinker_backend import TinkerEngine, TinkerLearner, TinkerServer
    from osmosis_ai.training.learner.checkpoints import CheckpointStore
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.runs import trainer as trainer_module
    from tests.e2e.training import trainer
    from tests.training.learner_builders import sample_additions, tiny_learner
    from tests.training.loop_world import Told
    from tests.training.policy_world import MODEL_DIR
    from tests.training.standin_tinker import KEY, StandInTinker, tinker_server


@pytest.fixture(scope="module")
def server():
    with tinker_server() as running:
        yield running


def settings_for(server: StandInTinker, **changes: Any) -> TrainingSettings:
    known = {"backend": "tinker", "tinker_url": server.url, "lr": 1e-3, "kl_interval": 0}
    return TrainingSettings(**{**known, **changes})


def connect(server: StandInTinker, **changes: Any) -> TinkerLearner:
    settings = settings_for(server, **changes)
    return TinkerLearner(TinkerServer(settings, "osmosis/tiny", KEY), settings, "a-run")


@pytest.fixture(scope="module")
def sampled():
    """Sequences of different lengths with advantages of both signs, and log-probabilities of an older policy."""
    groups = sample_additions(tiny_learner().model.eval(), prompts=3, group=3, seed=5)
    sequences = [sample.sequence for group in groups for sample in group]
    for number, sequence in enumerate(sequences):
        for values in (sequence.ids, sequence.mask, sequence.logprobs, sequence.versions):
            del values[len(values) - number % 3 :]
        for place, is_sampled in enumerate(sequence.mask):
            sequence.logprobs[place] += 0.4 * math.sin(place) * is_sampled
    return sequences, [math.cos(number) for number in range(len(sequences))]


STEPS: list[dict[str, Any]] = [
    {"loss_type": "dapo"},
    {"loss_type": "grpo"},
    {"loss_type": "dr_grpo", "clip_low": 0.1, "clip_high": 0.15},
    {"loss_type": "grpo", "importance_cap": 1.1},
    {"loss_type": "dapo", "max_staleness": 2},
    {"method": "sft"},
]


# SkyRL's JAX backend takes means over sequences; its other backends, and other servers, sum.
SERVERS = [("skyrl", True), ("skyrl", False), ("hosted", False), ("other", False)]


@pytest.mark.parametrize(
    ("kind", "means", "settings"),
    # An unknown server cannot clip the ratio to the sampler.
    [(*server, step) for server in SERVERS for step in (STEPS[3:] if server[0] == "other" else STEPS)],
)
def test_a_step_on_a_server_has_the_loss_and_the_gradient_of_a_step_here(
    server, sampled, kind, means, settings
):
    sequences, advantages = sampled
    if settings.get("method") == "sft":
        advantages = [1.0] * len(sequences)
    server.mean_over_sequences = means
    settings = {"grad_clip": 1e9, **settings}
    local = TrainingSettings(lr=1e-3, logprob_gap_limit=10.0, kl_interval=0, **settings)
    here = Learner("osmosis/tiny", local, "cpu")
    there = connect(server, tinker_server=kind, **settings)
    gradients: list[torch.Tensor] = []
    here._optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(parameter.grad.clone() for parameter in here._parameters)
    )
    for _ in range(2):
        gradients.clear()
        expected = here.step(sequences, advantages)
        found = there.step(sequences, advantages)
        for key in ("loss", "grad_norm", "clip_fraction", "kl_sampler", "importance_capped", "tokens"):
            value = getattr(expected, key)
            if settings.get("method") != "sft" or key in ("loss", "grad_norm", "tokens"):
                assert getattr(found, key) == (
                    pytest.approx(value, rel=1e-5) if value is not None else None
                ), key
        ours, theirs = (torch.cat([part.flatten() for part in each]) for each in (gradients, server.gradient))
        assert float((ours - theirs).norm()) < 1e-5 * float(ours.norm())
    after = [value for row in there.logprobs(sequences) for value in row]
    assert after == pytest.approx([value for row in here.logprobs(sequences) for value in row], abs=1e-4)
    assert (found.updates, found.learning_rate) == (2, 1e-3)


def train(server: StandInTinker, run_dir: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    monkeypatch.setattr(trainer_module, "LOSS_PAUSE_S", 0.01)
    settings = {
        "backend": "tinker", "tinker_url": server.url, "lr": 1e-3, "rollout_batch_size": 2, "n_samples_per_prompt": 4,
        "max_steps": 2, "checkpoint_save_freq": 1, "eval_interval": 10, "max_prompt_length": 256,
        "max_response_length": 64, "kl_interval": 0,
    }  # fmt: skip
    told = Told()
    return trainer(run_dir, {**settings, **changes}, told, secret_values={"TINKER_API_KEY": KEY}), told


def rewards(run_dir: Path) -> list[tuple[int, float]]:
    records = read_history(run_dir / "metrics.jsonl")
    return [(record.step, record.metrics["rollout/raw_reward"]) for record in records if record.step]


@pytest.mark.e2e
async def test_a_run_survives_lost_sessions_and_resumes_to_the_same_rewards(tmp_path, monkeypatch):
    with tinker_server() as server:
        undisturbed, _ = train(server, tmp_path / "undisturbed", monkeypatch)
        summary = await undisturbed.run()
        assert (summary.ending.because, summary.steps_done) == ("finished", 2)
        adapter = tmp_path / "undisturbed" / "checkpoints" / "step-00000002" / "adapter"
        load_adapted_model(MODEL_DIR, adapter)
        expected = rewards(tmp_path / "undisturbed")
        assert len(expected) == 2

        # The second step of this run, which is the server's fourth, finds its session lost.
        server.lose_at = {4}
        disturbed, told = train(server, tmp_path / "disturbed", monkeypatch)
        assert (await disturbed.run()).steps_done == 2
        assert [note for note in told.notes if "continues from its last checkpoint" in note]
        assert rewards(tmp_path / "disturbed") == expected

        first, _ = train(server, tmp_path / "resumed", monkeypatch, max_steps=1)
        await first.run()
        second, _ = train(server, tmp_path / "resumed", monkeypatch)
        await second.run()
        assert rewards(tmp_path / "resumed") == expected


async def test_a_server_that_never_keeps_a_session_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_module, "SESSION_LOSSES", 1)
    with tinker_server(lose_at=set(range(100))) as server:
        lossy, told = train(server, tmp_path, monkeypatch)
        with pytest.raises(SessionLostError, match="could not update the policy"):
            await lossy.run()
        assert len([note for note in told.notes if ". The run starts again in 0.01 s." in note]) == 1
        assert KEY not in " ".join(told.notes)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ({"nan": True}, SessionLostError, "returned log-probabilities that contain NaN or infinity"),
        ({"outputs": 8}, SessionLostError, r"returned \d+ log-probabilities for \d+ tokens"),
        ({"outputs": 0}, SessionLostError, r"returned 0 log-probabilities for \d+ tokens"),
        (
            {"losses": frozenset({"cross_entropy"})},
            OsmosisError,
            "could not compute the gradient: .*no loss ppo",
        ),
    ],
)
def test_a_reply_that_is_no_gradient_makes_no_update(server, sampled, monkeypatch, fault, error, message):
    learner = connect(server)
    for name, value in fault.items():
        monkeypatch.setattr(server, name, value)
    sent = server.updates_sent
    with pytest.raises(error, match=f"^the Tinker server at {server.url} {message}") as refused:
        learner.step(*sampled)
    # What the run retries after a pause, and what ends it at once.
    assert isinstance(refused.value, SessionLostError) == (error is SessionLostError)
    assert (learner.updates, server.updates_sent) == (0, sent)


def test_a_gradient_that_is_not_finite_loses_the_session(server, sampled, monkeypatch):
    learner = connect(server)
    monkeypatch.setattr(server, "_optim_step", lambda _: server._later({"metrics": {"grad_norm": "inf"}}))
    with pytest.raises(SessionLostError, match="with a gradient that contains NaN or infinity"):
        learner.step(*sampled)


async def test_tokens_without_numbers_end_the_engine(server, monkeypatch):
    learner = connect(server)
    engine = TinkerEngine(learner, end_token_ids=frozenset({2}), max_positions=64)
    await engine.publish(learner, 0)
    monkeypatch.setattr(server, "nan", True)
    generation = Generation((5, 6), 4, stream=1, stop_tokens=frozenset({2}), temperature=1.0)
    with pytest.raises(EngineStoppedError, match="sampled tokens without valid log-probabilities"):
        await TokenFeed(engine, [generation], every_token=False).read()
    assert engine.failure is not None
    await engine.close()


def test_a_busy_server_is_asked_again(server, sampled):
    learner = connect(server)
    server.fail = [503, 429]
    assert learner.step(*sampled).updates == 1
    assert server.fail == []


def test_an_update_whose_answer_is_lost_is_made_once(server, sampled, monkeypatch):
    expected = connect(server).step(*sampled)
    learner = connect(server)
    monkeypatch.setattr(server, "drop", 1)
    sent, made = server.updates_sent, server._steps
    found = learner.step(*sampled)
    # The client sends it again, with the same number.
    assert (server.updates_sent - sent, server._steps - made) == (2, 1)
    assert (found.updates, found.grad_norm) == (1, pytest.approx(expected.grad_norm, rel=1e-5))


@pytest.mark.nightly
@pytest.mark.parametrize(("slow", "delay_s", "times_sent"), [("accept_s", 125, 2), ("result_s", 95, 1)])
async def test_a_server_slower_than_the_client_waits_makes_an_update_once(
    tmp_path, monkeypatch, slow, delay_s, times_sent
):
    """The client waits 120 s until a request is accepted and 90 s for its result, and then asks again."""
    with tinker_server(**{slow: delay_s}) as server:
        run, told = train(server, tmp_path, monkeypatch, max_steps=1)
        assert (await run.run()).steps_done == 1
        assert [note for note in told.notes if "continues from its last checkpoint" in note] == []
        assert (len(server.requests), server.updates_sent, server._steps) == (1, times_sent, 1)
        [step] = [record for record in read_history(tmp_path / "metrics.jsonl") if record.step]
        assert step.metrics["time/step_s"] > 2 * delay_s


def test_the_key_goes_only_to_the_servers_own_address(server, tmp_path, monkeypatch):
    with tinker_server() as other:
        learner = connect(server)
        learner.save_adapter(tmp_path / "own")
        [name] = server.archives
        other.archives[name] = server.archives[name]
        # Another port of the same host.
        monkeypatch.setattr(server, "archives_at", f"{other.url}/api/v1/{name}/download")
        monkeypatch.setattr(other, "archives_at", "here, without a key")
        server.archives.clear()
        path = f"tinker://run/{name}"
        monkeypatch.setattr(
            server, "_later", lambda reply, later=server._later: later({**reply, "path": path})
        )
        learner.save_adapter(tmp_path / "elsewhere")
        assert (tmp_path / "elsewhere" / "adapter_model.safetensors").exists()
        assert other.keys == [None]
        monkeypatch.setattr(server, "redirect_to", other.url)
        with pytest.raises(OsmosisError, match="redirects") as refused:
            connect(server)
        assert refused.value.hint == "set [advanced].tinker_url to its final address"
        assert other.keys == [None]


def test_a_checkpoint_of_another_server_is_refused_at_once(server):
    state = connect(server).state_dict()
    with tinker_server() as other:
        with pytest.raises(OsmosisError, match="does not have the checkpoint tinker://") as refused:
            connect(other).load_state_dict(state)
        assert not isinstance(refused.value, SessionLostError)
        assert f"was saved at {server.url};" in refused.value.hint
        with pytest.raises(SessionLostError):
            connect(other).load_state_dict({**state, "tinker_url": other.url})


def test_a_server_without_the_model_with_another_key_or_without_answer_is_named(server, monkeypatch):
    settings = settings_for(server)
    with pytest.raises(OsmosisError, match=r"does not serve `Qwen/Qwen3-8B` \(available: `osmosis/tiny`\)"):
        TinkerServer(settings, "Qwen/Qwen3-8B", KEY)
    with pytest.raises(OsmosisError, match="refused the API key") as refused:
        TinkerServer(settings, "osmosis/tiny", "tml-another")
    assert "tml-another" not in f"{refused.value} {refused.value.hint}"
    gone = settings.model_copy(update={"tinker_url": "http://127.0.0.1:9"})
    with pytest.raises(NetworkError, match="could not be reached"):
        TinkerServer(gone, "osmosis/tiny", KEY)


def test_a_checkpoint_has_no_adapter_if_an_unknown_server_offers_none(server, sampled, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "has_archives", False)
    with pytest.raises(SessionLostError, match="did not return the adapter"):
        connect(server).save_adapter(tmp_path / "adapter")
    learner = connect(server, tinker_server="other")
    learner.step(*sampled)
    saved = CheckpointStore(tmp_path / "checkpoints", keep_every=1).save(1, learner, {"step": 1})
    assert not saved.adapter_dir.exists()
    restored = connect(server, tinker_server="other")
    assert saved.load_into(restored) == {"step": 1}
    assert (restored.updates, restored.logprobs(sampled[0])) == (1, learner.logprobs(sampled[0]))


def test_a_closed_learner_frees_its_place_on_the_server(server):
    learner = connect(server)
    name = learner.client.model_id
    assert name in server.models
    learner.close()
    assert name not in server.models
    lost = connect(server)
    server.models.pop(lost.client.model_id)
    lost.close()


def test_what_a_server_cannot_have_sampled_ends_the_call(server):
    long, positive = ([5] * 3, [-1.0] * 3), ([5], [0.5])
    for tokens, logprobs in [long, positive, ([-1], [-1.0]), ([1.5], [-1.0]), ([5], [math.nan]), ([], [])]:
        assert not can_be_sampled(tokens, logprobs, 2)
    assert can_be_sampled([5, 2], [-1.0, 1e-7], 2)


def test_an_archive_writes_only_the_adapter(tmp_path):
    with pytest.raises(ValueError, match="no adapter"):
        tinker_backend.unpack_adapter(_tar({"../escaped": b"x"}), tmp_path / "adapter", "osmosis/tiny")
    assert list(tmp_path.rglob("*escaped*")) == []


def _tar(files: dict[str, bytes]) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    packed.seek(0)
    return packed
