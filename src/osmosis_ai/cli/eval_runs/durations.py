"""Durations as people type them: ``90``, ``90s``, ``10m``, ``2h``."""

from __future__ import annotations

import re

import typer

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d)?\s*", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Return a number of seconds.

    Raises:
        typer.BadParameter: when ``text`` is no positive duration.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise typer.BadParameter(f"{text!r} is no duration; write 90, 90s, 10m or 2h.")
    return seconds
