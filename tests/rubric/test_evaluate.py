from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import osmosis_ai
from osmosis_ai import (
    MissingAPIKeyError,
    ModelNotFoundError,
    ProviderRequestError,
    UnscoredError,
    aevaluate_rubric,
    evaluate_rubric,
)
from osmosis_ai.rubric_eval import DEFAULT_API_KEY_ENV, ensure_api_key_available
from tests.rubric.serving import serving
from tests.standin_model import Reply, StandInModel, error_reply

pytestmark = pytest.mark.usefixtures("without_waiting")

REPOSITORY = Path(__file__).parents[2]
GOOD = Reply('{"score": 0.5, "explanation": "fine"}')


@pytest.fixture
def model() -> Iterator[StandInModel]:
    with serving(StandInModel(lambda _: GOOD)) as server:
        yield server


@pytest.fixture
def info(model: StandInModel) -> dict[str, Any]:
    return {"provider": "openai", "model": "gpt-4o", "api_key": "k-1234", "api_base": model.base_url}


def test_a_plain_call_returns_the_score(info: dict[str, Any]) -> None:
    assert evaluate_rubric("Be kind.", "hello", info) == 0.5
    assert evaluate_rubric(rubric="Be kind.", solution_str="hello", model_info=info, ground_truth="hi") == 0.5


def test_details_hold_the_reply_the_tokens_and_the_cost(model: StandInModel, info: dict[str, Any]) -> None:
    used = {"prompt_tokens": 90, "completion_tokens": 10, "cost": 0.002}
    model.script(Reply('{"score": 1.5, "explanation": "great"}', usage=used))
    details = evaluate_rubric("Be kind.", "hello", info, return_details=True)
    assert details.pop("duration_s") > 0
    assert details.pop("raw")["choices"]
    assert details == {
        "score": 1.0,
        "stated_score": 1.5,
        "explanation": "great",
        "input_tokens": 90,
        "output_tokens": 10,
        "cost_usd": 0.002,
        "retries": 0,
    }


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


def test_the_address_and_the_key_may_come_from_the_environment(
    model: StandInModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
    monkeypatch.setenv("TEAM_KEY", " k-team ")
    info = {"provider": "OpenAI", "model": "gpt-5-mini", "api_key_env": "TEAM_KEY"}
    assert evaluate_rubric("Be kind.", "hello", info) == 0.5
    assert model.requests[0].headers["Authorization"] == "Bearer k-team"


VALID: dict[str, Any] = {"provider": "openai", "model": "gpt-4o", "api_key": "k-1234"}


def without(*names: str, **changed: Any) -> dict[str, Any]:
    return {**{name: value for name, value in VALID.items() if name not in names}, **changed}


@pytest.mark.parametrize(
    ("rubric", "solution", "info", "options", "error", "words"),
    [
        # Every line mends the first problem of the line above: the order of the checks is documented.
        (" ", "", without("provider", "model", "api_key"), {"score_max": -1}, TypeError, "`provider`"),
        (" ", "", without("model", "api_key"), {"score_max": -1}, TypeError, "`model`"),
        (" ", "", without("api_key"), {"score_max": -1}, MissingAPIKeyError, 'export OPENAI_API_KEY="..."'),
        (" ", "", VALID, {"score_max": -1}, TypeError, "`rubric`"),
        ("Be kind.", "", VALID, {"score_max": -1}, TypeError, "`solution_str`"),
        ("Be kind.", "hello", VALID, {"score_max": -1, "timeout": -1}, ValueError, "`score_max` (-1.0)"),
        ("Be kind.", "hello", VALID, {"timeout": -1}, ValueError, "`timeout`"),
        ("Be kind.", "hello", {**VALID, "score_min": 1, "score_max": 1}, {}, ValueError, "`score_max` (1.0)"),
        ("Be kind.", "hello", {**VALID, "score_min": None}, {}, TypeError, "`score_min`"),
        ("Be kind.", "hello", "openai/gpt-4o", {}, TypeError, "must be a dict with `provider` and `model`"),
        ("Be kind.", "hello", VALID, {"metadata": "x"}, TypeError, "`metadata`"),
        (
            "Be kind.",
            "hello",
            without(provider="nobody"),
            {},
            ProviderRequestError,
            "no known provider 'nobody'",
        ),
    ],
)
def test_arguments_are_checked_in_the_documented_order_before_any_call(
    rubric: str, solution: str, info: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        evaluate_rubric(rubric, solution, info, **options)
    assert words in str(caught.value)
    assert isinstance(caught.value, osmosis_ai.OsmosisError), "the command line can say it in one line"


def test_errors_are_the_documented_classes(model: StandInModel, info: dict[str, Any]) -> None:
    model.script(error_reply(404, "no such model"), error_reply(400, "bad"), Reply("no"), Reply("no"))
    with pytest.raises(ModelNotFoundError, match="no such model") as missing:
        evaluate_rubric("Be kind.", "hello", info)
    assert (missing.value.provider, missing.value.model) == ("openai", "gpt-4o")
    with pytest.raises(ProviderRequestError, match="bad"):
        evaluate_rubric("Be kind.", "hello", info)
    with pytest.raises(UnscoredError, match="not valid JSON"):
        evaluate_rubric("Be kind.", "hello", info)


def test_a_judge_that_does_not_answer_in_time_is_a_provider_error(
    model: StandInModel, info: dict[str, Any]
) -> None:
    model.latency_s = 30
    with pytest.raises(ProviderRequestError, match="did not answer in time"):
        evaluate_rubric("Be kind.", "hello", info, timeout=0.01)


async def test_it_can_be_called_inside_a_running_event_loop(info: dict[str, Any]) -> None:
    assert evaluate_rubric("Be kind.", "hello", info) == 0.5


async def test_the_async_twin_leaves_the_event_loop_free(model: StandInModel, info: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    hold = asyncio.Event()
    model.respond = lambda _: Reply(GOOD.content, wait_for=hold)
    call = asyncio.create_task(aevaluate_rubric("Be kind.", "hello", info, return_details=True))
    await asyncio.to_thread(_until, lambda: model.in_flight == 1)
    assert not call.done()
    model.respond = lambda _: GOOD
    assert await aevaluate_rubric("Be kind.", "hello", info) == 0.5, "others are served meanwhile"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert loop.is_running()


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


def test_many_different_judges_are_not_kept_for_ever(info: dict[str, Any]) -> None:
    from osmosis_ai.rubric import judge as judges

    for number in range(40):
        assert evaluate_rubric("Be kind.", "hello", {**info, "model": f"m-{number}"}) == 0.5
    assert len(judges._thread()._judges) <= 17


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


def test_the_names_of_02_are_where_its_users_know_them() -> None:
    from osmosis_ai import rubric_eval, rubric_types

    assert {
        "evaluate_rubric",
        "ensure_api_key_available",
        "ModelInfo",
        "RewardRubricRunResult",
        "MissingAPIKeyError",
        "DEFAULT_REQUEST_TIMEOUT_SECONDS",
    } <= set(rubric_eval.__all__)
    assert rubric_eval.DEFAULT_REQUEST_TIMEOUT_SECONDS == 30.0
    assert {"ModelInfo", "RewardRubricRunResult", "ModelNotFoundError"} <= set(rubric_types.__all__)
    for module in (osmosis_ai, rubric_eval, rubric_types):
        assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.e2e
def test_importing_the_names_loads_no_client() -> None:
    script = (
        "import sys\n"
        "from osmosis_ai import evaluate_rubric, osmosis_reward, MissingAPIKeyError\n"
        "heavy = {'litellm', 'aiohttp', 'httpx', 'stamina', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def _until(condition: Any) -> None:
    waiting = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it never happened")
