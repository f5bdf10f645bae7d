"""Slow clients and many of them, over real sockets: others are served, and active connections are kept."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from osmosis_ai.platform import server
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.http import connection_limits, middleware
from osmosis_ai.platform.server import RunningPlatform, run_platform
from tests.platform.evaluations import wait_until

pytestmark = pytest.mark.integration

WITHIN_S = 0.5
PATIENCE_S = 300.0
POST = b"POST /api/cli/device/authorize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def allow(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Set how long the platform waits for the head of a request, and for its body."""
    patch.setattr(server, "HEADERS_WITHIN_S", seconds)
    patch.setattr(middleware, "BODY_WITHIN_S", seconds)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlatformConfig:
    """A platform that waits as long as a busy machine may need, unless a test changes that."""
    allow(PATIENCE_S, monkeypatch)
    return PlatformConfig(home=tmp_path / "platform", port=0, executor_slots=0)


@dataclass(eq=False)
class Timer:
    """A call that is due at a time of the test's clock."""

    due: float
    call: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Connections:
    """The platform's connections, whose timers use a clock that the test advances."""

    protocols: list[Any] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    now: float = 0.0

    def call_later(self, delay: float, call: Callable[..., object], *arguments: object) -> Timer:
        self.timers.append(Timer(self.now + delay, lambda: call(*arguments)))
        return self.timers[-1]

    def received(self, connection: socket.socket, size: int) -> None:
        """Wait until the platform has received ``size`` bytes of an unfinished request head."""
        name = connection.getsockname()
        [protocol] = wait_until(
            lambda: [each for each in self.protocols if each.transport.get_extra_info("peername") == name]
        )
        wait_until(lambda: protocol._waiting_bytes == size)

    def advance(self, seconds: float) -> None:
        """Advance the clock, and wait until all due timers have run."""
        passed = threading.Event()

        def step() -> None:
            self.now += seconds
            due = [timer for timer in self.timers if timer.due <= self.now]
            self.timers = [timer for timer in self.timers if timer not in due]
            for timer in due:
                if not timer.cancelled:
                    timer.call()
            passed.set()

        self.protocols[0].loop.call_soon_threadsafe(step)
        assert passed.wait(PATIENCE_S)


class LoopWithTimers:
    """An event loop, except for its timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call_later: Callable[..., Timer]) -> None:
        self._loop = loop
        self.call_later = call_later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    """The connections of platforms that the test starts."""
    made = Connections()
    accept = connection_limits._LimitedHttp.connection_made

    def connection_made(protocol: Any, transport: Any) -> None:
        protocol.loop = LoopWithTimers(protocol.loop, made.call_later)
        accept(protocol, transport)
        made.protocols.append(protocol)

    monkeypatch.setattr(connection_limits._LimitedHttp, "connection_made", connection_made)
    return made


@contextmanager
def connected(platform: RunningPlatform) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", platform.config.port), timeout=PATIENCE_S) as connection:
        yield connection


def is_well(platform: RunningPlatform) -> bool:
    return httpx.get(f"{platform.config.base_url}/health", timeout=PATIENCE_S).status_code == 200


def rest(connection: socket.socket) -> bytes:
    """Return everything received until the connection is closed or reset."""
    received = b""
    with suppress(ConnectionResetError):
        while block := connection.recv(65536):
            received += block
    return received


@contextmanager
def deaf_client(platform: RunningPlatform) -> Iterator[socket.socket]:
    """A client that requests more than the system buffers, and reads nothing."""
    with connected(platform) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /api/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        yield connection


@contextmanager
def stuck_replies() -> Iterator[queue.SimpleQueue[None]]:
    """Yield a queue with an item for every connection whose buffer is full."""
    stuck: queue.SimpleQueue[None] = queue.SimpleQueue()
    pause = FlowControl.pause_writing

    def noted(self: FlowControl) -> None:
        pause(self)
        stuck.put(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowControl, "pause_writing", noted)
        yield stuck


def test_a_request_that_arrives_too_slowly_is_refused(
    config: PlatformConfig, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The only awaited body never arrives, so its limit can be short.
    monkeypatch.setattr(middleware, "BODY_WITHIN_S", WITHIN_S)
    with run_platform(config) as platform:
        with connected(platform) as silent:
            wait_until(lambda: connections.protocols)
            connections.advance(PATIENCE_S)
            assert rest(silent) == b""
        with connected(platform) as trickling:
            sent = b"GET /health HTTP/1.1\r\n"
            trickling.sendall(sent)
            connections.received(trickling, len(sent))
            for _ in range(9):
                connections.advance(PATIENCE_S / 10)
                trickling.sendall(b"X-More: 1\r\n")
                sent += b"X-More: 1\r\n"
                connections.received(trickling, len(sent))
            connections.advance(PATIENCE_S / 10)
            reply = rest(trickling)
            assert reply.startswith(b"HTTP/1.1 408") and b"HEADERS_TOO_SLOW" in reply
        # The second request of a connection has the same deadline as the first.
        with connected(platform) as again:
            again.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert again.recv(65536).startswith(b"HTTP/1.1 200")
            again.sendall(b"GET /hea")
            connections.received(again, len(b"GET /hea"))
            connections.advance(PATIENCE_S)
            assert b" 408 " in rest(again)
        with connected(platform) as half:
            half.sendall(POST + b"Content-Length: 20\r\n\r\n{")
            reply = rest(half)
            assert reply.startswith(b"HTTP/1.1 408") and b"BODY_TOO_SLOW" in reply
        with connected(platform) as endless:
            with suppress(ConnectionError):  # it is answered before all is sent
                endless.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 100_000)
            # h11, which serves where httptools is not installed, has a limit of its own and calls it 400.
            assert rest(endless).split(b" ")[1] in (b"431", b"400")


def test_too_many_connections_close_idle_ones(config: PlatformConfig) -> None:
    with run_platform(replace(config, max_connections=8)) as platform, ExitStack() as held:
        waiting = [held.enter_context(connected(platform)) for _ in range(30)]
        assert is_well(platform)
        assert [rest(connection) for connection in waiting[:22]] == [b""] * 22


def test_active_connections_are_never_closed(config: PlatformConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from osmosis_ai.platform.db.engine import Database

    read, reading, proceed = Database.read, threading.Semaphore(0), threading.Event()

    async def delayed(self: Database, query: object) -> object:
        reading.release()
        await asyncio.to_thread(proceed.wait, PATIENCE_S)
        return await read(self, query)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "read", delayed)
    with run_platform(replace(config, max_connections=8)) as platform, ExitStack() as held:
        served = [held.enter_context(connected(platform)) for _ in range(8)]
        for connection in served:
            connection.sendall(
                b"GET /api/cli/verify HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nConnection: close\r\n\r\n"
            )
        try:
            for _ in served:
                assert reading.acquire(timeout=PATIENCE_S)
            with connected(platform) as late:
                reply = rest(late)
            assert reply.startswith(b"HTTP/1.1 503") and b"Retry-After: 5" in reply
        finally:
            proceed.set()
        assert all(rest(connection).startswith(b"HTTP/1.1 401") for connection in served)


def test_stalled_clients_do_not_block_others(config: PlatformConfig) -> None:
    with run_platform(replace(config, max_connections=3)) as platform, ExitStack() as held:
        half = [held.enter_context(connected(platform)) for _ in range(3)]
        for connection in half:
            connection.sendall(POST + b"Content-Length: 20\r\n\r\n{")
        assert is_well(platform)
        with stuck_replies() as stuck:
            for _ in range(3):
                held.enter_context(deaf_client(platform))
            for _ in range(3):
                stuck.get(timeout=PATIENCE_S)
        assert is_well(platform)


@pytest.mark.parametrize(("trusted", "source"), [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.9")])
def test_forwarded_addresses_are_trusted_from_configured_proxies_only(
    config: PlatformConfig, trusted: tuple[str, ...], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    seen = []
    with run_platform(replace(config, trusted_proxies=trusted)) as platform:
        start = platform.services.device_logins.start
        monkeypatch.setattr(
            platform.services.device_logins,
            "start",
            lambda name, *, source: seen.append(source) or start(name, source=source),
        )
        httpx.post(
            f"{platform.config.base_url}/api/cli/device/authorize",
            json={"deviceName": "x"},
            headers={"X-Forwarded-For": "198.51.100.1, 203.0.113.9"},
            timeout=PATIENCE_S,
        )
    assert seen == [source]


def test_proxies_are_configured_by_address() -> None:
    config = from_environment({"OSMOSIS_TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/24"})
    assert config.trusted_proxies == ("127.0.0.1", "10.0.0.0/24")
    for refused in ("*", "proxy.example", "127.0.0.1 10.0.0.1"):
        with pytest.raises(Exception, match="OSMOSIS_TRUSTED_PROXIES must name addresses"):
            from_environment({"OSMOSIS_TRUSTED_PROXIES": refused})
