"""Format a submit's body or a command's options as the text of a config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def config_text(parts: Mapping[str, Any]) -> str:
    """Return a config as TOML; null and values without a TOML form are left out."""
    import tomli_w

    return tomli_w.dumps({name.removesuffix("_config"): value for name, value in _known(parts).items()})


def _known(value: Any) -> Any:
    """Return a value without nulls, also inside it."""
    if isinstance(value, Mapping):
        return {str(key): _known(held) for key, held in value.items() if _has_place(held)}
    if isinstance(value, (list, tuple)):
        return [_known(held) for held in value if _has_place(held)]
    return value


def _has_place(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple, str, bool, int, float))
