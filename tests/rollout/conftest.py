from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .world import Controller


@pytest.fixture(autouse=True)
def artifact_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every file a rollout leaves inside the test's own directory."""
    root = tmp_path / "rollouts"
    monkeypatch.setenv("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT", str(root))
    for name in ("OSMOSIS_CHAT_COMPLETIONS_URL", "OSMOSIS_API_KEY", "OSMOSIS_ROLLOUT_ID"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    async with Controller().serving() as running:
        yield running
