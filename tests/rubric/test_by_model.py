"""The judge that is awaited (`model=`), and how it is told apart from the one that is waited for (`model_info=`)."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import osmosis_ai
from osmosis_ai.eval import rubric as line_03
from osmosis_ai.eval.rubric import RubricResult, engine, types
from osmosis_ai.eval.rubric import evaluate_rubric as awaited
from osmosis_ai.rollout.judge_calls import counting_judge_calls
from osmosis_ai.rubric.api import judge_by_name
from tests.rubric.serving import serving
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.usefixtures("without_waiting", "no_keys")

GOOD = Reply('{"score": 0.5, "explanation": "fine"}')
ASKED = {"solution_str": "hello", "rubric": "Be kind."}


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (
        *engine.DEFAULT_API_KEY_ENV.values(),
        "FOO_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
    ):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInModel]:
    with serving(StandInModel(lambda _: GOOD)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


async def test_the_result_is_a_plain_dataclass_of_score_and_explanation(model: StandInModel) -> None:
    result = await awaited(**ASKED, model="openai/gpt-5.4", api_key="k-1")
    assert dataclasses.asdict(result) == {"score": 0.5, "explanation": "fine"}
    assert RubricResult(1.0, "x") == RubricResult(score=1.0, explanation="x")
    assert model.requests[0].headers["Authorization"] == "Bearer k-1"
    assert model.requests[0].body["model"] == "gpt-5.4"


async def test_everything_that_the_judge_may_be_shown_reaches_it(model: StandInModel) -> None:
    model.respond = lambda _: Reply('<think>hm</think>```json\n{"score": 99, "explanation": "great"}\n```')
    result = await awaited(
        **ASKED,
        model="gpt-5.4",
        ground_truth="truth",
        original_input="question",
        metadata={"k": "v"},
        score_min=1.0,
        score_max=5.0,
        api_key="k",
        timeout=9,
        system_prompt="Be strict.",
    )
    assert result.score == 5.0
    system, user = (message["content"] for message in model.requests[0].body["messages"])
    assert system.startswith("Be strict.")
    for shown in ("Be kind.", "hello", "truth", "question", '"k": "v"', "1.0 to 5.0"):
        assert shown in user


@pytest.mark.parametrize(
    ("model_name", "provider", "timeout_s"),
    [
        ("gpt-5.4", "openai", 30.0),
        ("openai/gpt-5.4", "openai", 30.0),
        ("o1-mini", "openai", 30.0),
        ("o3-mini", "openai", 30.0),
        ("o4-mini", "openai", 30.0),
        ("claude-opus", "anthropic", 30.0),
        ("gemini-3", "gemini", 45.0),
        ("grok-3", "xai", 45.0),
        ("grok-4-1", "xai", 60.0),
        ("cerebras/m", "cerebras", 60.0),
        ("openrouter/a/m", "openrouter", 60.0),
    ],
)
def test_provider_and_timeout_follow_from_the_name(model_name: str, provider: str, timeout_s: float) -> None:
    judge = judge_by_name(model_name, "k", None)
    assert (judge.provider, judge.timeout_s) == (provider, timeout_s)
    assert judge_by_name(model_name, "k", 7.0).timeout_s == 7.0


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        # Every line mends the first problem of the line above.
        ({"solution_str": "", "score_max": -1.0}, TypeError, "`solution_str`"),
        ({"rubric": 3, "score_max": -1.0}, TypeError, "`rubric`"),
        ({"score_max": -1.0}, ValueError, "`score_max`"),
        ({"score_min": 1.0}, ValueError, "`score_max`"),
        ({}, osmosis_ai.MissingAPIKeyError, "OPENAI_API_KEY"),
        ({"api_key": " "}, osmosis_ai.MissingAPIKeyError, "OPENAI_API_KEY"),
        ({"model": "claude-opus"}, osmosis_ai.MissingAPIKeyError, "ANTHROPIC_API_KEY"),
        ({"model": "bedrock/m"}, osmosis_ai.MissingAPIKeyError, "AWS_ACCESS_KEY_ID"),
        ({"model": "groq/m"}, osmosis_ai.MissingAPIKeyError, "GROQ_API_KEY"),
        ({"model": "foo/m"}, osmosis_ai.MissingAPIKeyError, "FOO_API_KEY"),
        ({"model": "my-own"}, osmosis_ai.MissingAPIKeyError, "provider is not known"),
        ({"model": "my-own", "api_key": "k"}, osmosis_ai.ProviderRequestError, "names no known provider"),
        ({"model": " "}, TypeError, "`model`"),
        ({"api_key": "k", "timeout": -1}, ValueError, "`timeout`"),
    ],
)
async def test_what_is_wrong_is_found_in_the_documented_order(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await awaited(**{**ASKED, "model": "openai/gpt-5.4", **changed})


async def test_a_failure_names_provider_and_model_and_shows_no_key(model: StandInModel) -> None:
    model.respond = lambda _: error_reply(404, "The model does not exist: k-secret-1", code="model_not_found")
    with pytest.raises(osmosis_ai.ModelNotFoundError) as caught:
        await awaited(**ASKED, model="openai/gpt-9", api_key="k-secret-1")
    error = caught.value
    assert isinstance(error, osmosis_ai.ProviderRequestError) and isinstance(error, RuntimeError)
    assert str(error) == f"Provider 'openai' request for model 'openai/gpt-9' failed. {error.detail}"
    assert (error.provider, error.model, error.category) == ("openai", "openai/gpt-9", "not_found")
    assert "k-secret-1" not in str(error)
    model.respond = lambda _: Reply("no idea")
    with pytest.raises(osmosis_ai.ProviderRequestError, match="not valid JSON"):
        await awaited(**ASKED, model="openai/gpt-9", api_key="k")


async def test_a_key_of_two_lines_is_refused_without_showing_it(model: StandInModel) -> None:
    with pytest.raises(osmosis_ai.ProviderRequestError, match="control character") as caught:
        await awaited(**ASKED, model="openai/gpt-5.4", api_key="k-secret-1\nk-secret-2")
    assert "k-secret" not in f"{caught.value}{caught.value.hint}"
    assert not model.requests


async def test_choices_that_are_no_list_are_no_score(model: StandInModel) -> None:
    model.respond = lambda _: Reply(body={"choices": 5})
    with pytest.raises(osmosis_ai.ProviderRequestError, match="not a chat completion"):
        await awaited(**ASKED, model="openai/gpt-5.4", api_key="k")


async def test_an_unreadable_reply_is_asked_for_once_more(model: StandInModel) -> None:
    model.script(Reply("well"), GOOD)
    assert (await awaited(**ASKED, model="gpt-5.4", api_key="k")).score == 0.5


async def test_both_forms_go_by_one_name(model: StandInModel) -> None:
    info = {"provider": "openai", "model": "gpt-4o", "api_key": "k", "api_base": model.base_url}
    evaluate_rubric = osmosis_ai.evaluate_rubric
    assert evaluate_rubric("Be kind.", "hello", info) == 0.5
    assert evaluate_rubric(rubric="Be kind.", solution_str="hello", model_info=info) == 0.5
    assert evaluate_rubric("Be kind.", "hello", info, return_details=True)["explanation"] == "fine"
    assert await evaluate_rubric(**ASKED, model="gpt-4o", api_key="k") == RubricResult(0.5, "fine")
    both: Any = evaluate_rubric
    assert await both(**ASKED, model="gpt-4o", model_info=None, api_key="k") == RubricResult(0.5, "fine")
    for given in ({}, {"model": None}, {"model": "gpt-4o", "model_info": info}):
        with pytest.raises(TypeError, match=r"(?s)model_info=\{.*await evaluate_rubric\(.*model=") as caught:
            both(**ASKED, **given)
        assert ("not both" in str(caught.value)) == (len(given) == 2)
    with pytest.raises(TypeError, match="positional"):
        await both("Be kind.", "hello", model="gpt-4o")
    with pytest.raises(TypeError, match="return_details"):
        await both(**ASKED, model="gpt-4o", return_details=True)


def test_the_names_of_03_are_where_its_users_know_them() -> None:
    names = ["RubricResult", "MissingAPIKeyError", "ProviderRequestError", "ModelNotFoundError"]
    for module in (osmosis_ai, line_03, types):
        for name in names:
            assert getattr(module, name) is getattr(types, name)
    assert line_03.evaluate_rubric is engine.evaluate_rubric
    assert inspect.iscoroutinefunction(line_03.evaluate_rubric), "mock.patch makes an AsyncMock of it"
    assert engine.DEFAULT_REQUEST_TIMEOUT_SECONDS == 30.0
    assert engine.DEFAULT_API_KEY_ENV["google"] == "GEMINI_API_KEY"
    kinds = {parameter.kind for parameter in inspect.signature(line_03.evaluate_rubric).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    error = osmosis_ai.ProviderRequestError("p", "m", " why ")
    assert (error.provider, error.model, error.detail) == ("p", "m", "why")
    assert str(error) == "Provider 'p' request for model 'm' failed. why"


@pytest.mark.e2e
def test_importing_the_package_and_its_names_loads_no_judge() -> None:
    script = (
        "import sys, osmosis_ai, osmosis_ai.eval.rubric\n"
        "assert not [name for name in sys.modules if name.startswith('osmosis_ai.rubric')]\n"
        "from osmosis_ai import RubricResult, evaluate_rubric\n"
        "heavy = {'litellm', 'aiohttp', 'httpx', 'stamina', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.integration
async def test_a_thousand_tasks_share_one_limiter_under_429s_and_all_are_scored(model: StandInModel) -> None:
    model.latency_s = 0.01
    is_full = asyncio.Event()

    def respond(_: Any) -> Reply:
        if model.in_flight < 16:
            return Reply(GOOD.content, wait_for=is_full)
        is_full.set()
        return error_reply(429, "too many at once", retry_after="0")

    model.respond = respond
    with counting_judge_calls() as asked:
        results = await asyncio.gather(
            *(
                awaited(solution_str=f"answer {n}", rubric="Be kind.", model="gpt-4o", api_key="k")
                for n in range(1000)
            )
        )
    assert [result.score for result in results] == [0.5] * 1000
    assert asked.calls == 1000 and len(asked.judgements) < 100
    refused = model.calls - 1000
    assert 0 < refused < 1000, "who is refused slows down"
    assert model.most_in_flight <= 256


async def test_outside_of_a_grading_nothing_is_collected_and_inside_failures_count_too(
    model: StandInModel,
) -> None:
    await awaited(**ASKED, model="gpt-4o", api_key="k")
    with counting_judge_calls() as asked:
        model.script(Reply(GOOD.content, usage={"prompt_tokens": 90, "completion_tokens": 10, "cost": 0.002}))
        await awaited(**ASKED, model="gpt-4o", api_key="k")
        info = {"provider": "openai", "model": "gpt-4o", "api_key": "k"}
        assert await asyncio.to_thread(osmosis_ai.evaluate_rubric, "Be kind.", "hello", info) == 0.5
        model.respond = lambda _: error_reply(400, "no, k")
        with pytest.raises(osmosis_ai.ProviderRequestError):
            await awaited(**ASKED, model="gpt-4o", api_key="k")
    assert asked.calls == 3
    assert asked.cost_usd is not None and asked.cost_usd >= 0.002
    assert [sorted(each) for each in asked.judgements] == [["explanation", "model", "score"]] * 2 + [
        ["error", "model"]
    ]
