"""A blob store with real sockets whose replies a test can replace."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SIGNATURE = "sig-canary-5f"


@dataclass
class Seen:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[["_Handler"], None]


@dataclass
class BlobServer:
    """The stored blobs, the requests so far, and replacements of the next replies."""

    url: str
    blobs: dict[str, bytes] = field(default_factory=dict)
    etags: bool = True
    seen: list[Seen] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)

    def signed(self, name: str) -> str:
        """Return the signed URL of a blob."""
        return f"{self.url}/{name}?X-Signature={SIGNATURE}"

    def asked(self, method: str) -> list[str]:
        """Return the names of the requested blobs in order."""
        return [request.path for request in self.seen if request.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    body = b""

    def do_PUT(self) -> None:
        answer = self._next_answer()
        if answer is cut:
            self._note()
            answer(self)
            return
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self._note()
        if answer is not None:
            answer(self)
            return
        self.server.state.blobs[self._name()] = self.body
        self.reply(200, etag=f'"{hashlib.md5(self.body).hexdigest()}"')

    def do_GET(self) -> None:
        answer = self._next_answer()
        self._note()
        if answer is not None:
            answer(self)
            return
        self.send_blob()

    def send_blob(self, *, stop_after: int | None = None) -> None:
        """Send a blob, or only its beginning."""
        blob = self.server.state.blobs.get(self._name())
        if blob is None:
            self.reply(404)
            return
        mine = f'"{hashlib.md5(blob).hexdigest()}"'
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range") == mine:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(blob):
                self.reply(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(blob) - 1}/{len(blob)}")
            blob = blob[start:]
        else:
            self.send_response(200)
        if self.server.state.etags:
            self.send_header("ETag", mine)
        self.send_header("Content-Length", str(len(blob)))
        self.send_header("Content-Disposition", 'attachment; filename="maze walks.csv"')
        self.end_headers()
        self.wfile.write(blob[:stop_after])
        if stop_after is not None:
            self.hang_up()

    def reply(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def hang_up(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _next_answer(self) -> Answer | None:
        answers = self.server.state.answers
        return answers.pop(0) if answers else None

    def _name(self) -> str:
        return self.path.partition("?")[0].strip("/")

    def _note(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.state.seen.append(Seen(self.command, self._name(), headers, self.body))

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    state: BlobServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


def cut(handler: _Handler) -> None:
    """Read some of the body, then hang up."""
    handler.rfile.read(100)
    handler.hang_up()


def status(code: int, **headers: str) -> Answer:
    """Answer with a status."""
    return lambda handler: handler.reply(code, **headers)


def cut_after(count: int) -> Answer:
    """Send ``count`` bytes of the blob, then hang up."""
    return lambda handler: handler.send_blob(stop_after=count)


@contextmanager
def serve() -> Iterator[BlobServer]:
    """Run a store on a free port."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.state = BlobServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
