"""The middleware that receives adapters, and an engine that uses it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import stamina
import uvicorn

from osmosis_ai.training.engines import adapter_upload, vllm_engine
from osmosis_ai.training.engines.adapter_upload import ADAPTER_FILES, UPLOADS, AdapterUpload
from tests.training.engines.test_vllm_engine import PublishablePolicy, generated, wanted
from tests.training.engines.test_vllm_replicas import until
from tests.training.standin_vllm import KEY, connect, standing_in

WEIGHTS = ADAPTER_FILES[1]


async def _vllm(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"of vLLM"})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = uvicorn.Config(AdapterUpload(_vllm), log_level="critical", lifespan="off")
    listening = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client
    running.should_exit = True
    thread.join()


def test_files_are_stored_replaced_and_deleted(server: httpx.Client) -> None:
    assert server.get(UPLOADS).status_code == 200
    for content in (b"first", b"second"):
        stored = server.put(f"{UPLOADS}/run-v1/{WEIGHTS}", content=content)
        assert (Path(stored.json()["path"]) / WEIGHTS).read_bytes() == content
    assert server.delete(f"{UPLOADS}/run-v1").status_code == 200
    assert not Path(stored.json()["path"]).exists()
    assert server.get("/v1/models").text == "of vLLM"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"run-v1/{WEIGHTS}", {"Authorization": "Bearer wrong"}, 401),
        (f"run-v1/{WEIGHTS}", {"Authorization": ""}, 401),
        (f"..%2F..%2Fetc/{WEIGHTS}", {}, 400),
        (f"%2E%2E/{WEIGHTS}", {}, 400),
        (f"run-v1%00/{WEIGHTS}", {}, 400),
        (f"{'x' * 201}/{WEIGHTS}", {}, 400),
        ("run-v1/..%2F..%2Fpasswd", {}, 404),
        ("run-v1/other.bin", {}, 404),
        ("run-v1", {}, 404),
        (f"run-v1/{WEIGHTS}/more", {}, 404),
    ],
)
def test_what_is_refused(
    server: httpx.Client, tmp_path: Path, path: str, headers: dict[str, str], status: int
) -> None:
    answer = server.put(f"{UPLOADS}/{path}", content=b"x", headers=headers)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_body_that_is_too_large_or_incomplete_leaves_nothing(
    server: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_upload, "LARGEST_FILE_BYTES", 10)
    path = f"{UPLOADS}/run-v1/{WEIGHTS}"
    assert server.put(path, content=b"x" * 11).status_code == 413
    assert server.put(path, content=iter([b"x"])).status_code == 411, "without Content-Length"
    with socket.create_connection((server.base_url.host, server.base_url.port or 0)) as connection:
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 10\r\n\r\n"
        connection.sendall(head.encode() + b"part")
    assert server.get(UPLOADS).status_code == 200
    assert [file for file in tmp_path.rglob("*") if file.name == WEIGHTS] == []


def test_it_does_not_run_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(RuntimeError, match="VLLM_API_KEY is not set"):
        AdapterUpload(_vllm)


async def test_a_server_without_the_trainers_disk_gets_adapters_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    upload = AdapterUpload(_vllm)
    async with standing_in(upload=upload) as server, connect(server, tmp_path) as engine:
        for version in (1, 2):
            await engine.publish(PublishablePolicy(), version)
            [tokens] = await generated(engine, wanted())
            assert {token.version for token in tokens} == {version}
        path = Path(server.loaded["r-v2"])
        assert path.parent.name.startswith("osmosis-adapters-")
        assert sorted(file.name for file in path.iterdir()) == sorted(ADAPTER_FILES)
        assert [kept.name for kept in path.parent.iterdir()] == ["r-v2"], "r-v1 was deleted"


async def _catch_all(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def test_a_server_that_answers_every_path_gets_adapters_by_path(tmp_path: Path) -> None:
    upload: Any = _catch_all
    async with standing_in(upload=upload) as server, connect(server, tmp_path) as engine:
        await engine.publish(PublishablePolicy(), 1)
        assert server.loaded == {"r-v1": str(tmp_path / "r-v1")}


async def test_a_server_that_restarts_without_the_middleware_gets_adapters_by_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr(vllm_engine, "PROBE_INTERVAL_S", 0.1)
    with stamina.set_testing(True, attempts=1):
        async with (
            standing_in() as other,
            standing_in(upload=AdapterUpload(_vllm)) as server,
            connect([server, other], tmp_path) as engine,
        ):
            await engine.publish(PublishablePolicy(), 1)
            assert server.loaded["r-v1"] != str(tmp_path / "r-v1")
            await server.kill()
            await engine.publish(PublishablePolicy(), 2)
            async with standing_in(port=urlsplit(server.url).port or 0) as again:
                await until(lambda: bool(again.loaded))
                assert again.loaded == {"r-v2": str(tmp_path / "r-v2")}
