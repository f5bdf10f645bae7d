"""`evaluate_rubric` in both forms: the one that is waited for (`model_info=`) and the one that is awaited (`model=`)."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import osmosis_ai
from osmosis_ai import (
    MissingAPIKeyError,
    ModelNotFoundError,
    ProviderRequestError,
    aevaluate_rubric,
    evaluate_rubric,
)
from osmosis_ai.eval import rubric as line_03
from osmosis_ai.eval.rubric import RubricResult, engine, types
from osmosis_ai.eval.rubric import evaluate_rubric as awaited
from osmosis_ai.rollout.extra_fields import counting_judge_calls
from osmosis_ai.rubric.api import judge_by_name
from osmosis_ai.rubric_eval import DEFAULT_API_KEY_ENV, ensure_api_key_available
from tests.rubric.serving import serving
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.usefixtures("without_waiting", "no_keys")

GOOD = Reply('{"score": 0.5, "explanation": "fine"}')
ASKED = {"solution_str": "hello", "rubric": "Be kind."}


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*DEFAULT_API_KEY_ENV.values(), "FOO_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def model(no_keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInModel]:
    with serving(StandInModel(lambda _: GOOD)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


@pytest.fixture
def info(model: StandInModel) -> dict[str, Any]:
    return {"provider": "openai", "model": "gpt-4o", "api_key": "k-1234", "api_base": model.base_url}


def test_arguments_win_over_model_info(model: StandInModel, info: dict[str, Any]) -> None:
    info |= {"score_min": 0, "score_max": 5, "original_input": "from info", "system_prompt": " Be strict. "}
    model.respond = lambda _: Reply('{"score": 99, "explanation": "fine"}')
    assert evaluate_rubric("Be kind.", "hello", info) == 5.0
    assert evaluate_rubric("Be kind.", "hello", info, score_max=10, original_input=" given ") == 10.0
    first, second = (request.body["messages"] for request in model.requests)
    assert first[0]["content"].startswith("Be strict.\n\n")
    assert "\nfrom info\n" in first[1]["content"]
    assert "Score range: 0.0 to 10.0." in second[1]["content"]
    assert "\ngiven\n" in second[1]["content"]


VALID: dict[str, Any] = {"provider": "openai", "model": "gpt-4o", "api_key": "k-1234"}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in VALID.items() if name not in names}


@pytest.mark.parametrize(
    ("rubric", "solution", "info", "options", "error", "words"),
    [
        # Every line fixes the first problem of the line above: the order of the checks is documented.
        (" ", "", without("provider", "model", "api_key"), {"score_max": -1}, TypeError, "`provider`"),
        (" ", "", without("model", "api_key"), {"score_max": -1}, TypeError, "`model`"),
        (" ", "", without("api_key"), {"score_max": -1}, MissingAPIKeyError, 'export OPENAI_API_KEY="..."'),
        (" ", "", VALID, {"score_max": -1}, TypeError, "`rubric` must be a non-empty string, not a blank"),
        ("Be kind.", "", VALID, {"score_max": -1}, TypeError, "`solution_str`"),
        ("Be kind.", "hello", VALID, {"score_max": -1, "timeout": -1}, ValueError, "`score_max` (-1.0)"),
        ("Be kind.", "hello", VALID, {"timeout": -1}, ValueError, "`timeout`"),
        ("Be kind.", "hello", {**VALID, "score_min": 1, "score_max": 1}, {}, ValueError, "`score_max` (1.0)"),
        ("Be kind.", "hello", {**VALID, "score_min": None}, {}, TypeError, "`score_min`"),
        ("Be kind.", "hello", "openai/gpt-4o", {}, TypeError, "must be a dict with `provider` and `model`"),
        ("Be kind.", "hello", VALID, {"metadata": "x"}, TypeError, "`metadata` must be a dict or None, not"),
        ("Be kind.", "hello", VALID, {"ground_truth": 3}, TypeError, "must be a string or None, not int"),
        ("Be kind.", "hello", VALID, {"score_max": math.nan}, ValueError, "must be finite"),
        ("Be kind.", "hello", VALID, {"score_max": True}, TypeError, "must be a number, not bool"),
        ("Be kind.", "hello", {**VALID, "provider": "nobody"}, {}, ProviderRequestError, "provider 'nobody'"),
    ],
)
def test_arguments_are_checked_in_the_documented_order_before_any_call(
    rubric: str, solution: str, info: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        evaluate_rubric(rubric, solution, info, **options)
    assert words in str(caught.value)
    assert isinstance(caught.value, osmosis_ai.OsmosisError), "the command line prints it in one line"


def test_a_judge_that_does_not_answer_in_time_is_a_provider_error(
    model: StandInModel, info: dict[str, Any]
) -> None:
    model.latency_s = 30
    with pytest.raises(ProviderRequestError, match="did not answer in time"):
        evaluate_rubric("Be kind.", "hello", info, timeout=0.01)


async def test_the_async_twin_leaves_the_event_loop_free(model: StandInModel, info: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    hold = asyncio.Event()
    model.respond = lambda _: Reply(GOOD.content, wait_for=hold)
    call = asyncio.create_task(aevaluate_rubric("Be kind.", "hello", info, return_details=True))
    while not model.in_flight:  # noqa: ASYNC110 (the stand-in counts, it does not signal)
        await asyncio.sleep(0)
    assert not call.done()
    model.respond = lambda _: GOOD
    assert await aevaluate_rubric("Be kind.", "hello", info) == 0.5, "others are served meanwhile"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert loop.is_running()
    unknown: Any = {"groundtruth": "hi"}
    with pytest.raises(TypeError, match=r"evaluate_rubric\(\) got an unexpected keyword argument"):
        await aevaluate_rubric("Be kind.", "hello", info, **unknown)


def test_threads_share_one_loop_its_connections_and_its_limits(
    model: StandInModel, info: dict[str, Any]
) -> None:
    several = asyncio.Event()

    def wait_for_another(_: dict[str, Any]) -> Reply:
        if model.in_flight:
            several.set()
        return Reply(GOOD.content, wait_for=several)

    model.respond = wait_for_another
    with ThreadPoolExecutor(16) as pool:
        scores = list(pool.map(lambda n: evaluate_rubric("Be kind.", f"hello {n}", info), range(32)))
    assert scores == [0.5] * 32
    assert 1 < model.most_in_flight <= 16
    assert sum(thread.name == "osmosis-judging" for thread in threading.enumerate()) == 1


@pytest.mark.e2e
def test_a_forked_child_asks_on_its_own_and_every_process_ends_quietly(
    model: StandInModel, info: dict[str, Any]
) -> None:
    script = (
        "import json, os, sys\n"
        "from osmosis_ai import evaluate_rubric\n"
        "info = json.loads(sys.argv[1])\n"
        "assert evaluate_rubric('Be kind.', 'before', info) == 0.5\n"
        "child = os.fork()\n"
        "assert evaluate_rubric('Be kind.', 'after', info) == 0.5\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, json.dumps(info)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert model.calls == 3


def test_a_key_can_be_checked_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingAPIKeyError, match="ANTHROPIC_API_KEY"):
        ensure_api_key_available({"provider": "anthropic"})
    with pytest.raises(TypeError, match="`provider`"):
        ensure_api_key_available({})
    monkeypatch.setenv(DEFAULT_API_KEY_ENV["anthropic"], "k")
    ensure_api_key_available({"provider": "anthropic"})


# --- awaited --------------------------------------------------------------------------------


async def test_everything_that_the_judge_may_be_shown_reaches_it(model: StandInModel) -> None:
    model.respond = lambda _: Reply('<think>hm</think>```json\n{"score": 99, "explanation": "great"}\n```')
    texts = {"ground_truth": "truth", "original_input": "question", "metadata": {"k": "v"}}
    limits = {"score_min": 1.0, "score_max": 5.0, "timeout": 9, "system_prompt": "Be strict."}
    result = await awaited(**ASKED, model="gpt-5.4", api_key="k", **texts, **limits)
    assert vars(result) == {"score": 5.0, "explanation": "great"}
    system, user = (message["content"] for message in model.requests[0].body["messages"])
    assert system.startswith("Be strict.")
    for shown in ("Be kind.", "hello", "truth", "question", '"k": "v"', "1.0 to 5.0"):
        assert shown in user


@pytest.mark.parametrize(
    ("name", "provider", "timeout_s"),
    [
        ("gpt-5.4", "openai", 30.0),
        ("o4-mini", "openai", 30.0),
        ("claude-opus", "anthropic", 30.0),
        ("gemini-3", "gemini", 45.0),
        ("grok-3", "xai", 45.0),
        ("grok-4-1", "xai", 60.0),
        ("openrouter/a/m", "openrouter", 60.0),
    ],
)
def test_provider_and_timeout_follow_from_the_name(name: str, provider: str, timeout_s: float) -> None:
    judge = judge_by_name(name, "k", None)
    assert (judge.provider, judge.timeout_s) == (provider, timeout_s)
    assert judge_by_name(name, "k", 7.0).timeout_s == 7.0


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        # Every line fixes the first problem of the line above.
        ({"solution_str": "", "score_max": -1.0}, TypeError, "`solution_str`"),
        ({"rubric": 3, "score_max": -1.0}, TypeError, "`rubric`"),
        ({"score_max": -1.0}, ValueError, "`score_max`"),
        ({"score_min": 1.0}, ValueError, "`score_max`"),
        ({}, MissingAPIKeyError, "OPENAI_API_KEY"),
        ({"model": "claude-opus"}, MissingAPIKeyError, "ANTHROPIC_API_KEY"),
        ({"model": "foo/m"}, MissingAPIKeyError, "FOO_API_KEY"),
        ({"model": "my-own"}, MissingAPIKeyError, "provider is not known"),
        ({"model": "my-own", "api_key": "k"}, ProviderRequestError, "Unknown provider: my-own"),
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
    with pytest.raises(ModelNotFoundError) as caught:
        await awaited(**ASKED, model="openai/gpt-9", api_key="k-secret-1")
    error = caught.value
    assert isinstance(error, ProviderRequestError) and isinstance(error, RuntimeError)
    assert str(error) == f"Provider 'openai' request for model 'openai/gpt-9' failed. {error.detail}"
    assert (error.provider, error.model, error.category) == ("openai", "openai/gpt-9", "not_found")
    assert "k-secret-1" not in str(error)
    model.respond = lambda _: Reply("no idea")
    with pytest.raises(ProviderRequestError, match="not valid JSON"):
        await awaited(**ASKED, model="openai/gpt-9", api_key="k")


async def test_a_key_of_two_lines_is_refused_without_showing_it(model: StandInModel) -> None:
    with pytest.raises(ProviderRequestError, match="control character") as caught:
        await awaited(**ASKED, model="openai/gpt-5.4", api_key="k-secret-1\nk-secret-2")
    assert "k-secret" not in f"{caught.value}{caught.value.hint}"
    assert not model.requests


async def test_both_forms_go_by_one_name(model: StandInModel) -> None:
    info = {"provider": "openai", "model": "gpt-4o", "api_key": "k", "api_base": model.base_url}
    assert evaluate_rubric("Be kind.", "hello", info) == 0.5
    assert evaluate_rubric(rubric="Be kind.", solution_str="hello", model_info=info) == 0.5
    details = evaluate_rubric("Be kind.", "hello", info, return_details=True)
    assert details.pop("duration_s") > 0 and details.pop("raw")["choices"]
    keys = {"score", "stated_score", "explanation", "input_tokens", "output_tokens", "cost_usd", "retries"}
    assert details.keys() == keys and details["explanation"] == "fine"
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


def test_the_names_of_02_and_03_are_where_its_users_know_them() -> None:
    from osmosis_ai import rubric_eval, rubric_types

    names = ["RubricResult", "MissingAPIKeyError", "ProviderRequestError", "ModelNotFoundError"]
    for module in (osmosis_ai, line_03, types):
        assert all(getattr(module, name) is getattr(types, name) for name in names)
    assert rubric_eval.evaluate_rubric is evaluate_rubric
    for module in (rubric_eval, rubric_types):
        assert all(getattr(module, name) is not None for name in module.__all__)
    assert line_03.evaluate_rubric is engine.evaluate_rubric
    assert inspect.iscoroutinefunction(line_03.evaluate_rubric), "mock.patch makes an AsyncMock of it"
    assert engine.DEFAULT_REQUEST_TIMEOUT_SECONDS == 30.0
    assert engine.DEFAULT_API_KEY_ENV["google"] == "GEMINI_API_KEY"
    kinds = {parameter.kind for parameter in inspect.signature(line_03.evaluate_rubric).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    error = ProviderRequestError("p", "m", " why ")
    assert (error.provider, error.model, error.detail) == ("p", "m", "why")
    assert str(error) == "Provider 'p' request for model 'm' failed. why"


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
        with pytest.raises(ProviderRequestError):
            await awaited(**ASKED, model="gpt-4o", api_key="k")
    assert asked.calls == 3
    assert asked.cost_usd is not None and asked.cost_usd >= 0.002
    assert [sorted(each) for each in asked.judgements] == [["explanation", "model", "score"]] * 2 + [
        ["error", "model"]
    ]
