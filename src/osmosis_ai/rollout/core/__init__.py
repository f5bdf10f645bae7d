"""Names of :mod:`osmosis_ai.rollout` under their 0.2 import path."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from osmosis_ai import rollout

    if name not in rollout.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(rollout, name)
