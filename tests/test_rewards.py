from __future__ import annotations

import asyncio
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import pytest

import osmosis_ai
from osmosis_ai import osmosis_reward, osmosis_rubric


def decorated(decorator: str, source: str, *, header: str = "") -> Callable[..., Any]:
    """Define a decorated function by its source, as in a separate module."""
    names: dict[str, Any] = {}
    preamble = f"{header}\nfrom osmosis_ai import {decorator}\nfrom typing import *\n"
    exec(
        compile(f"{preamble}\n@{decorator}\n{textwrap.dedent(source)}", "user.py", "exec", dont_inherit=True),
        names,
    )
    return next(names[name] for name in ("score", "Score") if name in names)


@osmosis_reward
def exact(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:  # type: ignore[type-arg,assignment]  # noqa: RUF013
    """Exact match."""
    return 1.0 if solution_str.strip() == ground_truth.strip() else 0.0


INFO: dict[str, Any] = {
    "provider": "openai",
    "model": "gpt-5-mini",
    "rubric": "Be kind.",
    "api_key_env": "OPENAI_API_KEY",
}


ABSENT = object()
NO_JUDGE: dict[str, Any] = dict.fromkeys(INFO, ABSENT)


@osmosis_rubric
def judged(solution_str: str, ground_truth: str | None, extra_info: dict) -> float:  # type: ignore[type-arg]
    received.append((solution_str, ground_truth, extra_info))
    return 0.5


received: list[tuple[str, str | None, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def _nothing_received() -> None:
    received.clear()


# --- @osmosis_reward -------------------------------------------------------------------------------------


def test_reward_function() -> None:
    assert exact("hello world", "hello world") == 1.0
    assert exact(solution_str="a", ground_truth="b", extra_info={"x": 1}) == 0.0
    assert (exact.__name__, exact.__doc__) == ("exact", "Exact match.")
    assert list(inspect.signature(exact).parameters) == ["solution_str", "ground_truth", "extra_info"]


def test_data_source_argument() -> None:
    assert exact(data_source="gsm8k", solution_str="a", ground_truth="a") == 1.0
    takes_it = decorated(
        "osmosis_reward",
        """
        def score(solution_str: str, ground_truth: str, extra_info: dict = None, data_source: str = "") -> float:
            return 1.0 if data_source == "gsm8k" else 0.0
        """,
    )
    assert takes_it("a", "b", data_source="gsm8k") == 1.0


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
@pytest.mark.parametrize(
    "extra_info",
    [
        "dict = None",
        "dict = {}",
        "dict | None = None",
        "Optional[dict] = None",
        "'dict' = None",
        "'dict | None' = None",
        "dict[str, Any] | None = None",
        "Optional[Dict[str, Any]] = None",
        "Mapping = None",
        "Any = None",
        "dict = None, tokenizer: 'KnownToTypeCheckers' = None",
    ],
)
def test_annotations_of_extra_info(extra_info: str, future: str) -> None:
    function = decorated(
        "osmosis_reward",
        f"def score(solution_str: str, ground_truth: str, extra_info: {extra_info}) -> float:\n    return 1.0",
        header=future,
    )
    assert function("a", "b") == 1.0


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        ("()", "it has 0 parameter(s), and at least 3 are needed"),
        (
            "(self, solution_str: str, ground_truth: str, extra_info: dict = None)",
            "parameter 1 is called `self`",
        ),
        (
            "(solution_str: str, ground_truth: str, info: dict = None)",
            "parameter 3 is called `info`, not `extra_info`",
        ),
        (
            "(solution_str, ground_truth: str, extra_info: dict = None)",
            "`solution_str` has no annotation; write `solution_str: str`",
        ),
        (
            "(solution_str: bytes, ground_truth: str, extra_info: dict = None)",
            "`solution_str` is annotated as `bytes`, not `str`",
        ),
        (
            "(solution_str: str, ground_truth: Optional[str], extra_info: dict = None)",
            "`ground_truth` is annotated as `Optional[str]`",
        ),
        (
            "(solution_str: str, ground_truth: str, extra_info: dict | str = None)",
            "`extra_info` is annotated as",
        ),
        ("(solution_str: str, ground_truth: str, extra_info: dict)", "`extra_info` needs a default"),
        (
            "(solution_str: str, /, ground_truth: str, extra_info: dict = None)",
            "`solution_str` cannot be passed by its name",
        ),
    ],
)
def test_invalid_reward_signatures(signature: str, problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        decorated("osmosis_reward", f"def score{signature} -> float:\n    return 1.0")
    message = str(caught.value)
    assert message.startswith(f"@osmosis_reward on `score`: {problem}")
    assert message.endswith(
        "Expected: `def score(solution_str: str, ground_truth: str, extra_info: dict = None) -> float`"
    )
    assert isinstance(caught.value, osmosis_ai.OsmosisError)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ("1", TypeError, "`score` must return a float, and returned int: 1."),
        ("True", TypeError, "returned bool: True."),
        ("None", TypeError, "returned None."),
        ("'0.5'", TypeError, "returned str."),
        ("float('nan')", ValueError, "must return a finite float, and returned nan."),
        ("float('-inf')", ValueError, "must return a finite float, and returned -inf."),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_invalid_rewards(kind: str, result: str, error: type[Exception], words: str) -> None:
    function = decorated(
        "osmosis_reward",
        f"{kind} score(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:\n    return {result}",
    )
    called = functools.partial(function, "a", "b")
    with pytest.raises(error) as caught:
        asyncio.run(called()) if kind == "async def" else called()
    assert words in str(caught.value)


async def test_async_reward_function_and_its_partials() -> None:
    async def score(
        solution_str: str, ground_truth: str, extra_info: dict | None = None, *, top: Any = 1
    ) -> float:  # type: ignore[type-arg]
        await asyncio.sleep(0)
        return top  # type: ignore[no-any-return]

    fine, numpy_float, wrong = (
        osmosis_reward(functools.partial(score, top=top)) for top in (1.0, np.float64(0.25), "1")
    )
    assert inspect.iscoroutinefunction(osmosis_reward(score)) and inspect.iscoroutinefunction(fine)
    assert (await fine("a", "b", data_source="x"), await numpy_float("a", "b")) == (1.0, 0.25)
    with pytest.raises(TypeError, match="must return a float"):
        await wrong("a", "b")


def test_exceptions_of_the_function() -> None:
    @osmosis_reward
    def score(solution_str: str, ground_truth: str, extra_info: Optional[dict] = None) -> float:  # type: ignore[type-arg]  # noqa: UP045
        return 1 / len(solution_str)

    with pytest.raises(ZeroDivisionError):
        score("", "b")


# --- @osmosis_rubric -------------------------------------------------------------------------------------


def test_rubric_function() -> None:
    assert judged("a", None, INFO) == 0.5
    assert judged(solution_str="a", ground_truth="b", extra_info=INFO, data_source="x") == 0.5
    assert [call[:2] for call in received] == [("a", None), ("a", "b")]


def test_overrides_of_the_judge_configuration() -> None:
    given = {
        **INFO,
        "score_max": 5,
        "system_prompt": "Be strict.",
        "mine": [1],
        "model_info": {"timeout": 9, "model": "older"},
        "model_info_overrides": {"model": "gpt-5", "api_base": "http://localhost:8000/v1"},
    }
    before = dict(given)

    judged("a", None, given)

    extra_info = received[0][2]
    assert extra_info["model_info"] == {
        "provider": "openai",
        "model": "gpt-5",
        "api_key_env": "OPENAI_API_KEY",
        "api_base": "http://localhost:8000/v1",
        "score_max": 5,
        "system_prompt": "Be strict.",
        "timeout": 9,
    }
    assert extra_info["mine"] == [1], "what is the function's own is passed on"
    assert given == before, "the caller's dict is not touched"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"provider": None}, "`extra_info['provider']` must be a non-empty string"),
        ({"provider": " "}, "it is blank"),
        (
            {"model": 5},
            "`extra_info['model']` must be a non-empty string: the provider's model, for instance 'gpt-5-mini'; it is of type int",
        ),
        (
            {"api_key_env": None},
            'needs `api_key` or `api_key_env`, for instance "api_key_env": "OPENAI_API_KEY"',
        ),
        ({"api_key": 12345}, "`extra_info['api_key']` must be a string; it is of type int"),
        ({"system_prompt": ["x"]}, "`extra_info['system_prompt']` must be a string"),
        ({"score_max": True}, "`extra_info['score_max']` must be a number; it is of type bool"),
        ({"score_min": 2}, "`score_max` (1.0) must be greater than `score_min` (2.0)"),
        ({"score_max": math.inf}, "must be finite"),
        (
            {"model_info_overrides": "gpt-5"},
            "`extra_info['model_info_overrides']` must be a dict; it is of type str",
        ),
        (
            {"model_info_overrides": {"timeout": "x"}},
            "`extra_info['model_info_overrides']['timeout']` must be a number",
        ),
        ({"model_info_overrides": {"score_max": -1.0}}, "must be greater than"),
        # Without a configuration of the judge, each part of one is checked as well.
        (NO_JUDGE | {"rubric": " "}, "`extra_info['rubric']` must be a non-empty string"),
        (NO_JUDGE | {"score_min": 2}, "must be greater than"),
        (NO_JUDGE | {"provider": "openai"}, "`extra_info['model']` must be a non-empty string"),
        (
            NO_JUDGE | {"model_info_overrides": {"model": "m"}},
            "`extra_info['provider']` must be a non-empty string",
        ),
    ],
)
def test_invalid_extra_info(changed: dict[str, Any], words: str) -> None:
    given = {**INFO, **changed}
    with pytest.raises((TypeError, ValueError)) as caught:
        judged("a", None, {name: value for name, value in given.items() if value is not ABSENT})
    assert words in str(caught.value)
    assert str(caught.value).startswith("`judged`: ")
    assert "12345" not in str(caught.value)
    assert received == []


@pytest.mark.parametrize(
    "key",
    [
        {"api_key": "sk-1"},
        {"api_base": "http://localhost:8000/v1"},
        {"model_info_overrides": {"api_key_env": "MINE"}},
        {"model_info": {"api_key_env": "MINE"}},
    ],
)
def test_locations_of_the_api_key(key: dict[str, Any]) -> None:
    bare = {name: value for name, value in INFO.items() if name != "api_key_env"}
    assert judged("a", None, {**bare, **key}) == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ground_truth": None, "extra_info": INFO}, "needs the argument `solution_str`"),
        ({"solution_str": "a", "extra_info": INFO}, "needs the argument `ground_truth`"),
        ({"solution_str": "a", "ground_truth": None}, "needs the argument `extra_info`"),
        (
            {"solution_str": 1, "ground_truth": None, "extra_info": INFO},
            "`solution_str` must be a str, not int",
        ),
        (
            {"solution_str": "a", "ground_truth": 1, "extra_info": INFO},
            "`ground_truth` must be a str or None, not int",
        ),
        (
            {"solution_str": "a", "ground_truth": None, "extra_info": []},
            "`extra_info` must be a dict, not list",
        ),
        (
            {"solution_str": "a", "ground_truth": None, "extra_info": INFO, "more": 1},
            "unexpected keyword argument 'more'",
        ),
    ],
)
def test_invalid_rubric_arguments(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        judged(**arguments)
    assert received == []


@pytest.mark.parametrize("default", ["None", "{}"])
def test_rubric_function_without_extra_info(default: str) -> None:
    own = decorated(
        "osmosis_rubric",
        f"def score(solution_str: str, ground_truth: str | None, extra_info: dict = {default}) -> float:\n"
        "    return 0.0 if extra_info else 1.0",
    )
    assert own("a", None) == own(solution_str="a", ground_truth="b", data_source="x") == 1.0
    assert own("a", None, None) == own("a", None, {}) == 1.0


@pytest.mark.parametrize("extra_info", [None, {}, {"mine": 1}, {"rubric": "Be kind.", "score_max": 5}])
def test_extra_info_without_a_judge(extra_info: Any) -> None:
    assert judged("a", None, extra_info) == 0.5
    assert received == [("a", None, extra_info)]


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
@pytest.mark.parametrize("truth", ["str", "str | None", "Optional[str]", "'Optional[str]'"])
@pytest.mark.parametrize(
    "extra_info",
    [
        "extra_info: dict",
        "extra_info: dict | None",
        "extra_info: Dict[str, Any]",
        "extra_info",
        "extra_info: dict = None",
    ],
)
def test_annotations_of_a_rubric_function(truth: str, extra_info: str, future: str) -> None:
    function = decorated(
        "osmosis_rubric",
        f"def score(solution_str: str, ground_truth: {truth}, {extra_info}, **kwargs) -> float:\n    return 1.0",
        header=future,
    )
    assert function("a", None, INFO, more=1) == 1.0


@pytest.mark.parametrize(
    ("signature", "problem"),
    [
        ("(solution_str: str, ground_truth: str, info: dict)", "parameter 3 is called `info`"),
        ("(solution_str: str | None, ground_truth: str, extra_info: dict)", "`solution_str` is annotated as"),
        ("(solution_str: str, ground_truth: int | None, extra_info: dict)", "`ground_truth` is annotated as"),
        (
            "(solution_str: str, ground_truth: str, extra_info: str)",
            "`extra_info` is annotated as `str`, not `dict`",
        ),
        (
            "(solution_str: str = '', ground_truth: str = '', extra_info: dict = None)",
            "`solution_str` must have no default",
        ),
    ],
)
def test_invalid_rubric_signatures(signature: str, problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        decorated("osmosis_rubric", f"def score{signature} -> float:\n    return 1.0")
    assert str(caught.value).startswith(f"@osmosis_rubric on `score`: {problem}")
    assert str(caught.value).endswith(
        "Expected: `def score(solution_str: str, ground_truth: str | None, extra_info: dict) -> float`"
    )


async def test_async_rubric_function() -> None:
    @osmosis_rubric
    async def score(solution_str: str, ground_truth: str | None, extra_info: Mapping) -> float:  # type: ignore[type-arg]
        return float(len(extra_info["model_info"]))

    assert await score("a", None, INFO) == 3.0
    with pytest.raises(TypeError, match="needs the argument `extra_info`"):
        await score("a", None)
