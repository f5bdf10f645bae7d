import asyncio
import builtins
from typing import Any

import pytest

from osmosis_ai import event_loop


async def _running_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_if_installed() -> None:
    pytest.importorskip("uvloop")
    assert event_loop.run(_running_loop()).startswith("uvloop")


def test_standard_loop_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_uvloop(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "uvloop":
            raise ImportError(name)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_uvloop)
    assert event_loop.run(_running_loop()).startswith("asyncio")


def test_exceptions_are_raised() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        event_loop.run(fail())
