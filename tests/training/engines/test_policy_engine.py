"""Learner, engine and saved adapter are one policy; whatever samples from another distribution is refused."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.datasets import DatasetRow
from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import Emission, Generation, InferenceEngine, Listener, SampledToken
from osmosis_ai.inference.model import Model, load_adapted_model
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.engines.logprob_check import (
    TOKENS,
    DistributionMismatchError,
    Probe,
    probe,
    probe_prompts,
)
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine, PolicyEngine
from osmosis_ai.training.engines.recording import Recording
from osmosis_ai.training.objective.sequences import TokenSequence
from tests.inference.call_templates import TEMPLATES, UNKNOWN_CALLS, template
from tests.lazily import lazily
from tests.training.policy_world import (
    END,
    MODEL_DIR,
    MULTIPLY,
    PolicyWorld,
    chat_with_template,
    policy_world,
    question,
)
from tests.training.standin_vllm import ServingStandIn, connect, standing_in
from tests.training.truncating_model import QWEN25, TruncatingModel

with lazily("torch"):
    import torch

    from osmosis_ai.inference.torch_engine import TorchModel
    from osmosis_ai.training.learner.learner import Learner
    from osmosis_ai.training.runs.trainer import chat_format_of
    from tests.training.learner_builders import tiny_learner


@pytest.fixture(params=["numpy", "torch, float64", "torch, float32"])
def engine(request: pytest.FixtureRequest) -> Iterator[InProcessPolicyEngine]:
    makers: dict[str, Any] = {
        "numpy": lambda: InferenceEngine(Model.load(MODEL_DIR)),
        "torch, float64": lambda: InferenceEngine(TorchModel.load(MODEL_DIR, dtype=torch.float64)),
        "torch, float32": lambda: InferenceEngine(TorchModel.load(MODEL_DIR)),
    }
    with makers[request.param]() as running:
        yield InProcessPolicyEngine(running)


async def sample(engine: InProcessPolicyEngine, count: int = 4) -> list[TokenSequence]:
    """Answers to different questions, recorded."""
    chat, sequences = BuiltInChat(MODEL_DIR), []
    for number in range(count):
        recording = Recording(f"rollout-{number}", chat, frozenset({END}))
        prompt = recording.prompt(question(11 + number, 34), [MULTIPLY])
        feed = TokenFeed(engine, [Generation(prompt.ids, 40, number, frozenset({END}))], every_token=False)
        emissions = await asyncio.wait_for(feed.read(), 300)
        tokens = [emission.token for _, emission in emissions]
        recording.add(prompt, tokens, {"role": "assistant", "content": "?"})
        sequences += recording.recorded().sequences
    return sequences


def largest_gap(found: list[list[float]], sequences: list[TokenSequence]) -> float:
    return max(
        abs(theirs - ours)
        for row, sequence in zip(found, sequences, strict=True)
        for theirs, ours, own in zip(row, sequence.logprobs, sequence.mask, strict=True)
        if own
    )


async def test_what_is_sampled_has_the_learners_probabilities_before_and_after_an_update(
    engine: InProcessPolicyEngine, tmp_path: Path
) -> None:
    learner = tiny_learner()
    before = await sample(engine)
    assert largest_gap(learner.logprobs(before), before) < 1e-4
    after = before
    for version in (1, 2):
        learner.step(after, [1.0, -1.0] * 2)
        await engine.publish(learner, version)
        after = await sample(engine)
    assert largest_gap(learner.logprobs(after), after) < 1e-4
    assert {version for s in after for version, own in zip(s.versions, s.mask, strict=True) if own} == {2}
    assert largest_gap(learner.logprobs(before), before) > 1e-3, "the updates changed nothing"
    learner.save_adapter(tmp_path)
    with InferenceEngine(load_adapted_model(MODEL_DIR, tmp_path)) as served:
        again = await sample(InProcessPolicyEngine(served))
    assert [sequence.ids for sequence in again] == [sequence.ids for sequence in after]
    assert largest_gap([sequence.logprobs for sequence in again], after) < 1e-4


CHAT = BuiltInChat(MODEL_DIR)
ROWS = [DatasetRow(i, question(11 + i, 34), "374", None) for i in range(32)]


@pytest.fixture(scope="module")
def learner() -> Learner:
    return tiny_learner()


async def probed(engine: PolicyEngine, learner: Learner, **settings: Any) -> Probe:
    prompts = probe_prompts(ROWS, CHAT, longest=400)
    [found] = await probe(engine, learner, prompts, TrainingSettings(max_response_length=64, **settings))
    return found


async def probed_model(model: Any, learner: Learner, **settings: Any) -> Probe:
    with InferenceEngine(model) as engine:
        return await probed(InProcessPolicyEngine(engine), learner, **settings)


async def test_an_engine_that_draws_what_is_learned_passes(learner: Learner) -> None:
    found = await probed_model(Model.load(MODEL_DIR), learner)
    assert found.tokens >= TOKENS
    assert found.mean_abs_gap < 1e-4
    found.require_agreement(float32=True)
    found.require_agreement(float32=False)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"top_p": 0.95}, "leaves out unlikely tokens"),
        ({"top_k": 20}, "leaves out unlikely tokens"),
        ({"repetition_penalty": 1.05}, "a penalty"),
    ],
)
async def test_an_engine_that_truncates_or_penalises_is_refused(
    learner: Learner, engine: dict[str, Any], words: str
) -> None:
    found = await probed_model(TruncatingModel(Model.load(MODEL_DIR), **engine), learner)
    with pytest.raises(DistributionMismatchError, match=words) as refused:
        found.require_agreement(float32=True)
    assert "--generation-config vllm" in str(refused.value.hint)


async def test_an_engine_that_reports_the_probabilities_from_before_it_truncated_is_refused(
    learner: Learner,
) -> None:
    found = await probed_model(Model.load(MODEL_DIR), learner, rollout_top_p=0.8)
    assert found.mean_abs_gap < 1e-4, "the log-probabilities alone say nothing"
    with pytest.raises(DistributionMismatchError, match="other probabilities than it samples with"):
        found.require_agreement(float32=True)
    # Of a truncation that the run itself asks for, its settings warn.
    found.require_agreement(float32=True, truncated=True)


def test_rounding_that_leans_to_one_side_is_no_truncation() -> None:
    fair = {"tokens": 600, "surprise": 0.01, "surprise_stderr": 0.03}
    Probe(mean_abs_gap=2e-6, mean_gap=1e-6, gap_stderr=1e-8, **fair).require_agreement(float32=True)
    Probe(mean_abs_gap=1e-2, mean_gap=9e-4, gap_stderr=1e-4, **fair).require_agreement(float32=False)
    with pytest.raises(DistributionMismatchError):
        Probe(mean_abs_gap=1e-2, mean_gap=9e-3, gap_stderr=1e-3, **fair).require_agreement(float32=False)


async def test_what_a_model_would_have_a_server_fill_in_changes_nothing(
    learner: Learner, tmp_path: Path
) -> None:
    async with (
        standing_in(ServingStandIn, generation_config=QWEN25) as server,
        connect(server, tmp_path) as engine,
    ):
        found = await probed(engine, learner)
    found.require_agreement(float32=True)
    asked = server.requests[-1]
    assert (asked["top_p"], asked["top_k"], asked["min_p"]) == (1.0, 0, 0.0)
    assert (asked["repetition_penalty"], asked["presence_penalty"], asked["frequency_penalty"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("forced", "temperature"),
    [({"top_k": 20}, 1.0), ({"temperature": 1.0}, 0.7)],
    ids=["top_k", "temperature"],
)
async def test_a_server_that_does_not_do_as_it_is_told_is_refused(
    tmp_path: Path, forced: dict[str, Any], temperature: float
) -> None:
    learner = tiny_learner(rollout_temperature=temperature)
    async with standing_in(ServingStandIn, forced=forced) as server, connect(server, tmp_path) as engine:
        found = await probed(engine, learner, rollout_temperature=temperature)
    with pytest.raises(DistributionMismatchError, match=next(iter(forced))):
        found.require_agreement(float32=True)


@pytest.mark.parametrize("applies", [True, False])
async def test_a_server_that_does_not_apply_adapters_is_refused(applies: bool, tmp_path: Path) -> None:
    learner = tiny_learner()
    before = learner.state_dict()["adapter"]
    async with standing_in(ServingStandIn) as server, connect(server, tmp_path) as engine:
        with learner.changed_adapter():
            await engine.publish(learner, 1)
            server.loaded = server.loaded if applies else dict.fromkeys(server.loaded, "")
            found = await probed(engine, learner)
    with nullcontext() if applies else pytest.raises(DistributionMismatchError, match="ignores the adapter"):
        found.require_agreement(float32=True, adapter=True)
    after = learner.state_dict()["adapter"]
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


ARGUMENTS = {"a": 12, "b": 34}
SPELLED = '{"a": 12, "b": 34}'
DS_BEGIN, DS_END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
# A call of multiply as the template of that name writes it, and in another spelling.
REPLIES = {
    "hermes": (
        f'<tool_call>\n{{"name": "multiply", "arguments": {SPELLED}}}\n</tool_call>',
        '<tool_call>{"arguments":{"b":34,"a":12},"name":"multiply"}</tool_call>',
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=multiply>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\n34\n</parameter>\n"
        "</function>\n</tool_call>",
        "<function=multiply><parameter=b>34</parameter><parameter=a>12</parameter></function>",
    ),
    "mistral": (
        f'[TOOL_CALLS][{{"name": "multiply", "arguments": {SPELLED}, "id": "abcdefgh1"}}]',
        f'[TOOL_CALLS] [{{"name": "multiply", "arguments": {SPELLED}}}]',
    ),
    "mistral_args": (
        f"[TOOL_CALLS]multiply[ARGS]{SPELLED}",
        f"[TOOL_CALLS]multiply[CALL_ID]abcdefgh1[ARGS]{SPELLED}",
    ),
    "deepseek_v3": (
        f"{DS_BEGIN}function<｜tool▁sep｜>multiply\n```json\n{SPELLED}\n```{DS_END}",
        f"{DS_BEGIN}multiply<｜tool▁sep｜>{SPELLED}{DS_END}",
    ),
    "deepseek_v31": (
        f"{DS_BEGIN}multiply<｜tool▁sep｜>{SPELLED}{DS_END}",
        f"{DS_BEGIN}multiply<｜tool▁sep｜> {SPELLED} {DS_END}",
    ),
    "llama3_json": (
        f'{{"name": "multiply", "parameters": {SPELLED}}}',
        '<|python_tag|>{"name": "multiply", "parameters": {"a":12,"b":34}}',
    ),
    "pythonic": ("[multiply(a=12, b=34)]", "[multiply(b = 34, a = 12)]"),
}

LLAMA = REPLIES["llama3_json"][0]


class Accepted:
    def cancel(self) -> None:
        pass


@asynccontextmanager
async def scripted(style: str, replies: Sequence[str], *, source: str = "") -> AsyncIterator[PolicyWorld]:
    """A policy that gives scripted replies, under one of the templates."""
    said = iter(replies)

    def submit(generations: Sequence[Generation], listener: Listener) -> Accepted:
        world.engine.asked += generations
        for generation in generations:
            for token in sampled_ids(world, next(said)):
                end = "stop" if token == END else None
                listener.emitted(Emission(generation, SampledToken(token, -0.5), end))
        return Accepted()

    async with policy_world(chat=chat_with_template(source or TEMPLATES[style][1])) as world:
        world.engine.submit = submit  # type: ignore[method-assign]
        yield world


def sampled_ids(world: PolicyWorld, text: str) -> list[int]:
    """One token for each byte where that is possible: never what the tokenizer would make of the text."""
    marks = {world.chat.token_id(mark): mark for mark in ("<tool_call>", "</tool_call>")}
    ids = []
    for token in world.chat.encode(text):
        raw = world.chat.token_bytes(token).decode(errors="replace")
        single = [world.chat.encode(character) for character in raw] if token not in marks else []
        ids += [i for one in single for i in one] if single and "\ufffd" not in raw else [token]
    return [*ids, END]


async def two_turns(world: PolicyWorld, *, stream: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask, answer the call, ask again; the two messages of the assistant."""
    first = await streamed(world, question()) if stream else await world.reply(question())
    [call, *_] = first["tool_calls"]
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "408"}
    second = await world.reply([*question(), first, answer])
    return first, second


async def streamed(world: PolicyWorld, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A message, put together from the pieces of a stream as an agent does it."""
    deltas = [chunk["choices"][0]["delta"] for chunk in await world.events(messages)]
    calls = [
        {key: value for key, value in call.items() if key != "index"}
        for delta in deltas
        for call in delta.get("tool_calls") or ()
    ]
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


def assert_one_sequence_of_what_was_sampled(world: PolicyWorld, replies: Sequence[str]) -> int:
    """Of all that was recorded; return how many turns the template writes differently."""
    recorded = world.bridge.take("r1")
    [sequence] = recorded.sequences
    assert recorded.forks == 0
    first, second = (list(generation.prompt) for generation in world.engine.asked)
    sampled = [sampled_ids(world, reply) for reply in replies]
    assert first == world.chat.encode(world.chat.render(question(), [MULTIPLY]))
    assert second[: len(first) + len(sampled[0])] == first + sampled[0]
    assert sequence.ids == second + sampled[1]
    given = len(second) - len(first) - len(sampled[0])
    assert sequence.mask == [0] * len(first) + [1] * len(sampled[0]) + [0] * given + [1] * len(sampled[1])
    between = world.chat.decoder()(second[len(first) + len(sampled[0]) :], True)
    assert between == "\n<|im_start|>tool\n408<|im_end|>\n<|im_start|>assistant\n"
    return recorded.realigned


AS_WRITTEN = [(style, spelled[0]) for style, spelled in REPLIES.items()]
# Templates, an assistant's turn, its content, and how many turns the template writes differently (None: either).
TURNS: list[tuple[str, str, str | None, int | None]] = [
    # The template of DeepSeek V3 writes a call only beside a content of null, which transformers keeps from it.
    *((style, text, None, 0) for style, text in AS_WRITTEN if style != "deepseek_v3"),
    *((style, spelled[1], None, 1) for style, spelled in REPLIES.items()),
    *((style, f"Let me see.\n{text}", "Let me see.\n", None) for style, text in AS_WRITTEN),
    # The template of Llama 3 has no room for a second call.
    ("llama3_json", f"{LLAMA}; {LLAMA}", f" {LLAMA}", None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("style", "text", "content", "realigned"),
    TURNS,
    ids=[f"{turn[0]}-{number}" for number, turn in enumerate(TURNS)],
)
async def test_a_turn_is_extended_in_every_template(
    style: str, text: str, content: str | None, realigned: int | None, stream: bool
) -> None:
    replies = [text, "It is 408."]
    async with scripted(style, replies) as world:
        first, second = await two_turns(world, stream=stream)
        [call] = first["tool_calls"]
        assert call["function"]["name"] == "multiply"
        assert json.loads(call["function"]["arguments"]) == ARGUMENTS
        assert (first["content"], second["content"]) == (content, "It is 408.")
        found = assert_one_sequence_of_what_was_sampled(world, replies)
        assert realigned is None or found == realigned


async def test_calls_that_nobody_can_read_are_the_agents_to_see_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = '<call>multiply: {"a": 12, "b": 34}</call>'
    async with scripted("", [text, text], source=template(UNKNOWN_CALLS)) as world:
        for _ in range(2):
            reply = await world.reply(question())
            assert reply["content"] == text
            assert "tool_calls" not in reply
    assert [record.levelname for record in caplog.records if "not made for tools" in record.message] == [
        "WARNING"
    ]


def test_a_run_reads_calls_in_the_format_that_it_is_told_and_notes_a_template_without_one(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    (folder / "chat_template.jinja").write_text(template(UNKNOWN_CALLS))
    for model, chosen, expected, notes in (
        (str(folder), None, None, 1),
        (str(folder), "pythonic", "pythonic", 0),
        ("osmosis/tiny", None, "hermes", 0),
        ("osmosis/tiny", "mistral", "mistral", 0),
    ):
        told: list[str] = []
        spec: Any = SimpleNamespace(model_path=model, settings=TrainingSettings(tool_call_format=chosen))
        style = chat_format_of(spec, note=told.append).tool_calls
        style.reader([MULTIPLY])
        assert (style.format and style.format.name, len(told)) == (expected, notes)


async def test_each_of_several_servers_is_compared(learner: Learner, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        forced: list[dict[str, Any]] = [{}, {}, {"top_k": 20}, {}]
        servers = [await stack.enter_async_context(standing_in(ServingStandIn, forced=f)) for f in forced]
        engine = await stack.enter_async_context(connect(servers, tmp_path))
        prompts = probe_prompts(ROWS, CHAT, longest=400)
        found = await probe(engine, learner, prompts, TrainingSettings(max_response_length=64))
    assert [str(each.server) for each in found] == [server.url for server in servers]
    for each in (*found[:2], found[3]):
        each.require_agreement(float32=True)
    with pytest.raises(DistributionMismatchError, match=rf"sampled tokens of {servers[2].url}, .*top_k"):
        found[2].require_agreement(float32=True)


def test_log_probabilities_that_are_not_finite_never_agree() -> None:
    found = Probe(
        600, mean_abs_gap=math.nan, mean_gap=math.nan, gap_stderr=math.nan, surprise=0, surprise_stderr=1
    )
    with pytest.raises(DistributionMismatchError, match="not finite"):
        found.require_agreement(float32=True)
