"""Live updates of a run."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from osmosis_ai.errors import NotFoundError
from osmosis_ai.training.runs.run_directory import ValidationSamples
from osmosis_ai.viewer.access import SharedReads
from osmosis_ai.viewer.live import LiveHub, LiveNews, Watched
from osmosis_ai.viewer.local_runs import RunKind
from osmosis_ai.viewer.source import RunState
from tests.viewer.browsing import page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run, a_sample
from tests.viewer.source_contract import sample_record

WATCHED = Watched("", "eval", "calm-fern-1")


@dataclass
class GrowingSource(FakeSource):
    """A run whose attempts finish when a test says so."""

    finished: int = 0
    status: str = "running"
    is_gone: bool = False

    def state(self, kind: RunKind, run: str) -> RunState:
        if self.is_gone:
            raise NotFoundError(f"there is no run {run!r} here.")
        return RunState(f"{self.finished}{'' if self.status == 'running' else '!'}", self.status)


async def news_of(stream: AsyncIterator[LiveNews]) -> LiveNews:
    """Return the next update of a stream."""
    return await asyncio.wait_for(anext(stream), 60)


async def ends_of(stream: AsyncIterator[LiveNews]) -> list[str]:
    """Return the reasons with which a stream ends."""

    async def listen() -> list[str]:
        return [news.end async for news in stream if news.end]

    return await asyncio.wait_for(listen(), 60)


def test_concurrent_readers_share_one_read() -> None:
    reads, asked, all_ask = SharedReads(), list[str](), threading.Barrier(20, timeout=60)

    def read() -> str:
        asked.append("read")
        return "detail"

    def ask(_: int) -> str:
        all_ask.wait()
        return reads.once("run", read)

    with ThreadPoolExecutor(20) as watchers:
        assert set(watchers.map(ask, range(20))) == {"detail"}
    assert asked == ["read"]
    with pytest.raises(ZeroDivisionError):
        reads.once("log", lambda: 1 // 0)
    assert reads.once("log", lambda: 1) == 1


async def test_stream_resumes_from_a_cursor() -> None:
    source, hub = GrowingSource(), LiveHub(read_every_s=0.01)
    async with aclosing(hub.stream(WATCHED, source)) as stays:
        await news_of(stays)
        for source.finished in (1, 2, 3):
            await news_of(stays)
        for since in ("1", "of another time"):
            async with aclosing(hub.stream(WATCHED, source, since=since)) as resumed:
                assert (await news_of(resumed)).state == RunState("3", "running")
        async with aclosing(hub.stream(WATCHED, source, since="3")) as newest:
            source.finished = 4
            assert (await news_of(newest)).state == RunState("4", "running")


async def test_stream_follows_a_killed_and_resumed_run() -> None:
    source, hub = GrowingSource(), LiveHub(read_every_s=0.01)
    stream, seen = hub.stream(WATCHED, source), list[str | None]()
    await news_of(stream)
    for source.finished, source.status in ((1, "incomplete"), (2, "running"), (3, "finished")):
        found = (await news_of(stream)).state
        seen.append(found and found.status)
    assert seen == ["incomplete", "running", "finished"]
    assert await ends_of(stream) == ["ended"]


@pytest.mark.parametrize(
    ("status", "follows"), [("running", True), ("incomplete", True), ("finished", False)]
)
def test_live_pages_follow_unfinished_runs(status: str, follows: bool) -> None:
    name = "keen-owl-2"
    validated = ValidationSamples.of([sample_record(0, 0, 1.0)], step=4, pass_threshold=1.0)
    source = FakeSource(
        [a_run("calm-fern-1", status=status), a_run(name, "training", status=status)],
        listed={"calm-fern-1": [a_sample(0)]},
        conversations={("calm-fern-1", 0, 0): b'{"steps": []}', (name, 0, 0): b'{"steps": []}'},
        validations={name: validated},
    )
    pages = visitor(source)
    for below in ("", "/samples", "/samples/0.0", "/samples/0.0/raw", "/log", "/log?cursor=1"):
        page = page_text(pages.get(f"/evals/calm-fern-1{below}"))
        assert ('data-live-source="/evals/calm-fern-1/changes"' in page) is follows, below
        assert ('data-live-ended="/evals/calm-fern-1/changes"' in page) is not follows, below
    for below in ("", "/log", "/validation/0.0"):
        page = page_text(pages.get(f"/training/keen-owl-2{below}"))
        assert ('data-live-source="/training/keen-owl-2/changes"' in page) is follows, below
        assert ('data-live-ended="/training/keen-owl-2/changes"' in page) is not follows, below
    assert pages.get("/evals/calm-fern-1/changes").json()["ended"] is not follows


async def test_stream_ends_for_deleted_run_and_lost_access() -> None:
    source, hub = GrowingSource(), LiveHub(read_every_s=0.01, keep_alive_s=0.01)
    stream = hub.stream(WATCHED, source)
    await news_of(stream)
    source.is_gone = True
    assert await ends_of(stream) == ["gone"]
    source.is_gone = False
    stream = hub.stream(WATCHED, source, allowed=lambda: False)
    assert await ends_of(stream) == ["refused"]


async def test_server_shutdown_ends_streams() -> None:
    source, hub = GrowingSource(), LiveHub(keep_alive_s=3600)
    stream = hub.stream(WATCHED, source)
    await news_of(stream)
    waits = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    hub.close()
    assert await asyncio.wait_for(waits, 60) is None


async def test_streams_per_visitor() -> None:
    source, hub = GrowingSource(), LiveHub()
    streams = [hub.stream(WATCHED, source, visitor="anna") for _ in range(4)]
    for stream in streams:
        assert hub.may_stream("anna")
        await news_of(stream)
    assert not hub.may_stream("anna") and hub.may_stream("ben")
    await streams[0].aclose()  # type: ignore[attr-defined]
    assert hub.may_stream("anna")
    hub.close()


def test_unchanged_reply_has_no_body() -> None:
    source = FakeSource([a_run("calm-fern-1")], listed={"calm-fern-1": [a_sample(0)]})
    with visitor(source) as client:
        reply = client.get("/evals/calm-fern-1/changes")
        assert reply.json() == {
            "cursor": "finished.1",
            "status": "finished",
            "headline": None,
            "ended": True,
        }
        tag = reply.headers["etag"]
        again = client.get("/evals/calm-fern-1/changes", headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        source.listed["calm-fern-1"].append(a_sample(1))
        assert client.get("/evals/calm-fern-1/changes", headers={"If-None-Match": tag}).status_code == 200


def test_events_of_a_finished_run() -> None:
    client = visitor(FakeSource([a_run("calm-fern-1")]))
    accept = {"Accept": "text/event-stream"}
    reply = client.get("/evals/calm-fern-1/changes", headers=accept)
    assert reply.headers["content-type"].startswith("text/event-stream")
    change, end, rest = reply.text.split("\n\n")
    assert change.startswith("event: change\n") and change.endswith("\nid: finished.0") and rest == ""
    assert json.loads(end.partition("data: ")[2]) == {"reason": "ended"}
    back = client.get("/evals/calm-fern-1/changes", headers={**accept, "Last-Event-ID": "finished.0"})
    assert (back.status_code, back.content) == (204, b"")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_changes_of_unknown_run(accept: str) -> None:
    reply = visitor(FakeSource()).get("/evals/none/changes", headers={"Accept": accept})
    assert (reply.status_code, reply.json()) == (404, {"message": "there is no run 'none' here."})


@pytest.mark.parametrize("cursor", ["garbage", "§", "1024-0-running", "A" * 40_000])
def test_unknown_cursors_get_the_state(cursor: str) -> None:
    pages = visitor(FakeSource([a_run("calm-fern-1")]))
    reply = pages.get("/evals/calm-fern-1/changes", params={"since": cursor})
    assert (reply.status_code, reply.json()["cursor"]) == (200, "finished.0")
