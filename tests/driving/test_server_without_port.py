"""A rollout's server has no port where its entrypoint serves with uvicorn: it is handed a socket."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest

from osmosis_ai.driving import server_process
from osmosis_ai.driving.server_process import RolloutServer, ServerSpec
from osmosis_ai.supervision import PrivateSocket, open_server_session, server_address, server_url
from osmosis_ai.supervision.server_address import socket_path

pytestmark = pytest.mark.integration

# No framework: what is tested is where it listens.
APP = """
    import json, os, socket, subprocess, sys, threading
    import uvicorn

    PORT = int(os.environ["_OSMOSIS_ROLLOUT_PORT"])

    def answer():
        return {}

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        body = json.dumps({"instance_id": os.environ["_OSMOSIS_ROLLOUT_INSTANCE_ID"], "port": PORT, **answer()}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})
"""
SERVE = """
    if __name__ == "__main__":
        uvicorn.run(app, host="0.0.0.0", port=PORT, log_level="warning", lifespan="off")
"""


def spec_of(directory: Path, *source: str, **changes: Any) -> ServerSpec:
    (directory / "main.py").write_text("".join(map(textwrap.dedent, source)))
    fields: dict[str, Any] = {
        "rollout_dir": directory,
        "entrypoint": "main.py",
        "python": Path(sys.executable),
        "env": dict(os.environ),
        "artifact_root": directory / "trials",
        "port": None,
        "log_path": directory / "server.log",
        **changes,
    }
    return ServerSpec(**fields)


async def ask(address: str) -> dict[str, Any]:
    async with (
        open_server_session(address, timeout_s=60) as session,
        session.get(server_url(address, "/health")) as reply,
    ):
        told: dict[str, Any] = await reply.json(content_type=None)
        return told


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_uvicorn_is_handed_a_socket_that_nobody_else_reaches_and_no_port(tmp_path: Path) -> None:
    notes: list[str] = []
    what_children_inherit = """
        def answer():
            listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True).stdout
            return {"children": listed.count("socket:"), "variables": [name for name in os.environ if "LISTENER" in name]}
    """
    async with RolloutServer(
        spec_of(tmp_path, APP, what_children_inherit, SERVE), note=notes.append
    ) as server:
        path = Path(socket_path(server.base_url) or "")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        told = await ask(server.base_url)
        assert not listens(told["port"])
        assert (told["children"], told["variables"]) == (0, [])
    assert not path.parent.exists() and not notes
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(server.base_url)


async def test_a_server_that_was_killed_refuses_connections_and_comes_back_with_another_socket(
    tmp_path: Path,
) -> None:
    async with RolloutServer(spec_of(tmp_path, APP, SERVE)) as server:
        before = server.base_url
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(server.death(), 60)
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(before)
        assert await server.revive()
        assert server.base_url != before
        assert not Path(socket_path(before) or "").parent.exists()
        assert await ask(server.base_url)


async def test_a_server_whose_socket_was_removed_counts_as_dead_and_comes_back_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "SOCKET_LOOK_S", 0.01)
    async with RolloutServer(spec_of(tmp_path, APP, SERVE)) as server:
        pid = server.pid
        Path(socket_path(server.base_url) or "").unlink()
        error = await asyncio.wait_for(server.death(), 60)
        assert error.message.startswith("the rollout server `main.py` was cut off: its socket was removed")
        assert await server.revive()
        assert server.pid != pid and await ask(server.base_url)


async def test_several_workers_of_one_entrypoint_share_the_socket(tmp_path: Path) -> None:
    serve = """
        if __name__ == "__main__":
            uvicorn.run("main:app", port=PORT, workers=2, log_level="warning", lifespan="off")
    """
    async with RolloutServer(spec_of(tmp_path, APP, serve)) as server:
        assert socket_path(server.base_url) is not None
        assert not listens((await ask(server.base_url))["port"])


async def test_another_server_of_the_entrypoint_keeps_the_port_that_it_asked_for(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    tool = f"""
        threading.Thread(
            target=uvicorn.run, args=(app,), kwargs=dict(port={unused_tcp_port}, log_level="error", lifespan="off"), daemon=True
        ).start()
        while socket.socket().connect_ex(("127.0.0.1", {unused_tcp_port})):
            pass
    """
    async with RolloutServer(spec_of(tmp_path, APP, tool, SERVE)) as server:
        assert socket_path(server.base_url) is not None
        assert await ask(f"http://127.0.0.1:{unused_tcp_port}")


async def test_an_entrypoint_that_serves_by_other_means_listens_on_its_port_and_that_is_said_once(
    tmp_path: Path,
) -> None:
    by_other_means = """
        import asyncio

        async def reply(reader, writer):
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}")
            await writer.drain()
            writer.close()

        async def serve():
            async with await asyncio.start_server(reply, "127.0.0.1", PORT) as server:
                await server.serve_forever()

        asyncio.run(serve())
    """
    notes: list[str] = []
    async with RolloutServer(spec_of(tmp_path, APP, by_other_means), note=notes.append) as server:
        assert server.base_url.startswith("http://127.0.0.1:")
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(server.death(), 60)
        await server.revive()
    (note,) = notes
    assert "listens on a port of this machine" in note


async def test_a_port_that_the_user_chose_is_listened_on_without_a_word(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    notes: list[str] = []
    chosen = spec_of(tmp_path, APP, SERVE, port=unused_tcp_port)
    async with RolloutServer(chosen, note=notes.append) as server:
        assert server.base_url == f"http://127.0.0.1:{unused_tcp_port}"
    assert not notes


def test_a_socket_is_made_where_its_path_is_short_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    listener = PrivateSocket()
    path = Path(socket_path(listener.address) or "")
    assert path.is_socket() and not path.is_relative_to(deep)
    assert not any(deep.iterdir())
    listener.remove()
    assert not path.parent.exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory in which the address of a socket has its 107 bytes at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def test_what_killed_processes_left_is_removed_and_what_is_in_use_is_not(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    in_use = PrivateSocket()
    left = short_path / "osmosis-socket-left"
    left.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left / "server.sock"))
    elsewhere = short_path / "elsewhere"
    elsewhere.mkdir()
    (short_path / "osmosis-socket-link").symlink_to(elsewhere)
    another = PrivateSocket()
    assert not left.exists() and elsewhere.is_dir()
    for listener in (in_use, another):
        assert Path(socket_path(listener.address) or "").is_socket()
        listener.remove()
    assert [path.name for path in short_path.glob("*-socket-*")] == ["osmosis-socket-link"]


def test_a_socket_is_made_where_another_process_sweeps_its_directory_at_once(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    make_directory, swept = tempfile.mkdtemp, list[Path]()

    def make_and_lose(*arguments: Any, **options: Any) -> str:
        made = make_directory(*arguments, **options)
        if not swept:
            swept.append(Path(made))
            PrivateSocket().remove()
            assert not swept[0].exists()
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    listener = PrivateSocket()
    assert swept and Path(socket_path(listener.address) or "").is_socket()
    listener.remove()


@pytest.fixture
def lock(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptor of the directory that is made for a socket, once it is."""
    made = server_address._locked_directory
    descriptors: list[int] = []

    def noted() -> tuple[Path, int]:
        directory, descriptor = made()
        descriptors.append(descriptor)
        return directory, descriptor

    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    monkeypatch.setattr(server_address, "_locked_directory", noted)
    return descriptors


def test_a_socket_that_two_remove_at_once_is_closed_once(
    lock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed a second time, its directory's descriptor may be another file's by then."""
    close, closed = os.close, list[int]()

    with ThreadPoolExecutor(1) as other:

        def close_beside_another(descriptor: int) -> None:
            if descriptor in lock:
                closed.append(descriptor)
                if len(closed) == 1:
                    # Who does not wait for this one is through at once.
                    wait([other.submit(listener.remove)], timeout=0.2)
                    close(descriptor)
            else:
                close(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "close", close_beside_another)
            listener = PrivateSocket()
            listener.remove()
    assert len(closed) == 1


def test_a_socket_that_can_not_be_made_leaves_nothing(
    short_path: Path, lock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    close, closed = os.close, list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", lambda descriptor: [closed.append(descriptor), close(descriptor)])
        patch.setattr(socket, "socket", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            PrivateSocket()
    assert lock[0] in closed
    assert list(short_path.iterdir()) == []
