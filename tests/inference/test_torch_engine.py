"""The torch engine: any other model, its chat format, and updates that are served beside its weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.chat import BuiltInChat, TemplateError
from osmosis_ai.inference.engine import (
    ContinuousBatch,
    Emission,
    Generation,
    InferenceEngine,
    SampledToken,
    cache_bytes,
)
from osmosis_ai.inference.model import Model
from tests.inference.conftest import Tokens, generate, generation, ids, multiply_tool, question
from tests.inference.test_engine import WAIT_S, Recorder
from tests.lazily import lazily
from tests.tiny_model import SIZES
from tests.training.policy_world import MODEL_DIR

with lazily("torch", "transformers"):
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from osmosis_ai.inference.torch_engine import LowRankUpdate, PretrainedChat, TorchModel
    from osmosis_ai.training.learner.policy_model import low_rank_updates, merged_tensors, save_adapter


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def torch_model(model_dir: Path) -> TorchModel:
    return TorchModel.load(model_dir, dtype=torch.float64)


def test_both_engines_draw_the_same_tokens(model: Model, torch_model: TorchModel, chat: BuiltInChat) -> None:
    texts = [chat.render(question(2 + n, 99 - n), [multiply_tool()] if n % 2 else None) for n in range(32)]
    wanted = [
        generation(
            tuple(chat.encode(text)),
            seed,
            temperature=temperature,
            top_p=top_p,
            max_tokens=24,
            top_logprobs=3 * (seed == 0),
        )
        for seed, text in enumerate(texts)
        for temperature, top_p in ((0.0, 1.0), (0.7, 0.9), (1.0, 1.0), (1.5, 1.0))
    ]
    numpys = generate(ContinuousBatch(model, 32), wanted)
    # Another size and order of batches, which must not matter either.
    torchs = generate(ContinuousBatch(torch_model, 9), wanted, joining=2)
    assert ids(numpys) == ids(torchs)
    for one in wanted:
        for ours, theirs in zip(numpys[one], torchs[one], strict=True):
            # transformers takes norms and rotations in float32, whatever the type of the weights.
            assert theirs.logprob == pytest.approx(ours.logprob, abs=5e-5)
            assert [token for token, _ in theirs.top] == [token for token, _ in ours.top]
            assert [logprob for _, logprob in theirs.top] == pytest.approx([p for _, p in ours.top], abs=5e-5)
            assert len(theirs.top) == one.top_logprobs


def test_a_long_prompt(torch_model: TorchModel, model: Model) -> None:
    prompt = tuple(np.random.default_rng(0).integers(10, 500, 600).tolist())
    wanted = [generation(prompt, 0, max_tokens=3), generation(prompt[:300], 1, max_tokens=3)]
    assert ids(generate(ContinuousBatch(torch_model, 2), wanted)) == ids(
        generate(ContinuousBatch(model, 2), wanted)
    )


ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "mistral, every layer sliding": ("MistralConfig", {"sliding_window": 8}),
    "gemma 3, some layers sliding": (
        "Gemma3TextConfig",
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt-neox": ("GPTNeoXConfig", {"num_key_value_heads": 4}),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    torch.manual_seed(0)
    kind, changes = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**{**SIZES, **changes})
    network = transformers.AutoModelForCausalLM.from_config(config).to(torch.float64)
    prompts = [tuple(range(3, 3 + length)) for length in (5, 21, 12, 1)]
    wanted = [generation(p, s, max_tokens=12, stop_tokens=frozenset({1})) for s, p in enumerate(prompts)]
    tokens = generate(ContinuousBatch(TorchModel(network), 3), wanted)
    for one, sampled in tokens.items():
        assert_probabilities(network, one.prompt, sampled, 1e-5)


def assert_probabilities(
    network: Any, prompt: tuple[int, ...], sampled: list[SampledToken], tolerance: float
) -> None:
    """Each token's log-probability is the one of a single pass over the whole text."""
    text = torch.tensor([[*prompt, *(token.id for token in sampled)]])
    with torch.no_grad():
        log_probs = network(input_ids=text).logits[0].double().log_softmax(-1)
    places = range(len(prompt) - 1, text.shape[1] - 1)
    expected = [float(log_probs[at, token.id]) for at, token in zip(places, sampled, strict=True)]
    assert [token.logprob for token in sampled] == pytest.approx(expected, abs=tolerance)


def test_the_cache_takes_what_its_sequences_need() -> None:
    network = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))
    batch = ContinuousBatch(TorchModel(network), 4, kept=2)
    shape = {"layers": 2, "width": 2 * 2 * 8, "number_bytes": 4}
    wanted = [generation((7,) * 250, s, max_tokens=6, stop_tokens=frozenset()) for s in range(6)]
    batch.admit(wanted[:1])
    assert batch.cache_bytes == cache_bytes(1, 256, **shape)
    batch.admit(wanted[1:4])
    batch.step()
    assert batch.cache_bytes == cache_bytes(4, 256, **shape)
    batch.discard(lambda g: g in wanted[:3])
    # Ended sequences are kept in their own length; the last token of each was never read.
    assert batch.cache_bytes == cache_bytes(1, 256, **shape) + cache_bytes(3, 251, **shape)
    batch.discard(lambda _: True)
    generate(batch, wanted[4:])
    assert batch.cache_bytes == cache_bytes(4, 251, **shape) + cache_bytes(2, 255, **shape)
    batch.publish({}, 1)
    assert batch.cache_bytes == 0, "new weights make ended sequences useless"


def test_linear_attention_is_refused() -> None:
    config = transformers.Qwen3Config(**SIZES, layer_types=["full_attention"] * 2)
    config.layer_types = ["full_attention", "linear_attention"]
    network = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))
    network.config = config
    with pytest.raises(OsmosisError, match="`linear_attention`"):
        TorchModel(network)


def shifted(model: Model, by: float) -> dict[str, Any]:
    name = "model.layers.1.mlp.down_proj.weight"
    return {name: torch.from_numpy(np.asarray(model.tensors[name], np.float64)) * by}


@pytest.fixture(params=["numpy", "torch"])
def network(request: pytest.FixtureRequest, model_dir: Path) -> Model | TorchModel:
    """A network of its own: publishing changes it."""
    return (
        Model.load(model_dir) if request.param == "numpy" else TorchModel.load(model_dir, dtype=torch.float64)
    )


def test_probabilities_across_an_update(
    network: Model | TorchModel, model: Model, model_dir: Path, prompts: list[tuple[int, ...]]
) -> None:
    batch: ContinuousBatch = ContinuousBatch(network, 4)
    wanted = [generation(p, s, max_tokens=9, stop_tokens=frozenset()) for s, p in enumerate(prompts[:3])]
    late = generation(prompts[0], 7, max_tokens=4, stop_tokens=frozenset())
    tokens: Tokens = {one: [] for one in (*wanted, late)}

    def note(emissions: list[Emission]) -> None:
        for emission in emissions:
            tokens[emission.generation].append(emission.token)

    note(batch.admit(wanted))
    note(batch.step())
    batch.publish(shifted(model, 1.5), 1)
    note(batch.admit([late]))  # its prompt is known, but not by these weights
    while len(batch):
        note(batch.step())
    assert [token.version for token in tokens[wanted[0]]] == [0, 0] + [1] * 7
    assert {token.version for token in tokens[late]} == {1}
    old = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    new = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    new.load_state_dict(shifted(model, 1.5), strict=False)
    for one, sampled in tokens.items():
        first = 0 if one is late else 2
        assert_probabilities(old, one.prompt, sampled[:first], 5e-5)
        read = (*one.prompt, *(token.id for token in sampled[:first]))
        assert_probabilities(new, read, sampled[first:], 5e-5)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"model.layers.9.x.weight": np.zeros((2, 2))}, "none of this name"),
        ({"model.norm.weight": np.zeros(3)}, "shape"),
    ],
)
def test_weights_that_do_not_fit(
    network: Model | TorchModel,
    model: Model,
    prompts: list[tuple[int, ...]],
    weights: Mapping[str, Any],
    words: str,
) -> None:
    with InferenceEngine(network) as engine:
        with pytest.raises(OsmosisError, match=words):
            engine.publish({**shifted(model, 0.0), **weights}, 1)
        tokens = answer(engine, generation(prompts[0], 3))
    assert {token.version for token in tokens} == {0}
    untouched = generate(ContinuousBatch(model, 1), [generation(prompts[0], 3)])
    assert [token.id for token in tokens] == ids(untouched)[0]


def answer(engine: InferenceEngine, wanted: Generation) -> list[SampledToken]:
    heard = Recorder()
    heard.submit(engine, [wanted])
    assert heard.finished.wait(WAIT_S)
    return heard.tokens[wanted]


CUDA_ERROR = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB."
CPU_ERROR = (
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes. Error code 12"
)


@pytest.mark.parametrize("during", ["sampling", "publishing", "loading"])
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_lack_of_memory_is_a_sentence(
    kind: str, during: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(CUDA_ERROR) if kind == "cuda" else RuntimeError(CPU_ERROR)

    if during == "loading":
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
        with pytest.raises(OsmosisError, match=r"cannot be loaded: 2\.00 GiB could not be allocated"):
            TorchModel.load(model_dir)
        return
    network = TorchModel.load(model_dir)
    heard = Recorder()
    monkeypatch.setattr(network, "load_weights" if during == "publishing" else "_forward", fail)
    with InferenceEngine(network) as engine:
        if during == "publishing":
            with pytest.raises(OsmosisError, match=r"ran out of memory: 2\.00 GiB"):
                engine.publish({}, 1)
        else:
            heard.submit(engine, [generation((1, 2), 0)])
            assert heard.finished.wait(WAIT_S) and "ran out of memory: 2.00 GiB" in str(heard.error)
        engine._thread.join(WAIT_S)
        assert engine.failure is not None and "rollout_batch_size" in (engine.failure.hint or "")
    assert "Traceback" not in caplog.text


CALL = {"type": "function", "function": {"name": "multiply", "arguments": '{"a":12,  "b": 34}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be careful. Ünïcode."},
    *question(),
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "408", "tool_call_id": "c"},
]


@pytest.fixture(scope="module")
def pretrained(model_dir: Path) -> PretrainedChat:
    return PretrainedChat.load(model_dir)


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("tools", [[], [multiply_tool()]])
def test_pretrained_and_built_in_chat_are_equal(
    pretrained: PretrainedChat, model_dir: Path, tools: list[dict[str, Any]], end: bool
) -> None:
    built_in = BuiltInChat(model_dir)
    for turns in range(2, len(CONVERSATION) + 1):
        text = built_in.render(CONVERSATION[:turns], tools, add_generation_prompt=end)
        assert pretrained.render(CONVERSATION[:turns], tools, add_generation_prompt=end) == text
    ids = built_in.encode(text)
    assert pretrained.encode(text) == ids
    decode = pretrained.decoder()
    assert "".join(decode([token], False) for token in ids) + decode([], True) == text
    assert [pretrained.token_bytes(i) for i in ids] == [built_in.token_bytes(i) for i in ids]
    assert pretrained.token_id("</tool_call>") == built_in.token_id("</tool_call>") is not None


def test_a_template_that_expects_mappings(model_dir: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert PretrainedChat(tokenizer).render(CONVERSATION, []) == '{"a": 12, "b": 34}'
    broken = {**CALL, "function": {"name": "multiply", "arguments": "{12"}}
    assert PretrainedChat(tokenizer).render([{"role": "assistant", "tool_calls": [broken]}], []) == '"{12"'


def test_messages_that_the_template_refuses(model_dir: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateError, match="roles must alternate"):
        PretrainedChat(tokenizer).render(CONVERSATION, [])


def test_a_model_without_a_chat_template(model_dir: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = None
    with pytest.raises(OsmosisError, match="no chat template"):
        PretrainedChat(tokenizer)


def test_a_vocabulary_without_bytes() -> None:
    pieces = ["<unk>", "▁Hello", "▁world", "!", "<0xC3>", "<0xA9>"]
    raw = RawTokenizer(
        models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    chat = PretrainedChat(
        transformers.PreTrainedTokenizerFast(tokenizer_object=raw, chat_template="{{ messages[0].content }}")
    )
    decode = chat.decoder()
    assert (
        "".join([*(decode([token], False) for token in [1, 2, 3, 4, 5]), decode([], True)]) == "Hello world!é"
    )


IDS = np.array([[1, 60, 90, 120, 200, 250]])


def policy(dtype: Any, size: float) -> Any:
    """The tiny model with an adapter whose updates are about so large, as after a few steps at a small rate."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=dtype)
    made = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    for name, parameter in made.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            parameter.data = parameter.data.float()
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape) * size
    return made.eval()


def logits(model: TorchModel) -> Any:
    cache = model.new_cache(1)
    return model.extend(cache, slice(0, 1), IDS, np.zeros(1, np.int64), np.array([IDS.shape[1] - 1])).float()


def served_state(state: Any) -> Any:
    served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16))
    assert served.rounds_weights
    served.load_weights(dict(state))
    return logits(served)


def test_an_adapter_in_bfloat16_equals_the_learner() -> None:
    learned = policy(torch.bfloat16, size=1e-2)
    with torch.no_grad():
        wanted = learned(input_ids=torch.from_numpy(IDS)).logits[:, -1].float()
    untouched = served_state({})
    beside, merged = served_state(low_rank_updates(learned)), served_state(merged_tensors(learned))
    assert float((beside - untouched).abs().max()) > 0.1, "the adapter changes something"
    gaps = [float((found - wanted).abs().mean()) for found in (beside, merged)]
    assert gaps[0] < gaps[1] / 2


def test_a_later_adapter_replaces_the_earlier_one() -> None:
    served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16))
    before = logits(served)
    for size in (1e-2, 0.0):
        served.load_weights(dict(low_rank_updates(policy(torch.bfloat16, size=size))))
    torch.testing.assert_close(logits(served), before)


def test_merged_and_unmerged_adapters_in_float32() -> None:
    learned = policy(torch.float32, size=1e-2)
    found = []
    for state in (low_rank_updates(learned), merged_tensors(learned)):
        served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32))
        assert not served.rounds_weights
        served.load_weights(dict(state))
        found.append(logits(served))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


def test_an_adapter_that_does_not_fit() -> None:
    served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16))
    before = logits(served)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(OsmosisError, match="does not fit"):
        served.load_weights({name: LowRankUpdate(torch.ones(2, 3), torch.ones(4, 2), 1.0)})
    torch.testing.assert_close(logits(served), before)


def test_a_deployed_adapter_is_merged(tmp_path: Path) -> None:
    learned = policy(torch.float32, size=1e-2)
    save_adapter(learned, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        served = TorchModel.load(MODEL_DIR, adapter=tmp_path)
    with torch.no_grad():
        wanted = learned(input_ids=torch.from_numpy(IDS)).logits[:, -1]
    torch.testing.assert_close(logits(served), wanted, atol=1e-4, rtol=1e-3)
