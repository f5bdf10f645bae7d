from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import respx

from osmosis_ai.api import client as client_module
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.transfer import BlobClient
from tests.api.keyrings import use_keyring as use_keyring
from tests.api.keyrings import working as working

BASE = "https://osmosis.fern.example/prefix"
TOKEN = "osm_u_canary7Qd"
GIT = "fern/maze"


@pytest.fixture(autouse=True)
def _nothing_announced_yet() -> None:
    client_module._announced.clear()


@pytest.fixture
def platform() -> Iterator[respx.MockRouter]:
    with respx.mock(base_url=BASE, assert_all_called=False) as router:
        yield router


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace pauses; return their lengths in seconds."""
    pauses: list[float] = []
    sleep = time.sleep
    # Threads of libraries that other tests have imported pause as they do.
    others = set(threading.enumerate()) - {threading.current_thread()}

    def note(pause_s: float) -> None:
        if threading.current_thread() in others:
            sleep(pause_s)
        else:
            pauses.append(pause_s)

    monkeypatch.setattr("time.sleep", note)
    return pauses


@pytest.fixture
def client(slept: list[float]) -> Iterator[PlatformClient]:
    with PlatformClient(BASE, TOKEN, GIT, token_origin="saved") as client:
        yield client


@pytest.fixture
def blobs(slept: list[float]) -> Iterator[BlobClient]:
    with BlobClient() as client:
        yield client
