"""A platform for all tests of a pytest worker, and a sample workspace whose attempts wait, for those of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.platform_checkout import Scratch, World, connected_world, prepare_scratch
from tests.e2e.turnstile import Turnstile, commit


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A running platform and a checkout connected to it; the dataset `multiply` is uploaded."""
    with connected_world(tmp_path_factory.mktemp("shared")) as world:
        assert world.osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes").status == 0
        yield world


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    return prepare_scratch(tmp_path_factory.mktemp("scratch") / "demo")


@pytest.fixture(scope="module")
def turnstile(scratch: Scratch) -> Iterator[Turnstile]:
    turnstile = Turnstile(scratch.workspace)
    commit(scratch.workspace, scratch.own_variables())
    yield turnstile
    turnstile.close()
