"""A platform that the tests of one worker share, for tests that only need one to be there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.platform_checkout import World, connected_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A running platform and a checkout connected to it; the dataset `multiply` is uploaded."""
    with connected_world(tmp_path_factory.mktemp("shared")) as world:
        assert world.osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes").status == 0
        yield world
