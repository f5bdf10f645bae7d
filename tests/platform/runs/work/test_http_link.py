"""The worker's side of the protocol over a socket, with a platform that does what each test says."""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.retrying import Waits
from osmosis_ai.api.wire.workers import (
    Assignment,
    InputDownload,
    JournalSegment,
    SyncReply,
    UploadGrant,
    WorkerOffer,
)
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import JournalOffsetError, LeaseLostError
from osmosis_ai.platform.runs.work import http_link
from osmosis_ai.platform.runs.work.http_link import HttpLink
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    NoPlatformError,
    PlatformUnreachableError,
    StoreAwayError,
)
from osmosis_ai.platform.runs.work.run_channel import OutgoingBlob, RunChannel
from tests.platform.runs.work.socket_server import SocketServer

REPLY = SyncReply(stop=False, term_s=30, next_s=1)
DIGEST = "0" * 64
ASSIGNMENT = {
    "run": {
        "id": "run_1",
        "name": "a",
        "kind": "eval",
        "workspace_id": "ws",
        "request": {},
        "commit_sha": "c" * 40,
        "rollout_name": "r",
        "dataset_name": "d",
        "model_path": "osmosis/tiny",
        "seed": 0,
        "selection": {},
    },
    "lease": {"token": "lease", "attempt": 1, "term_s": 30},
    "secrets": {"KEY": "value"},
    "dataset": {"url": "/blobs/d", "size": 1, "sha256": DIGEST},
    "dataset_extension": "jsonl",
    "journal": {"generation": 0, "bytes": 0},
}


class Desk:
    """Answers as it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Response] = []
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.blobs: dict[str, bytes] = {}
        self.pages = 0
        self.bodies: dict[str, Callable[[Request], Response]] = {}
        self.app = Starlette(
            routes=[
                Route("/api/workers/v1/{rest:path}", self.exchange, methods=["POST"]),
                Route("/blobs/{name}", self.blob, methods=["GET", "PUT"]),
            ]
        )

    async def exchange(self, request: Request) -> Response:
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.asked.append((request.url.path, dict(request.headers), json.loads(body)))
        return self.replies.pop(0) if self.replies else JSONResponse(REPLY.to_wire())

    async def blob(self, request: Request) -> Response:
        self.asked.append((request.url.path, dict(request.headers), {}))
        name = request.path_params["name"]
        if self.pages:
            self.pages -= 1
            await request.body()
            return HTMLResponse("<html><body>We are back soon.</body></html>")
        if name in self.bodies:
            return self.bodies[name](request)
        if name == "silent":
            while (await request.receive())["type"] != "http.disconnect":
                pass
        if request.method == "PUT":
            self.blobs[name] = await request.body()
            return Response(headers={"ETag": '"tag"'})
        return Response(self.blobs[name])


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def link(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpLink]:
    monkeypatch.setattr(http_link, "_WAITS", Waits((0.0, 0.0)))
    with SocketServer(desk.app) as server:
        made = HttpLink(server.address, "ticket")
        yield made
        made.close()


@pytest.fixture
def channel(link: HttpLink) -> RunChannel:
    return RunChannel(link, Assignment.model_validate(ASSIGNMENT))


def test_a_claim_without_a_run_is_none_and_one_with_a_run_brings_its_secrets(
    link: HttpLink, desk: Desk
) -> None:
    desk.replies = [
        Response(status_code=204, headers={"X-Osmosis-Worker-Protocol": "1"}),
        JSONResponse(ASSIGNMENT),
    ]
    offer = WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18")
    assert link.claim(offer) is None
    claimed = link.claim(offer)
    assert claimed is not None and claimed.secrets["KEY"].get_secret_value() == "value"
    path, headers, body = desk.asked[-1]
    assert (path, headers["authorization"]) == ("/api/workers/v1/claim", "Bearer ticket")
    assert body == {"claim_id": "a" * 32, "sdk_version": "0.3.18"}


@pytest.mark.parametrize(
    "answer",
    [
        Response(status_code=204),
        HTMLResponse("<p>sign in</p>"),
        HTMLResponse("<p>no</p>", status_code=403),
        Response(status_code=401),
        JSONResponse({}),
        JSONResponse({"status": "ok"}),
        JSONResponse(["ok"]),
    ],
)
def test_what_no_platform_says_to_a_claim_is_told_as_such(
    link: HttpLink, desk: Desk, answer: Response
) -> None:
    desk.replies = [answer]
    with pytest.raises(NoPlatformError, match="no workers are taken at this address"):
        link.claim(WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18"))
    desk.replies = [JSONResponse({"error": "revoked", "code": "TOKEN_REVOKED"}, status_code=401)]
    with pytest.raises(CredentialRefusedError):
        link.claim(WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18"))


@pytest.mark.parametrize(
    "answer", [JSONResponse({"status": "ok"}), HTMLResponse("<p>back soon</p>"), Response(status_code=401)]
)
def test_another_server_in_the_place_of_a_platform_that_was_there_is_waited_for(
    link: HttpLink, desk: Desk, answer: Response
) -> None:
    offer = WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18")
    desk.replies = [Response(status_code=204, headers={"X-Osmosis-Worker-Protocol": "1"}), answer]
    assert link.claim(offer) is None
    with pytest.raises(PlatformUnreachableError, match="is no platform just now"):
        link.claim(offer)


@pytest.mark.parametrize("answer", [JSONResponse({"status": "ok"}), HTMLResponse("<p>back soon</p>")])
def test_words_of_another_server_about_a_run_fail_no_run(
    channel: RunChannel, desk: Desk, answer: Response
) -> None:
    for say in (channel.sync, lambda: channel.end("finished"), channel.release):
        desk.replies = [answer]
        with pytest.raises(PlatformUnreachableError):
            say()


def test_a_store_that_is_away_is_told_from_one_that_refuses_and_from_a_platform_that_is_away(
    link: HttpLink, channel: RunChannel, desk: Desk
) -> None:
    def busy(code: str, **more: Any) -> list[Response]:
        return [JSONResponse({"error": "busy", "code": code, **more}, status_code=503) for _ in range(3)]

    offer = WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18")
    for ask in (lambda: link.claim(offer), channel.sync):
        desk.replies = busy("BLOBS_UNAVAILABLE", store_away=True)
        with pytest.raises(StoreAwayError, match="busy"):
            ask()
        for code in ("BLOBS_UNAVAILABLE", "DATABASE_BUSY"):
            desk.replies = busy(code)
            with pytest.raises(PlatformUnreachableError) as caught:
                ask()
            assert not isinstance(caught.value, StoreAwayError)


def test_an_exchange_names_its_lease_and_a_large_one_is_packed(channel: RunChannel, desk: Desk) -> None:
    assert not channel.sync().stop
    channel.sync(facts={"environment": "x" * 10_000})
    (_, small, first), (path, large, second) = desk.asked
    assert path == "/api/workers/v1/runs/run_1/sync" and first == {"lease": "lease"}
    assert "content-encoding" not in small and large["content-encoding"] == "gzip"
    assert second["facts"]["environment"] == "x" * 10_000 and int(large["content-length"]) < 1000


def test_a_stop_is_told_once_and_to_whoever_listens_later(channel: RunChannel, desk: Desk) -> None:
    told: list[str] = []
    channel.listen(lambda: told.append("first"))
    desk.replies = [JSONResponse(REPLY.model_copy(update={"stop": True}).to_wire()) for _ in range(2)]
    channel.sync()
    channel.sync()
    assert told == ["first"] and channel.stop_asked
    channel.listen(lambda: told.append("second"))
    assert told == ["first", "second"]


def test_what_is_busy_for_a_moment_is_asked_again(channel: RunChannel, desk: Desk) -> None:
    desk.replies = [JSONResponse({"error": "busy", "code": "BUSY"}, status_code=503) for _ in range(2)]
    assert channel.sync().next_s == 1
    assert len(desk.asked) == 3


AWAY = {"error": "away", "code": "AWAY"}


@pytest.mark.parametrize("word", ["end", "release"])
def test_the_last_word_about_a_run_is_said_for_as_long_as_its_lease_lasts(
    channel: RunChannel, desk: Desk, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    say = {"end": lambda: channel.end("finished"), "release": channel.release}[word]
    desk.replies = [JSONResponse(AWAY, status_code=503) for _ in range(20)]
    desk.replies.append(JSONResponse({"status": "finished"}))
    assert say().status == "finished"
    assert len(desk.asked) == 21 and desk.asked[-1][0].endswith(word)

    desk.replies = [JSONResponse(REPLY.model_copy(update={"term_s": 1e-6}).to_wire())]
    channel.sync()
    desk.asked.clear()
    desk.replies = [JSONResponse(AWAY, status_code=503) for _ in range(20)]
    with pytest.raises(PlatformUnreachableError, match="away"):
        say()
    assert len(desk.asked) == 3, "no longer than a lease, and as often as anything else"


def test_an_end_that_is_not_the_workers_to_say_is_said_once(channel: RunChannel, desk: Desk) -> None:
    desk.replies = [JSONResponse({"error": "gone", "code": "LEASE_LOST"}, status_code=409)]
    with pytest.raises(LeaseLostError):
        channel.end("finished")
    assert len(desk.asked) == 1


def test_bytes_that_a_store_does_not_give_or_take_for_now_fail_no_run(
    channel: RunChannel, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_link, "_BLOB_WAITS", Waits((0.0,)))
    channel._link._term_s = 1e-6  # type: ignore[attr-defined]
    desk.blobs.clear()  # its answer is 500
    with pytest.raises(PlatformUnreachableError):
        channel.fetch(InputDownload(url="/blobs/rows", size=4, sha256=DIGEST), tmp_path / "rows")
    assert [path for path, _, _ in desk.asked] == ["/blobs/rows"] * 2


def test_a_page_in_a_stores_place_is_waited_for_like_a_store_that_is_busy(
    channel: RunChannel, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_link, "_BLOB_WAITS", Waits((0.0, 0.0)))
    channel._link._term_s = 1e-6  # type: ignore[attr-defined]
    desk.blobs["rows"] = b"rows"
    rows = InputDownload(url="/blobs/rows", size=4, sha256=hashlib.sha256(b"rows").hexdigest())
    desk.pages = 2
    channel.fetch(rows, tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == b"rows"
    desk.pages = 2
    grant = UploadGrant(name="files/a", id="upload", url="/blobs/sent")
    assert channel._link.send(grant, BytesIO(b"sent"), 4) == "tag"
    assert desk.blobs["sent"] == b"sent"

    desk.pages = 1000
    with pytest.raises(PlatformUnreachableError, match="no store just now"):
        channel.fetch(rows, tmp_path / "rows")
    with pytest.raises(PlatformUnreachableError, match="no store just now"):
        channel._link.send(grant, BytesIO(b"sent"), 4)


def test_a_store_that_says_nothing_holds_up_what_is_new_for_a_term_at_most(
    channel: RunChannel, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_link, "_BLOB_WAITS", Waits())
    monkeypatch.setattr(http_link, "_SILENCE_S", 0.1)
    link = channel._link
    link._term_s = 0.2  # type: ignore[attr-defined]
    begun = time.monotonic()
    with pytest.raises(PlatformUnreachableError):
        link.send(UploadGrant(name="a", id="a", url="/blobs/silent"), BytesIO(b"x"), 1)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, {"error": "gone", "code": "LEASE_LOST"}, LeaseLostError),
        (409, {"error": "no", "code": "JOURNAL_OFFSET", "bytes": 7}, JournalOffsetError),
        (409, {"error": "no", "code": "JOURNAL_OFFSET", "details": {"bytes": 7}}, JournalOffsetError),
        (401, {"error": "revoked", "code": "TOKEN_REVOKED"}, CredentialRefusedError),
        (426, {"message": "too old", "status": "unsupported"}, CredentialRefusedError),
        (500, {"error": "broken", "code": "INTERNAL"}, PlatformUnreachableError),
        (503, {"error": "broken", "code": "INTERNAL"}, PlatformUnreachableError),
        (501, {"error": "no POST here"}, PlatformError),
        (400, {"error": "no such line", "code": "VALIDATION"}, OsmosisError),
    ],
)
def test_each_refusal_is_an_error_of_its_kind(
    channel: RunChannel, desk: Desk, status: int, body: dict[str, Any], kind: type[OsmosisError]
) -> None:
    desk.replies = [JSONResponse(body, status_code=status) for _ in range(3)]
    with pytest.raises(kind) as caught:
        channel.sync()
    assert "ticket" not in str(caught.value)
    if isinstance(caught.value, JournalOffsetError):
        assert caught.value.stored == 7


def test_a_platform_that_is_not_there_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "_WAITS", Waits())
    link = HttpLink(f"http+unix://{str(tmp_path).replace('/', '%2F')}%2Fnone.sock", "ticket")
    with pytest.raises(PlatformUnreachableError, match="does not answer"):
        link.claim(WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18"))
    link.close()


def test_no_credential_goes_to_a_platform_in_the_clear() -> None:
    with pytest.raises(OsmosisError, match="insecure"):
        HttpLink("http://platform.example", "ticket")


def test_bytes_go_up_by_grants_and_the_credential_stays_here(channel: RunChannel, desk: Desk) -> None:
    contents = {f"files/{number}": b"x" * number for number in range(3)}
    grants = [UploadGrant(name=name, id=f"id-{name}", url=f"/blobs/{name[-1]}") for name in contents]
    desk.replies = [JSONResponse(REPLY.model_copy(update={"uploads": grants}).to_wire())]
    sent = channel.store([OutgoingBlob.of(name, BytesIO(content)) for name, content in contents.items()])
    assert [(each.name, each.id, each.etag) for each in sent] == [
        (name, f"id-{name}", "tag") for name in contents
    ]
    assert [each.sha256 for each in sent] == [hashlib.sha256(each).hexdigest() for each in contents.values()]
    assert desk.blobs == {"0": b"", "1": b"x", "2": b"xx"}
    assert [wanted["size"] for wanted in desk.asked[0][2]["wanted"]] == [0, 1, 2]
    assert all("authorization" not in headers for path, headers, _ in desk.asked if path.startswith("/blobs"))


def test_fetched_bytes_are_whole_and_right_or_not_there(
    channel: RunChannel, desk: Desk, tmp_path: Path
) -> None:
    desk.blobs["rows"] = b"rows"
    wanted = InputDownload(url="/blobs/rows", size=4, sha256=hashlib.sha256(b"rows").hexdigest())
    channel.fetch(wanted, tmp_path / "right")
    assert (tmp_path / "right").read_bytes() == b"rows"
    for wrong in ({"sha256": DIGEST}, {"size": 3}):
        with pytest.raises(OsmosisError) as failed:
            channel.fetch(wanted.model_copy(update=wrong), tmp_path / "wrong")
        # What answers in the store's place for a minute fails no run, and no command is to be run again.
        assert failed.value.is_infrastructure and failed.value.hint is None
    assert [path.name for path in tmp_path.iterdir()] == ["right"]


def test_what_comes_too_slowly_fails_no_run_and_goes_on_from_there_the_next_time(
    channel: RunChannel, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * (3 << 12)
    (tmp_path / "stored").write_bytes(content)
    desk.bodies["rows"] = lambda _: FileResponse(tmp_path / "stored")
    wanted = InputDownload(url="/blobs/rows", size=len(content), sha256=hashlib.sha256(content).hexdigest())
    target, partial = tmp_path / "rows", tmp_path / "rows.partial"

    def now() -> float:
        """Return the time on a line by which two thirds come soon and the rest not before an hour."""
        return 3600.0 if partial.exists() and partial.stat().st_size >= 2 << 20 else 0.0

    with monkeypatch.context() as patched:
        # The package has a function of the module's name.
        fetching = import_module("osmosis_ai.api.transfer.download")
        patched.setattr(fetching, "time", SimpleNamespace(monotonic=now), raising=False)
        with pytest.raises(PlatformUnreachableError, match=r"is too slow: \d+ bytes came"):
            channel.fetch(wanted, target)
    fetched = partial.stat().st_size
    assert not target.exists() and 2 << 20 <= fetched < len(content)
    channel.fetch(wanted, target)
    assert target.read_bytes() == content
    assert [headers.get("range") for _, headers, _ in desk.asked] == [None, f"bytes={fetched}-"]


def test_a_lease_runs_out_by_this_machines_own_clock(link: HttpLink, desk: Desk) -> None:
    now = [0.0]
    channel = RunChannel(link, Assignment.model_validate(ASSIGNMENT), clock=lambda: now[0])
    now[0] = 29.0
    assert not channel.has_run_out()
    channel.sync()
    now[0] = 58.0
    assert not channel.has_run_out()
    now[0] = 59.0
    assert channel.has_run_out()


@pytest.mark.parametrize(
    ("part", "lie"),
    [
        ("run", {"id": "../../other"}),
        ("run", {"id": "-c"}),
        ("run", {"name": ".."}),
        ("run", {"name": "a\x1b[31m"}),
        ("run", {"rollout_name": "../../.ssh"}),
        ("lease", {"term_s": 0}),
        ("lease", {"term_s": -1}),
        ("", {"dataset_extension": "../../a"}),
        ("", {"next_s": -1}),
    ],
)
def test_a_claim_that_names_another_place_is_none(
    link: HttpLink, desk: Desk, part: str, lie: dict[str, Any]
) -> None:
    within = {part: {**ASSIGNMENT[part], **lie}} if part else lie
    desk.replies = [JSONResponse({**ASSIGNMENT, **within})]
    with pytest.raises(OsmosisError, match="the claim"):
        link.claim(WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18"))


def test_a_platform_that_wants_to_be_left_alone_for_years_keeps_no_worker_from_its_lease(
    channel: RunChannel, desk: Desk
) -> None:
    desk.replies = [JSONResponse(REPLY.model_copy(update={"next_s": 1e9}).to_wire())]
    channel.sync()
    assert channel.pace_s == 10.0


def test_a_reply_without_end_is_not_read_to_its_end(
    link: HttpLink, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_link, "_LARGEST_REPLY_BYTES", 1 << 20)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(16):
            yield bytes(1 << 18)

    desk.replies = [StreamingResponse(endless())]
    with pytest.raises(PlatformUnreachableError, match="more than can be read"):
        link.claim(WorkerOffer(claim_id="a" * 32, sdk_version="0.3.18"))


def test_a_packed_part_that_is_larger_than_its_lines_fills_no_disk(
    link: HttpLink, desk: Desk, tmp_path: Path
) -> None:
    desk.blobs["part"] = bytes(1 << 18)
    part = JournalSegment(url="/blobs/part", size=7, sha256=DIGEST, offset=0, packed=True)
    with pytest.raises(OsmosisError, match="more than"):
        link.fetch(part, tmp_path / "part")
    assert list(tmp_path.iterdir()) == []


def test_an_upload_without_a_place_to_go_is_tried_again_later(channel: RunChannel) -> None:
    with pytest.raises(PlatformUnreachableError, match="where to send `files/1`"):
        channel.store([OutgoingBlob.of("files/1", BytesIO(b"a"))])
