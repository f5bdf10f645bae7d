"""The judge that is awaited: ``await evaluate_rubric(solution_str=..., rubric=..., model="openai/gpt-5-mini")``.

Names are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osmosis_ai.rubric.api import evaluate_by_model as evaluate_rubric
    from osmosis_ai.rubric.types import (
        MissingAPIKeyError,
        ModelNotFoundError,
        ProviderRequestError,
        RubricResult,
    )

__all__ = [
    "MissingAPIKeyError",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RubricResult",
    "evaluate_rubric",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(
        import_module(f"{__name__}.{'engine' if name == 'evaluate_rubric' else 'types'}"), name
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
