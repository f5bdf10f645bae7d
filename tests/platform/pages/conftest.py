"""Somebody with a workspace of code and a dataset, and their browser."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import Member, World
from tests.platform.evaluations import Code, add_dataset
from tests.platform.pages.browsing import PASSWORD


@pytest.fixture
def code(tmp_path: Any) -> Code:
    return Code(tmp_path / "code")


@pytest.fixture
def member(world: World, code: Code) -> Member:
    mara = world.member(password=PASSWORD, clone_url=str(code.path))
    add_dataset(world, mara)
    return mara


@pytest.fixture
def browser(client: TestClient) -> TestClient:
    """Asks for pages, as a browser does; keeps cookies."""
    client.headers["accept"] = "text/html,application/xhtml+xml"
    return client
