"""``@osmosis_reward`` and ``@osmosis_rubric``: decorators of functions that score a text for trainers.

A decorated function takes the documented parameters and returns a finite ``float``. Otherwise the decorator or the call
raises an error that says what is wrong and shows the expected form. Values are not converted: an invalid reward is an
error, never a zero.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, Union

from osmosis_ai.errors import OsmosisError

__all__ = ["RewardTypeError", "RewardValueError", "osmosis_reward", "osmosis_rubric"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Parameters = Mapping[str, inspect.Parameter]

_REWARD_SIGNATURE = "(solution_str: str, ground_truth: str, extra_info: dict = None) -> float"
_RUBRIC_SIGNATURE = "(solution_str: str, ground_truth: str | None, extra_info: dict) -> float"
_NAMES = ("solution_str", "ground_truth", "extra_info")


class RewardTypeError(OsmosisError, TypeError):
    """A signature, an argument or a result has the wrong type; the message shows the right one."""


class RewardValueError(OsmosisError, ValueError):
    """An argument or a result has the right type but an invalid value."""


def osmosis_reward(function: _Function) -> _Function:
    """Decorate a reward function.

    The signature is ``(solution_str: str, ground_truth: str, extra_info: dict = None) -> float``, optionally with
    further parameters. ``extra_info`` may be ``dict | None``, and annotations may be strings. The function may be
    ``async``. The keyword ``data_source``, which some trainers pass, is dropped.

    Raises:
        RewardTypeError: (a ``TypeError``) the signature is different, or a call does not return a ``float``.
        RewardValueError: (a ``ValueError``) a call returns NaN or infinity.
    """
    signature = _Signature(function, "@osmosis_reward", _REWARD_SIGNATURE)
    signature.expect("solution_str", str)
    signature.expect("ground_truth", str)
    signature.expect("extra_info", dict, optional=True)
    if signature.parameters["extra_info"].default is inspect.Parameter.empty:
        raise signature.error("`extra_info` needs a default: `extra_info: dict = None`")
    return _wrapped(function, signature)


def osmosis_rubric(function: _Function) -> _Function:
    """Decorate a rubric function, which lets a model judge.

    The signature is ``(solution_str: str, ground_truth: str | None, extra_info: dict) -> float``, optionally with
    further parameters. Annotations may be strings, and the function may be ``async``.

    The arguments are validated before the function runs. An ``extra_info`` that names a judge has ``provider``,
    ``model`` and ``rubric``, and ``api_key`` or ``api_key_env`` (or the ``api_base`` of a server without keys);
    ``system_prompt``, ``score_min``, ``score_max`` and ``model_info_overrides`` are optional. The function receives a
    copy of ``extra_info`` with the additional entry ``model_info``: the judge's configuration including the overrides,
    as :func:`osmosis_ai.evaluate_rubric` takes it. A function with its own judge is called without a judge in
    ``extra_info``: with None, with its own entries, or, if the parameter has a default, without the argument.

    Raises:
        RewardTypeError: (a ``TypeError``) the signature is different, an argument of a call is missing or has the wrong
            type, or the call does not return a ``float``.
        RewardValueError: (a ``ValueError``) a call returns NaN or infinity.
        JudgeArgumentError: (a ``TypeError``) an entry of ``extra_info`` is missing, blank or of the wrong type.
        JudgeValueError: (a ``ValueError``) the lower bound in ``extra_info`` is not below the upper bound.
    """
    signature = _Signature(function, "@osmosis_rubric", _RUBRIC_SIGNATURE)
    signature.expect("solution_str", str)
    signature.expect("ground_truth", str, optional=True)
    signature.expect("extra_info", dict, optional=True, annotated=False)
    for name in ("solution_str", "ground_truth"):
        if signature.parameters[name].default is not inspect.Parameter.empty:
            raise signature.error(f"`{name}` must have no default")
    return _wrapped(function, signature, prepare=functools.partial(_prepared, signature))


class _Signature:
    """A function's parameters, and the messages about problems with them."""

    def __init__(self, function: Callable[..., Any], decorator: str, right: str) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self._decorator = decorator
        self._right = right
        self._function = function
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise self.error("it is not a function with readable parameters") from None
        self.parameters: _Parameters = self._signature.parameters
        self._check_names()

    def error(self, problem: str) -> RewardTypeError:
        return RewardTypeError(f"{self._decorator} on `{self.name}`: {problem}. Expected: {self._shown()}")

    def expect(self, name: str, kind: type, *, optional: bool = False, annotated: bool = True) -> None:
        """Check the annotation of parameter ``name``.

        Args:
            kind: the required annotation.
            optional: also allow ``kind | None``.
            annotated: a missing annotation is an error.
        """
        annotation = _resolved(self._function, self.parameters[name].annotation)
        if annotation is inspect.Parameter.empty:
            if annotated:
                raise self.error(f"`{name}` has no annotation; write `{name}: {kind.__name__}`")
            return
        if not _is_a(annotation, kind, optional=optional):
            raise self.error(f"`{name}` is annotated as `{_spelled(annotation)}`, not `{kind.__name__}`")

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Bind the arguments of a call to the parameters, with defaults; missing arguments stay missing."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise RewardTypeError(f"`{self.name}`: {error}. Expected: {self._shown()}") from None
        bound.apply_defaults()
        return bound

    def takes(self, name: str) -> bool:
        return name in self.parameters

    def _check_names(self) -> None:
        given = list(self.parameters.values())
        if len(given) < len(_NAMES):
            raise self.error(f"it has {len(given)} parameter(s), and at least {len(_NAMES)} are needed")
        for position, (parameter, name) in enumerate(zip(given, _NAMES, strict=False), start=1):
            if parameter.name != name:
                raise self.error(f"parameter {position} is called `{parameter.name}`, not `{name}`")
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise self.error(f"`{name}` cannot be passed by its name, and trainers do")

    def _shown(self) -> str:
        return f"`def {self.name}{self._right}`"


def _wrapped(
    function: _Function,
    signature: _Signature,
    prepare: Callable[[tuple[Any, ...], dict[str, Any]], inspect.BoundArguments] | None = None,
) -> _Function:
    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not signature.takes("data_source"):
            kwargs.pop("data_source", None)
        if prepare is None:
            return args, kwargs
        bound = prepare(args, kwargs)
        return bound.args, bound.kwargs

    async def checked_later(result: Awaitable[Any]) -> float:
        return _checked_result(signature.name, await result)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> float:
            args, kwargs = arguments(args, kwargs)
            return await checked_later(function(*args, **kwargs))

        return typing.cast("_Function", call_async)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = arguments(args, kwargs)
        result = function(*args, **kwargs)
        # An async function behind a partial or another decorator is not recognised as one.
        return (
            checked_later(result) if inspect.isawaitable(result) else _checked_result(signature.name, result)
        )

    return typing.cast("_Function", call)


def _checked_result(name: str, result: object) -> float:
    if not isinstance(result, float):
        shown = f": {result!r}" if isinstance(result, bool | int) else ""
        raise RewardTypeError(f"`{name}` must return a float, and returned {_named(result)}{shown}.")
    if not math.isfinite(result):
        raise RewardValueError(f"`{name}` must return a finite float, and returned {result}.")
    return result


def _prepared(signature: _Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Check the arguments of a rubric function's call and add the judge's configuration."""
    bound = signature.bind(args, kwargs)
    for name in _NAMES:
        if name not in bound.arguments:
            raise RewardTypeError(f"`{signature.name}` needs the argument `{name}`.")
    where = f"`{signature.name}`"
    solution, truth, extra_info = (bound.arguments[name] for name in _NAMES)
    if not isinstance(solution, str):
        raise RewardTypeError(f"{where}: `solution_str` must be a str, not {_named(solution)}.")
    if truth is not None and not isinstance(truth, str):
        raise RewardTypeError(f"{where}: `ground_truth` must be a str or None, not {_named(truth)}.")
    if extra_info is None:
        return bound
    if not isinstance(extra_info, dict):
        raise RewardTypeError(f"{where}: `extra_info` must be a dict, not {_named(extra_info)}.")
    from osmosis_ai.rubric.judge_model import with_model_info

    bound.arguments["extra_info"] = with_model_info(extra_info, function=signature.name)
    return bound


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Resolve an annotation written as a string; unchanged if that fails."""
    if not isinstance(annotation, str):
        return annotation
    # Resolved one at a time: a name that exists only for type checkers must not prevent the others.
    one = types.SimpleNamespace(__annotations__={"it": annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(one, globalns=names)["it"]
    except Exception:  # an annotation's own code may raise anything; the annotation is then just wrong
        return annotation


def _is_a(annotation: Any, kind: type, *, optional: bool) -> bool:
    origin = typing.get_origin(annotation)
    if optional and origin in (Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return bool(members) and all(_is_a(member, kind, optional=False) for member in members)
    if annotation is Any:
        return kind is dict
    found = origin or annotation
    if found in (kind, kind.__name__, f"builtins.{kind.__name__}"):
        return True
    return isinstance(found, type) and (issubclass(found, kind) or (kind is dict and found is Mapping))


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _named(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__}"
